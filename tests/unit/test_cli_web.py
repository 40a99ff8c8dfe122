"""The command ``web`` without a browser: what it refuses, what it warns of, what it serves."""

import signal
import socket
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from celery_redislock.cli import redislock
from celery_redislock.cli import web as module
from celery_redislock.exceptions import LockUnavailable
from tests.unit.shop import Shop, body


class Listening:
    """Stands in for the server: listens nowhere, and is interrupted as soon as it serves."""

    def __init__(self, bind: str, port: int) -> None:
        self.server_name = f"[{bind}]" if ":" in bind else bind
        self.server_port = port or 40_000
        self.application: Any = None
        self.names: tuple[str, ...] = ()
        self.was_closed = False

    def hosts(self, names: tuple[str, ...]) -> set[str]:
        self.names = names
        return {"localhost"}

    def set_app(self, application: Any) -> None:
        self.application = application

    def serve_forever(self) -> None:
        raise KeyboardInterrupt

    def __enter__(self) -> "Listening":
        return self

    def __exit__(self, *_: object) -> None:
        self.was_closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Listening]]:
    """The servers that a command has opened; the page is a word."""
    servers: list[Listening] = []

    def listen(bind: str, port: int) -> Listening:
        servers.append(Listening(bind, port))
        return servers[-1]

    page: Any = ModuleType("celery_redislock.web.page")
    page.page_of = lambda _server: lambda _environ, _start_response: [b"page"]
    monkeypatch.setitem(sys.modules, page.__name__, page)
    monkeypatch.setattr(module, "PageServer", listen)
    before = signal.getsignal(signal.SIGTERM)
    yield servers
    signal.signal(signal.SIGTERM, before)


def call(shop: Shop, *words: str) -> Result:
    """Run the command with the app of the shop."""
    return CliRunner().invoke(redislock, ["web", *words], obj=SimpleNamespace(app=shop.app))


def test_it_says_what_it_serves_and_where_and_ends_well(shop: Shop, opened: list[Listening]) -> None:
    """On loopback it has nothing to warn of."""
    shop.unique(body)
    result = call(shop)
    (server,) = opened
    assert result.exit_code == 0
    assert result.output == f"serving {shop.store.server} at http://127.0.0.1:5556/\n"
    assert server.was_closed


def test_the_page_answers_to_the_servers_hosts_and_to_the_names_given(
    shop: Shop, opened: list[Listening]
) -> None:
    """It is the guarded page that is served, and never the page alone."""
    shop.unique(body)
    assert call(shop, "--host", "locks.example", "--host", "[fd00::7]:8443").exit_code == 0
    (server,) = opened
    assert server.names == ("locks.example", "[fd00::7]:8443")
    seen: list[str] = []
    for host in ("localhost", "evil.example"):
        environ = {"REQUEST_METHOD": "GET", "HTTP_HOST": host}
        [*server.application(environ, lambda status, _: seen.append(status))]
    assert seen[1] == "421 Misdirected Request"


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.7", "::", "fd00::7"])  # noqa: S104  nobody listens
def test_an_address_that_others_reach_is_warned_of(shop: Shop, opened: list[Listening], address: str) -> None:
    """The page has no login: who binds it elsewhere is told what to put before it."""
    shop.unique(body)
    result = call(shop, "--bind", address)
    assert result.exit_code == 0
    assert "WARNING: this page has no login" in result.output
    assert f"whoever reaches {address}; put it behind a proxy with a login" in result.output


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_an_address_of_this_machine_alone_is_not_warned_of(
    shop: Shop, opened: list[Listening], address: str
) -> None:
    """Each of loopback's."""
    shop.unique(body)
    assert "WARNING" not in call(shop, "--bind", address).output


def refusal(shop: Shop, *words: str) -> str:
    """The sentence with which the command refuses, which must be one line, and exit status 2."""
    result = call(shop, *words)
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    return result.output


def test_an_app_without_unique_tasks_is_refused(
    shop: Shop, opened: list[Listening], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most likely ``-A`` names another app than the one that was meant."""
    # Celery gives each app the shared tasks of its process, those of other tests too.
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    assert refusal(shop) == (
        "Error: this app has no unique tasks, so the page would stay empty: celery -A names the app\n"
    )
    assert not opened


def test_a_lock_server_that_is_away_is_told_before_anything_listens(
    shop: Shop, opened: list[Listening], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once; one that goes away later is the page's to tell."""
    shop.unique(body)

    def fail(**_: object) -> None:
        raise LockUnavailable("memory", "names", "it is away")

    monkeypatch.setattr(shop.store, "names", fail)
    assert "it is away" in refusal(shop)
    assert not opened


@pytest.mark.parametrize("name", ["", "http://locks.example/", "*", "::1", "a b", "locks.example:http"])
def test_what_is_no_host_is_refused(shop: Shop, opened: list[Listening], name: str) -> None:
    """It would never match, or match a request that names no host."""
    shop.unique(body)
    assert refusal(shop, "--host", name).startswith(f"Error: --host {name!r} is no name of a host; write ")
    assert not opened


@pytest.mark.parametrize(
    "error",
    [
        OSError(98, "Address already in use"),
        PermissionError(13, "Permission denied"),
        socket.gaierror(-2, "Name or service not known"),
        UnicodeError("label too long"),
    ],
)
def test_a_place_where_it_cannot_listen_is_a_sentence(
    shop: Shop, opened: list[Listening], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A port that is taken or privileged, an address of another machine, a name without one."""
    shop.unique(body)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, "PageServer", fail)
    text = f"Error: cannot listen at 192.0.2.7:80: {error}; see --bind and --port\n"
    assert refusal(shop, "--bind", "192.0.2.7", "--port", "80") == text

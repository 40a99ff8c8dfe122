"""A line whose first message belongs to a broker without workers: it is told, and can be sent elsewhere."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock import log
from celery_redislock.publishing import promote
from celery_redislock.receiving import sweep
from celery_redislock.store.home import LIVES
from tests.clocks import AheadClock
from tests.unit.shop import KEY, Shop, body
from tests.unit.test_cli_line import LOCK, answer, call, held, in_line, park

GONE = "amqp:gone:5672//"


@pytest.fixture
def clock(shop: Shop, monkeypatch: Any) -> AheadClock:
    """That of the lock server and of the worker."""
    clock = AheadClock()
    shop.store._clock = clock
    monkeypatch.setattr(log, "monotonic", clock)
    monkeypatch.setattr(log, "_told_at", {})
    nobody = SimpleNamespace(**dict.fromkeys(["conf", "query_task", "active_queues"], lambda *_: None))
    monkeypatch.setattr(shop.app.control, "inspect", lambda **_: nobody)
    return clock


@pytest.fixture
def task(shop: Shop, monkeypatch: Any) -> Any:
    """A task of which three calls wait, that a worker of another broker has received."""
    task = shop.unique(body, **LOCK)
    held(shop)
    with monkeypatch.context() as patch:
        patch.setattr(promote, "install", lambda _app, store: setattr(store, "home", GONE))
        park(shop, task, "a", "b", "c")
    shop.store.home = ""
    return task


def told(shop: Shop, words: str) -> str:
    """What a command says, on either stream."""
    done = call(shop, *words.split())
    return done.stdout + done.stderr


@pytest.mark.usefixtures("task")
def test_each_command_that_shows_a_line_tells_of_it_and_what_to_do(shop: Shop, clock: AheadClock) -> None:
    """Until a worker of that broker is there again; programs are told as well."""

    def commands_that_tell() -> list[str]:
        commands = [f"waiting {KEY}", "waiting", f"explain {KEY}", "doctor"]
        said = {words: told(shop, words) for words in commands}
        assert all((f"waiting --drain --home {KEY}" in text) == (GONE in text) for text in said.values())
        unserved = [answer(shop, words, KEY)["unserved"] for words in ("waiting", "explain")]
        assert unserved in ([{KEY: GONE}] * 2, [{}] * 2)
        return [words for words, text in said.items() if GONE in text] + ["--json"] * bool(unserved[0])

    assert len(commands_that_tell()) == 5
    shop.store.homes(GONE, "x")
    assert commands_that_tell() == []
    clock.advance(LIVES)
    assert len(commands_that_tell()) == 5


@pytest.mark.usefixtures("task")
def test_the_look_of_a_worker_tells_of_it_once_a_minute(shop: Shop, clock: AheadClock, caplog: Any) -> None:
    """Nothing, while one of that broker is there: it is that one's turn."""

    def looks(seconds: float) -> int:
        caplog.clear()
        for _ in range(10):
            clock.advance(seconds / 10)
            sweep.look(shop.store, lambda _name: shop)
        return [record.levelname for record in caplog.records if GONE in record.getMessage()].count("WARNING")

    shop.store.release(KEY, "holder/1")
    assert looks(20.0) == 1
    assert looks(30.0) == 0
    assert looks(30.0) == 1
    shop.store.homes(GONE, "x")
    assert looks(50.0) == 0
    assert looks(30.0) == 1


@pytest.mark.usefixtures("task")
def test_a_drain_sends_it_to_the_apps_broker_if_it_is_asked_to(
    shop: Shop, caplog: Any, monkeypatch: Any
) -> None:
    """``--home``: question and log line name the broker; without it the remedy is told, and nothing sent."""
    asked: list[str] = []
    for words, shown in ([], []), (["--home"], ["a", "b", "c"]):
        tried = json.loads(call(shop, "waiting", KEY, "--drain", "--dry-run", "--json", *words).stdout)
        assert [each["owner"] for each in tried["waiting"]] == shown
    without = call(shop, "waiting", KEY, "--drain", "--yes")
    assert (without.exit_code, in_line(shop)) == (1, ["a", "b", "c"])
    assert f"some belong to the broker {GONE}: add --home" in without.stdout
    assert "--home and --dry-run go with --drain" in call(shop, "waiting", "--home").stderr

    monkeypatch.setattr("celery_redislock.cli.line.ask", asked.append)
    done = call(shop, "waiting", KEY, "--drain", "--home", "--reason", "moved")

    assert (done.exit_code, done.stdout) == (0, "3 waiting messages are back in their queues\n")
    assert GONE in asked[0]
    assert in_line(shop) == []
    assert [message.headers["id"] for message in shop.messages()] == ["a", "b", "c"]
    _, line = [record.getMessage() for record in caplog.records if "drained" in record.getMessage()]
    assert f"those of {GONE} to the queues of memory" in line
    assert "moved" in line


@pytest.mark.usefixtures("task")
def test_what_a_living_worker_serves_is_sent_nowhere_else(shop: Shop) -> None:
    """Its broker's queues are where it belongs."""
    shop.store.homes(GONE, "x")
    done = call(shop, "waiting", KEY, "--drain", "--home", "--yes")
    assert (done.exit_code, in_line(shop)) == (1, ["a", "b", "c"])
    assert f"some belong to the broker {GONE}: a worker of that was seen" in done.stdout

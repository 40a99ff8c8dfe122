"""The server of the page, on a port of this machine: slow clients, too many, and what is no request."""

import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from typing import Any, NamedTuple
from wsgiref.handlers import BaseHandler

import pytest

from celery_redislock.web.guard import HEADERS, Environ, WSGIApplication, at_home, guarded
from celery_redislock.web.server import PageServer
from tests.facts import wait_until

#: Seconds within which a machine that stands still at times answers, all the same.
SOON = 30.0


def page(_environ: Environ, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"the page"]


def open_socket(server: PageServer, sent: bytes = b"") -> socket.socket:
    """Connect, and send this."""
    client = socket.create_connection(server.server_address[:2], timeout=SOON)
    client.sendall(sent)
    return client


def answer_to(server: PageServer, sent: bytes) -> str:
    """What is answered until the connection ends."""
    with open_socket(server, sent) as client, client.makefile("rb") as stream:
        return stream.read().decode("latin-1")


class Answer(NamedTuple):
    """What a program is given."""

    status: int
    headers: dict[str, str]
    text: str


def get(server: PageServer, path: str = "/", **headers: str) -> Answer:
    """Ask as a program does."""
    with closing(HTTPConnection(*server.server_address[:2], timeout=SOON)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())


def is_served(server: PageServer) -> bool:
    """Whether somebody else is answered now, with the page and not with a refusal."""
    with suppress(OSError):
        return get(server).status == 200
    return False


@contextmanager
def serving(
    application: WSGIApplication = page, *, most: int = 32, patience: float = 10.0, bind: str = "127.0.0.1"
) -> Iterator[PageServer]:
    """Serve it until the end of the block."""
    with PageServer(bind, 0) as server:
        server.most = most
        server.patience = patience
        server.set_app(at_home(guarded(application), server.hosts()))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(SOON)
            assert wait_until(lambda: not server._ends, SOON)


def test_a_page_is_served_without_a_word_about_the_server_nor_about_the_request(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A refreshing page would fill the terminal, and nobody need know which Python this is."""
    with serving() as server:
        answer = get(server, "/held?task=a", Referer="http://localhost/")
    assert (answer.status, answer.text) == (200, "the page")
    assert {*answer.headers} == {"Content-Type", "Content-Length", "Date", *dict(HEADERS)}
    assert capfd.readouterr() == ("", "")


def test_the_application_gets_the_path_the_query_and_the_headers_and_no_variable_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a request without a Host would have the one that is set there."""
    monkeypatch.setitem(BaseHandler.os_environ, "HTTP_HOST", "localhost")
    monkeypatch.setitem(BaseHandler.os_environ, "A_SECRET", "hush")
    seen: list[Environ] = []

    def keeping(environ: Environ, start_response: Any) -> Iterable[bytes]:
        seen.append(environ)
        return page(environ, start_response)

    with serving(keeping) as server:
        assert get(server, "/lock/a%2Fb?key=%C3%A9", Accept="text/html").status == 200
        assert answer_to(server, b"GET / HTTP/1.0\r\n\r\n").startswith("HTTP/1.0 421 Misdirected Request\r\n")
    (environ,) = seen
    assert (environ["PATH_INFO"], environ["QUERY_STRING"]) == ("/lock/a/b", "key=%C3%A9")
    assert (environ["HTTP_ACCEPT"], environ["SCRIPT_NAME"]) == ("text/html", "")
    assert "A_SECRET" not in environ


def test_its_hosts_are_loopback_where_it_listens_and_the_names_it_is_given() -> None:
    """Each with its port; a given one also as it is given, which a proxy may pass on."""
    with PageServer("127.0.0.2", 0) as server:
        port = server.server_port
        ours = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]", "127.0.0.2")}
        assert server.hosts() == ours
        names = {"locks.example", f"locks.example:{port}", "a.example:8443", f"a.example:8443:{port}"}
        assert server.hosts(["Locks.example", "a.example:8443"]) == ours | names


def test_a_rebound_name_is_refused_by_the_server_that_runs() -> None:
    """The guard stands before what is served, and knows the port."""
    with serving() as server:
        port = server.server_port
        found = {
            host: get(server, Host=host).status
            for host in (f"localhost:{port}", f"evil.example:{port}", "localhost", f"localhost:{port + 1}")
        }
    assert [*found.values()] == [200, 421, 421, 421]


def test_it_listens_at_an_ipv6_address() -> None:
    """Whose browser writes it in brackets."""
    try:
        with serving(bind="::1") as server:
            answer = get(server)
            hosts = server.hosts()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    assert (answer.status, server.server_name) == (200, "[::1]")
    assert f"[::1]:{server.server_port}" in hosts


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * 65_600 + b" HTTP/1.1\r\n\r\n", "414"),
        (b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 101 + b"\r\n", "431"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 65_600 + b"\r\n\r\n", "431"),
        (b"GET <script> x HTTP/1.1\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00 is TLS\r\n\r\n", "400"),
        (b"GET / HTTP/9.9\r\n\r\n", "505"),
    ],
)
def test_what_no_browser_sends_is_refused_without_quoting_it(sent: bytes, status: str) -> None:
    """With the headers that every answer has; and the next one is served."""
    with serving() as server:
        answer = answer_to(server, sent)
        assert is_served(server)
    head, _, body = answer.partition("\r\n\r\n")
    line, *headers = head.split("\r\n")
    assert line.startswith(f"HTTP/1.0 {status} ")
    assert {f"{name}: {value}" for name, value in HEADERS} < {*headers}
    assert body == "this is no request that a browser sends\n"


def test_a_hundred_headers_are_taken() -> None:
    """As many as browsers and proxies never send."""
    with serving() as server:
        head = f"GET / HTTP/1.1\r\nHost: localhost:{server.server_port}\r\n"
        assert "200 OK" in answer_to(server, head.encode() + b"X: 1\r\n" * 98 + b"\r\n")


class Dripping(threading.Thread):
    """Clients that send a byte of a header now and then, and never end it, until they are cut off."""

    def __init__(self, clients: list[socket.socket]) -> None:
        super().__init__()
        self.cut: dict[socket.socket, float] = {}
        self._clients = clients
        self._begun = time.monotonic()

    def run(self) -> None:
        deadline = self._begun + SOON
        while len(self.cut) < len(self._clients) and time.monotonic() < deadline:
            for client in self._clients:
                if client not in self.cut:
                    try:
                        client.send(b"a")
                    except OSError:
                        self.cut[client] = time.monotonic() - self._begun
            time.sleep(0.02)


def test_slow_clients_are_cut_off_and_who_comes_meanwhile_is_told_at_once() -> None:
    """A byte in time does not prolong it: thirty-two clients that never end keep others out for so long."""
    assert (PageServer.most, PageServer.patience) == (32, 10.0)
    with serving(patience=3.0) as server, ExitStack() as stack:
        clients = [stack.enter_context(open_socket(server, b"GET / HTTP/1.1\r\nX: ")) for _ in range(32)]
        assert wait_until(lambda: len(server._ends) == 32, SOON)
        dripping = Dripping(clients)
        dripping.start()
        refused = answer_to(server, b"")
        assert wait_until(lambda: is_served(server), SOON)
        dripping.join(2 * SOON)

    line, *headers = refused.partition("\r\n\r\n")[0].split("\r\n")
    assert line == "HTTP/1.0 503 Service Unavailable"
    assert {f"{name}: {value}" for name, value in HEADERS} < {*headers}
    assert refused.endswith("\r\n\r\ntoo many connections are open; try again in some seconds\n")
    assert len(dripping.cut) == 32


def test_a_client_that_does_not_read_is_cut_off() -> None:
    """More than the sockets keep is waiting to be sent, and its thread with it."""

    def long(_environ: Environ, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [bytes(1 << 26)]

    with serving(long, patience=1.0) as server:
        request = f"GET / HTTP/1.1\r\nHost: localhost:{server.server_port}\r\n\r\n".encode()
        with open_socket(server, request) as client:
            assert client.recv(1) == b"H"
            assert wait_until(lambda: not server._ends, SOON)
            received = 0
            with suppress(ConnectionResetError):
                while data := client.recv(1 << 20):
                    received += len(data)
    assert received < 1 << 26


@pytest.mark.parametrize("sent", ["GET / HT", "GET / HTTP/1.1\r\nHost: localhost:{}\r\n\r\n"])
def test_a_client_that_goes_away_leaves_no_trace(
    sent: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In its request, or while the page is made: browsers do it with each reload."""
    inside = threading.Event()
    gone = threading.Event()

    def waiting(environ: Environ, start_response: Any) -> Iterable[bytes]:
        inside.set()
        assert gone.wait(SOON)
        return page(environ, start_response)

    with serving(waiting) as server:
        with open_socket(server, sent.format(server.server_port).encode()) as client:
            assert wait_until(lambda: len(server._ends) == 1, SOON)
            assert "Host" not in sent or inside.wait(SOON)
            # Closed so, it is reset.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()
        assert wait_until(lambda: not server._ends, SOON)
        assert is_served(server)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_failure_of_the_server_itself_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And it serves the next one."""

    def fail(*_: object) -> None:
        raise ValueError("hush")

    with serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr(server, "finish_request", fail)
            assert answer_to(server, b"") == ""
        assert is_served(server)
    assert [record.getMessage() for record in caplog.records] == ["a request to the page failed"]


def test_a_port_that_is_taken_is_an_error_of_its_own() -> None:
    """Two servers never share a port."""
    with PageServer("127.0.0.1", 0) as server, pytest.raises(OSError, match="in use"):
        PageServer("127.0.0.1", server.server_port)

"""A request that nobody waits for any more must not be carried out later."""

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from celery_redislock.locks import Lock
from celery_redislock.locks.clock import boottime
from celery_redislock.locks.connection import Connections, connect_by, reset_on_close
from celery_redislock.locks.urls import pool_of
from celery_redislock.locks.watchdog import watchdog_of
from tests.stores import RedisCase, server_names, start_server, wait_until

#: Keeps a server from reading anything for some tenths of a second. Counted: time stands still in a script.
BUSY = "for _ = 1, 5e7 do end"

#: Sent again and again, until a part of it stays with the sender because nobody reads.
REQUEST = b"x" * (1 << 20)


class Greeter:
    """A server's end that answers a greeting of two commands, and reads nothing until it is told to."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._peer: socket.socket
        self._thread = threading.Thread(target=self._greet, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens; with protocol 3 the greeting would need more of an answer."""
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0?protocol=2"

    def _greet(self) -> None:
        self._peer, _ = self._listener.accept()
        self._peer.settimeout(20)
        self._peer.sendall(b"+OK\r\n" * 2)

    def read_all(self) -> tuple[int, bool]:
        """Return how many bytes have come, and whether they ended by a reset."""
        self._thread.join(20)
        size = 0
        try:
            while data := self._peer.recv(1 << 20):
                size += len(data)
        except ConnectionResetError:
            return size, True
        return size, False

    def close(self) -> None:
        """Close both sockets."""
        self._listener.close()
        self._peer.close()


@pytest.fixture
def greeter() -> Iterator[Greeter]:
    greeter = Greeter()
    yield greeter
    greeter.close()


def _give_up(connection: Any) -> None:
    connection.disconnect()


def _be_killed(connection: Any) -> None:
    """End as a killed process does, where nobody but the system closes its sockets."""
    socket.close(connection._sock.detach())


@pytest.mark.parametrize("end", [_give_up, _be_killed])
def test_what_has_not_been_delivered_when_its_connection_is_closed_never_is(
    greeter: Greeter, end: Callable[[Any], None]
) -> None:
    """Laws 2 and 9: a claim that arrived after its release would hold the key for an hour, for nothing."""
    connection = Connections(pool_of(greeter.url), socket_timeout=20.0).take()
    connect_by(connection, boottime() + 20, patience=20.0, clock=boottime)
    sent = _send_until_full(connection._sock)

    end(connection)
    received, is_reset = greeter.read_all()

    assert is_reset
    assert received < sent


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and epoll is what is told of")
@pytest.mark.parametrize("name", [name for name in server_names() if "://" not in name])
def test_a_release_does_not_overtake_the_request_that_it_takes_back(name: str) -> None:
    """Law 2: the hold would be taken after its release, and keep its key until it expires.

    Timeline without the promise::

        open B is answered by the server last, which is busy then
        the lock is asked for on A; a signal ends the waiting for its reply
        its release is written on B, and read first
        the request on A is read
    """
    with start_server(name) as server, closing(RedisCase(server.redis_url, socket_timeout=20.0)) as case:
        case.client.config_set("lua-time-limit", 60_000)
        with Lock(case.redis, "n"):
            pass  # the server knows the scripts now
        connections = case.redis._connections
        asked, last = connections.take(), connections.take()
        for one in (asked, last):
            connect_by(one, boottime() + 20, patience=20.0, clock=boottime)
        asked.read_response = _interrupted
        last.send_command("CLIENT", "REPLY", "SKIP")
        last.send_command("EVAL", BUSY, 0)
        connections.give_back(last)
        connections.give_back(asked)
        assert wait_until(lambda: _state_of(server.pid) == "R", 10)

        with pytest.raises(Interrupted):
            Lock(case.redis, "n").acquire()

        assert wait_until(lambda: watchdog_of(case.redis).owes == 0, 20)
        assert case.redis.inspect("n") is None
        assert case.keys() == []


class Interrupted(Exception):  # noqa: N818  not an error
    """What a signal's handler raises."""


def _interrupted(*_: object, **__: object) -> None:
    raise Interrupted


def _state_of(pid: int) -> str:
    """Whether a process is at work (``R``) or asleep (``S``), as proc(5) tells."""
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]


def test_a_socket_without_a_network_is_left_as_it_is() -> None:
    """A Unix socket keeps nothing back; no end of it may stumble over what only TCP knows."""
    here, there = socket.socketpair()

    with here, there:
        reset_on_close(here)
        here.sendall(b"x")
        here.close()
        reset_on_close(here)

        assert there.recv(2) == b"x"
        assert there.recv(2) == b""


def _send_until_full(sock: socket.socket) -> int:
    sock.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += sock.send(REQUEST)
    return sent

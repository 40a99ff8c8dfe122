"""Redlock of five servers: its waits, counted, and its time against one server and against bare sockets."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count, pairwise
from typing import Any

from benchmarks.cores import Place, pin
from benchmarks.pairs import Figure, ratios, rounds

#: Seconds by which each trip is longer: an answer that comes sooner is held back.
DELAY = 0.001

_ABOUT = '{"host":"somewhere","pid":1,"since":0.0,"state":"running"}'
_numbers = count(1)


def redlock(places: Sequence[Place], *, quick: bool) -> list[Figure]:
    """A Lock's cycle (acquire, write the fence back, release) on five servers that nobody else uses."""
    from celery_redislock.embedded import EmbeddedServer
    from celery_redislock.locks import connect

    times, cycles = (2, 20) if quick else (41, 50)
    figures = []
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer(port=0)) for _ in range(5)]
        urls = [server.url for server in servers]
        store = connect(urls)
        cycle = _by_lock(store)
        cycle("to warm up")
        figures.append(Figure("redlock of 5: waits a cycle", [_waits(store, cycle)], 3, unit=""))
        for place in places:
            pin(place.client, os.getpid())
            pin(place.server, *(server.pid for server in servers))
            contenders = {"ours": cycle, "bare": _bare(store, [server.port for server in servers])}
            found = rounds(times, {name: _wall(once, cycles) for name, once in contenders.items()})
            figures += [
                Figure(
                    f"{place.name}: redlock of 5 / bare sockets", ratios(found, "wall", "ours", "bare"), 1.6
                ),
                *(
                    Figure(
                        f"{place.name}:   {name}", [value * 1e6 for value in found[name]["wall"]], unit="us"
                    )
                    for name in found
                ),
            ]
        # Where they are now: on two cores, if there are as many.
        one = connect(urls[0])
        contenders = {"redlock of 5": cycle, "one server": _by_lock(one)}
        contenders["one server"]("to warm up")
        for connections in (one.connections, *store._servers):
            _wrap(connections, _Far)
        found = rounds(times, {name: _wall(once, cycles) for name, once in contenders.items()})
        shares = ratios(found, "wall", "redlock of 5", "one server")
    return [
        *figures,
        Figure("1 ms a trip: redlock of 5 / one server", shares, 1.8),
        *(Figure(f"  {name}", [value * 1e6 for value in found[name]["wall"]], unit="us") for name in found),
    ]


def _by_lock(store: Any) -> Callable[[str], None]:
    from celery_redislock.locks import Lock

    def once(name: str) -> None:
        lock = Lock(store, name)
        assert lock.acquire(0)
        assert lock.release()

    return once


def _bare(store: Any, ports: Sequence[int]) -> Callable[[str], None]:
    """The requests of a cycle, five at a time over five sockets, and their answers, which nobody reads."""
    sockets = [socket.create_connection(("127.0.0.1", port)) for port in ports]
    for each in sockets:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request = store._scripts._request
    week = store._strict_ms

    def once(name: str) -> None:
        base, index, token = store._base(name), f"{store.prefix}:index", f"job/{name}"
        lock, fence = f"{base}lock", f"{base}fence"
        terms = [f"{token}\0{_ABOUT}", "30000", name, "", "", "0", week]
        for each in (
            request("acquire", [lock, index, f"{base}mark:", f"{base}period", fence], terms),
            request("fence", [lock, fence], [f"{token}\0", "1", week]),
            request("release", [lock, index], [f"{token}\0", name, ""]),
        ):
            for sock in sockets:
                sock.sendall(each)
            for sock in sockets:
                assert sock.recv(16384)[:1] == b"+"

    return once


class _Noted:
    """A socket that notes what is called of it."""

    def __init__(self, sock: Any, said: list[str]) -> None:
        self.sock = sock
        self.said = said

    def __getattr__(self, name: str) -> Any:
        if name in {"sendall", "recv"}:
            self.said.append(name)
        return getattr(self.sock, name)


class _Far:
    """A socket whose answers come no sooner than a while after what was sent."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.due = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)

    def sendall(self, data: bytes) -> None:
        self.sock.sendall(data)
        self.due = time.perf_counter() + DELAY

    def recv(self, size: int) -> bytes:
        if (left := self.due - time.perf_counter()) > 0:
            time.sleep(left)
        return self.sock.recv(size)


def _wrap(connections: Any, wrapper: Callable[[Any], Any]) -> Any:
    """Put a wrapper around the socket of the connection at rest."""
    connection = connections.take()
    connection._sock = wrapper(connection._sock)
    connection.redislock_idle.append(connection)
    return connection


def _waits(store: Any, cycle: Callable[[str], None]) -> float:
    """How often a cycle listens after it has sent something: the waits that a network prolongs."""
    said: list[str] = []
    wrapped = [_wrap(each, lambda sock: _Noted(sock, said)) for each in store._servers]
    cycle("counted")
    for connection in wrapped:
        connection._sock = connection._sock.sock
    assert (said.count("sendall"), said.count("recv")) == (15, 15)
    return sum(before == "sendall" and after == "recv" for before, after in pairwise(said))


def _wall(once: Callable[[str], None], cycles: int) -> Callable[[], Mapping[str, float]]:
    def measure() -> Mapping[str, float]:
        names = [f"lock-{next(_numbers)}" for _ in range(cycles)]
        wall = time.perf_counter()
        for name in names:
            once(name)
        return {"wall": (time.perf_counter() - wall) / cycles}

    return measure

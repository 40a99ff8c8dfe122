"""Connections that something between the two ends has cut without a word, while nobody used them."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from celery_redislock.locks import aio, connect
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.store.store import Term
from celery_redislock.wire import loop
from tests.aio import play
from tests.clocks import AheadClock
from tests.faults import FaultyProxy, faulty_proxy
from tests.servers import EmbeddedServer
from tests.stores import ABOUT, RedisCase, granted

A, B = "job-a/1", "job-b/1"

#: Seconds: as long as a request waits whose connection was cut, and longer than any pause of this machine.
TIMEOUT = 3.0

#: Seconds after which a connection is made anew, as the documentation has it.
IDLE = 30.0


@contextmanager
def _without_a_timeout() -> Iterator[None]:
    before = time.monotonic()
    yield
    assert time.monotonic() - before < TIMEOUT / 2


@pytest.fixture
def clock() -> AheadClock:
    """By which the store of a test tells how long its connections have been idle."""
    return AheadClock()


@pytest.fixture
def case(proxy: FaultyProxy, clock: AheadClock, tcp_server: EmbeddedServer) -> Iterator[RedisCase]:
    """A store behind that network, and a client that sees the server itself."""
    with closing(RedisCase(proxy.url, client_url=tcp_server.url, socket_timeout=TIMEOUT)) as case:
        case.redis._scripts._clock = clock  # type: ignore[attr-defined]
        yield case


#: What is asked for after the pause.
REQUESTS: dict[str, Callable[[RedisStore], object]] = {
    "a script": lambda store: granted(store.acquire("n", B, 30.0, facts=ABOUT)),
    "a script with a bound of its own": lambda store: store.renew([Term("n", B, 30.0)], within=TIMEOUT),
    "commands, all at once": lambda store: [*store.holders_of_each(["n"])],
    "a command": lambda store: store.server_says("memory", "maxmemory_policy"),
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_after_half_a_minute_no_request_waits_for_a_connection_that_was_cut(
    case: RedisCase, proxy: FaultyProxy, clock: AheadClock, request_of: Callable[[RedisStore], object]
) -> None:
    """Law 10. Also where an answer that nobody waited for has not been read before."""
    for is_unread in (False, True):
        granted(case.redis.acquire("n", A, 30.0, facts=ABOUT))
        assert case.redis.release("n", A).released
        if is_unread:
            case.redis.mark_done("n", "message", 60.0)
        proxy.forget()
        clock.advance(IDLE)
        with _without_a_timeout():
            request_of(case.redis)
        case.redis.force_release("n")


def test_a_connection_is_kept_until_then(lone_case: RedisCase, clock: AheadClock) -> None:
    """Counted by the server: each request begins the time anew."""
    lone_case.redis._scripts._clock = clock  # type: ignore[attr-defined]
    connected = lone_case.client.info("stats")["total_connections_received"]  # type: ignore[index]
    for _ in range(3):
        clock.advance(IDLE - 1.0)
        granted(lone_case.redis.acquire("n", A, 30.0, facts=ABOUT))
        lone_case.redis.server_says("memory", "maxmemory_policy")
        clock.advance(IDLE - 1.0)
        assert lone_case.redis.release("n", A).released
    assert lone_case.client.info("stats")["total_connections_received"] == connected  # type: ignore[index]


def test_a_quorum_waits_for_none_of_its_servers(clock: AheadClock) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer(port=0)) for _ in range(3)]
        proxies = [stack.enter_context(faulty_proxy(each.port or 0)) for each in servers]
        quorum: Any = connect([each.url for each in proxies], socket_timeout=TIMEOUT)
        quorum._scripts._clock = clock
        granted(quorum.acquire("n", A, 30.0, facts=ABOUT))
        for proxy in proxies:
            proxy.forget()
        clock.advance(IDLE)
        with _without_a_timeout():
            assert quorum.release("n", A).released


def test_a_loop_does_not_wait_either(
    case: RedisCase, proxy: FaultyProxy, clock: AheadClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "boottime", clock)

    async def story(store: aio.Store) -> None:
        lock = aio.Lock(store, "n")
        await lock.acquire()
        proxy.forget()
        clock.advance(IDLE)
        with _without_a_timeout():
            assert await lock.release()

    play(case, story, proxy.url)


def test_the_kernel_looks_after_a_connection_that_is_silent(case: RedisCase) -> None:
    """It asks before the half minute is over, so that what forgets silent connections forgets ours less."""
    granted(case.redis.acquire("n", A, 30.0, facts=ABOUT))
    connection = case.redis.connections.take()  # type: ignore[union-attr]
    sock = connection._sock
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < IDLE

"""Requests and replies that get lost, on a network that a test controls."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import Lease, Lock
from celery_redislock.store.store import Mark, Term
from tests.facts import wait_until
from tests.faults import Fault, FaultyProxy
from tests.stores import ABOUT, RedisCase, granted, refused

A, B = "job-a/1", "job-b/1"

LOST = (Fault.REQUEST_LOST, Fault.REPLY_LOST)

#: Seconds; short, because some tests wait it out.
SOCKET_TIMEOUT = 0.5


@pytest.fixture
def case(proxy: FaultyProxy, tcp_server: EmbeddedServer) -> Iterator[RedisCase]:
    """A store behind the proxy; its raw client goes round it."""
    url = tcp_server.redis_url
    with closing(RedisCase(proxy.url, client_url=url, socket_timeout=SOCKET_TIMEOUT)) as case:
        case.store.inspect("n")
        # The server knows the scripts then: a fault would else meet the answer that it does not.
        case.redis.acquire("before", "job-0/1", 30.0, facts=ABOUT)
        case.redis.release("before", "job-0/1")
        yield case


def _acquire(case: RedisCase, token: str = A, ttl: float = 30.0) -> object:
    return case.redis.acquire("n", token, ttl, facts=ABOUT)


#: The verbs that write keys, with all the keys that they may write.
WRITES: Mapping[str, Callable[[RedisCase], object]] = {
    "acquire": lambda case: case.redis.acquire("n", A, 30.0, facts=ABOUT, period=60.0, message="m"),
    "renew": lambda case: case.redis.renew([Term("n", A, 30.0)]),
    "hand_on": lambda case: case.redis.hand_on("n", A, B, 30.0, facts=ABOUT, mark=Mark("m", 60.0)),
    "release": lambda case: case.redis.release("n", A, mark=Mark("m", 60.0)),
}


class TestLostMessages:
    """A lost message costs one more trip, never an answer."""

    @pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
    def test_a_grant_a_refusal_and_a_renewal_stay_what_they_are(
        self, proxy: FaultyProxy, case: RedisCase, fault: Fault
    ) -> None:
        """redis-py's own Lock waits out its orphan here: the repeated SET NX finds the first one's key."""
        proxy.fail(fault)
        answer = granted(_acquire(case, ttl=5.0))
        assert answer.repeated == (fault is Fault.REPLY_LOST)
        assert not answer.taken_over
        proxy.fail(fault)
        assert refused(_acquire(case, B)).hold.token == A
        proxy.fail(fault)
        assert case.redis.renew([Term("n", A, 10.0)]).renewed == [True]
        assert 5.0 < (case.remaining() or 0.0) <= 10.0
        assert proxy.fired == 3

    def test_a_release_whose_request_was_lost_is_a_release(self, proxy: FaultyProxy, case: RedisCase) -> None:
        _acquire(case)
        proxy.fail(Fault.REQUEST_LOST)
        assert case.redis.release("n", A).released
        assert case.remaining() is None

    def test_a_release_whose_reply_was_lost_says_that_it_was_repeated(
        self, proxy: FaultyProxy, case: RedisCase
    ) -> None:
        """Missing, by the first request or before it: the server cannot tell, the lease can."""
        grant = granted(_acquire(case))
        lease = Lease(case.redis, Term("n", A, 30.0), grant)
        proxy.fail(Fault.REPLY_LOST)
        answer = case.redis.release("n", A)
        assert (answer.released, answer.repeated) == (False, True)
        assert answer.gave_back(trusted=lease.trusted)

    def test_a_with_block_begins_and_ends_in_peace_when_both_replies_are_lost(
        self, proxy: FaultyProxy, case: RedisCase
    ) -> None:
        proxy.fail(Fault.REPLY_LOST)
        with Lock(case.redis, "n", wait=0) as lock:
            lock.check()
            proxy.fail(Fault.REPLY_LOST)
        assert (proxy.fired, case.remaining()) == (2, None)

    @pytest.mark.parametrize("losses", [1, 2])
    @pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
    @pytest.mark.parametrize("verb", WRITES)
    def test_no_key_is_without_an_end_whatever_got_lost(
        self, proxy: FaultyProxy, case: RedisCase, verb: str, fault: Fault, losses: int
    ) -> None:
        """SETNX, and the EXPIRE got lost: that lock stayed for ever."""
        if verb != "acquire":
            _acquire(case)
        proxy.fail(fault, at=range(1, losses + 1))
        with suppress(LockUnavailable):
            WRITES[verb](case)
        assert proxy.fired == losses
        case.check_every_key_expires()

    def test_two_losses_in_a_row_are_said(self, proxy: FaultyProxy, case: RedisCase) -> None:
        proxy.fail(Fault.REQUEST_LOST)
        proxy.fail(Fault.REPLY_LOST, at=(2,))
        with pytest.raises(LockUnavailable):
            _acquire(case)
        assert granted(_acquire(case)).repeated


class TestMarkDone:
    """Its answer is not awaited; whoever uses its connection next reads it."""

    @pytest.mark.parametrize("fault", [*LOST, Fault.SILENCE, Fault.BLACK_HOLE], ids=lambda fault: fault.name)
    def test_a_lost_answer_costs_the_next_request_a_new_connection_and_nothing_else(
        self, proxy: FaultyProxy, case: RedisCase, fault: Fault
    ) -> None:
        _acquire(case)
        proxy.fail(fault, of="mark_done")
        began = time.monotonic()
        case.redis.mark_done("n", "job-a/0", 60.0)
        waited = time.monotonic() - began
        assert wait_until(lambda: proxy.fired == 1, 10)
        assert case.redis.release("n", A).released
        assert waited < SOCKET_TIMEOUT
        assert time.monotonic() - began < 2 * SOCKET_TIMEOUT + 0.5

    def test_it_waits_for_no_slow_server(self, proxy: FaultyProxy, case: RedisCase) -> None:
        proxy.drag = 0.5 * SOCKET_TIMEOUT
        began = time.monotonic()
        case.redis.mark_done("n", "job-a/0", 60.0)
        assert time.monotonic() - began < 0.4 * SOCKET_TIMEOUT


class TestSlowServer:
    """Every answer comes, the handshake's too, each after a little less than the socket timeout."""

    @pytest.mark.parametrize("share", [0.6, 0.9])
    @pytest.mark.parametrize("db", [0, 3])
    def test_a_new_connection_costs_no_more_than_seven_socket_timeouts(
        self, proxy: FaultyProxy, tcp_server: EmbeddedServer, db: int, share: float
    ) -> None:
        """Law 9: redis-py bounds each answer to its greeting alone, and there are two to five of them."""
        proxy.drag = share * SOCKET_TIMEOUT
        url = f"{proxy.url.removesuffix('0')}{db}"
        with closing(RedisCase(url, client_url=tcp_server.redis_url, socket_timeout=SOCKET_TIMEOUT)) as case:
            began = time.monotonic()
            with suppress(LockUnavailable):
                _acquire(case)
            took = time.monotonic() - began
        assert took < 7 * SOCKET_TIMEOUT + 0.45

    def test_a_new_connection_to_a_distant_server_may_take_both(
        self, proxy: FaultyProxy, tcp_server: EmbeddedServer
    ) -> None:
        """Greeting, digest and text are six answers: a fifth of a timeout each is more than one."""
        proxy.drag = SOCKET_TIMEOUT / 5
        url, timeout = tcp_server.redis_url, SOCKET_TIMEOUT
        with closing(RedisCase(proxy.url, client_url=url, socket_timeout=timeout)) as case:
            case.client.script_flush()
            granted(_acquire(case))


class TestBlackHole:
    """Connections that open and stay open, and answer nothing."""

    def test_a_renewal_in_a_hurry_is_bounded_by_the_hurry(self, proxy: FaultyProxy, case: RedisCase) -> None:
        _acquire(case)
        proxy.black_hole()
        began = time.monotonic()
        with pytest.raises(LockUnavailable):
            case.redis.renew([Term("n", A, 30.0)], within=0.05)
        assert time.monotonic() - began < SOCKET_TIMEOUT

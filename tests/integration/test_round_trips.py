"""What a lock costs in trips, counted by the server itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_redislock.store.store import Mark, Renewal, Term
from tests.stores import ABOUT, FACTS, RedisCase, granted, refused
from tests.trips import Trips

A, B = "job-a/1", "job-b/1"


@pytest.fixture
def case(lone_case: RedisCase) -> RedisCase:
    """A store whose server, which nobody else asks, knows its scripts, and whose connection is open."""
    store = lone_case.redis
    granted(store.acquire("warm", A, 30.0, facts=ABOUT))
    store.renew([Term("warm", A, 30.0)])
    store.release("warm", A)
    store.hand_on("warm", A, B, 30.0, facts=ABOUT)
    store.inspect("warm")
    store.names()
    store.force_release("warm")
    return lone_case


@contextmanager
def _counted(case: RedisCase, **expected: int) -> Iterator[None]:
    trips = Trips(case.client)
    yield
    assert trips() == expected


def test_one_trip_to_acquire_and_one_to_release(case: RedisCase) -> None:
    with _counted(case, evalsha=1):
        answer = case.redis.acquire("n", A, 30.0, facts=ABOUT, period=60.0, message="message")
    granted(answer)
    with _counted(case, evalsha=1):
        assert case.redis.release("n", A, mark=Mark("message", 60.0)).released


def test_every_other_verb_takes_one_and_marking_awaits_none(case: RedisCase) -> None:
    """A refusal tells holder and remaining time in its one trip."""
    case.redis.acquire("n", A, 30.0, facts=ABOUT)
    with _counted(case, evalsha=5):
        hold = refused(case.redis.acquire("n", B, 30.0, facts=ABOUT)).hold
        case.redis.hand_on("n", A, B, 30.0, facts=ABOUT)
        case.redis.mark_done("n", "message", 60.0)
        case.redis.inspect("n")
        case.redis.names()
        case.redis.force_release("n", expected=B)
    assert (hold.token, hold.facts) == (A, FACTS)
    assert hold.expires_in > 25.0


def test_a_thousand_renewals_take_five(case: RedisCase) -> None:
    terms = [Term(f"n{number}", A, 30.0) for number in range(1000)]
    for term in terms:
        case.redis.acquire(term.name, A, 10.0, facts="{}")
    with _counted(case, evalsha=5):
        answer: Renewal = case.redis.renew(terms)
    assert list(answer.renewed) == [True] * 1000


def test_a_server_that_does_not_know_the_script_is_asked_twice(case: RedisCase) -> None:
    """EVALSHA, then EVAL, which cannot fail for want of the script; never SCRIPT LOAD and a third."""
    for _ in range(2):
        case.client.script_flush()
        with _counted(case, evalsha=1, eval=1):
            granted(case.redis.acquire("n", A, 30.0, facts=ABOUT))
        case.client.script_flush()
        with _counted(case, evalsha=1, eval=1):
            assert case.redis.renew([Term("n", A, 30.0)]).renewed == [True]
        case.client.script_flush()
        with _counted(case, evalsha=1, eval=1):
            assert case.redis.release("n", A).released

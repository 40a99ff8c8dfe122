"""Clients whose clock tells another time than the server's: nothing but what people read depends on it."""

import pytest

from celery_redislock.locks import Lock, Semaphore
from tests.integration.programs import run_program
from tests.stores import RedisCase

HOUR = 3600

#: Before anything is imported: the program's clock is wrong by so many seconds.
WRONG = """
import time
right, wrong_by = time.time, {}
time.time = lambda: right() + wrong_by
"""


@pytest.mark.parametrize("wrong_by", [-HOUR, HOUR])
def test_a_clock_that_is_an_hour_off_ends_no_hold_and_prolongs_none(
    plain_case: RedisCase, wrong_by: int
) -> None:
    """Expiries written by clients let who is ahead take, or evict, what others hold."""
    program = """
        assert not Lock(store, "n").acquire(timeout=0)
        seats = Semaphore(store, "seats", 3)
        assert seats.acquire(2, timeout=0) is None
        assert seats.available() == 1
        for name in ("n", "seats"):
            (hold,) = store.holders(name)
            assert 0.0 < hold.expires_in <= 30.0
        with seats, Lock(store, "own", ttl=30.0, wait=0) as lock:
            lock.check()
            assert 0.0 < lock.holder().expires_in <= 30.0
            print(lock.fence)
    """
    with (
        Lock(plain_case.redis, "own") as before,
        Lock(plain_case.redis, "n") as lock,
        Semaphore(plain_case.redis, "seats", 3).acquire(2) or pytest.fail("no place") as places,
    ):
        fence = before.fence
        before.release()
        told = run_program(program, plain_case.url, plain_case.prefix, first=WRONG.format(wrong_by))
        lock.check()
        places.check()
        assert lock.renew()
        assert before.acquire(timeout=0)
        assert fence is not None
        assert before.fence is not None
        assert fence < int(told) < before.fence


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_clock_that_is_set_meanwhile_changes_neither_a_wait_nor_a_hold(
    plain_case: RedisCase, step: int
) -> None:
    """A deadline by the wall clock is an hour early then, or an hour late."""
    program = """
        def set_clock():
            global wrong_by
            wrong_by = int(rest[0])

        with Lock(store, "own", ttl=10.0) as own:
            threading.Timer(0.3, set_clock).start()
            began = time.monotonic()
            assert not Lock(store, "n").acquire(timeout=1.0)
            waited = time.monotonic() - began
            assert wrong_by != 0
            assert 1.0 <= waited < 30.0, waited
            own.check()
    """
    with Lock(plain_case.redis, "n"):
        run_program(program, plain_case.url, plain_case.prefix, str(step), first=WRONG.format(0))
    assert plain_case.keys() == []

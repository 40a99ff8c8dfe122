"""Two clients and one lock, step by step: the orders in which widespread lock recipes break.

Each test names the recipe's mistake in its law; the numbers of steps are in
the order the server sees them. Expiry is brought about, never slept for.
"""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_redislock.locks.lease import new_token
from celery_redislock.store.store import Grant, LockStore, Refusal
from tests.facts import wait_until
from tests.stores import ABOUT, RedisCase, StoreCase, granted, refused

A, B, C = "job-a/1", "job-b/1", "job-c/1"


def test_a_holder_killed_right_after_acquiring_leaves_a_lock_that_ends(plain_case: RedisCase) -> None:
    """SETNX, then EXPIRE: killed between the two, the lock stays for ever."""
    program = textwrap.dedent(
        """
        import os, signal, sys
        from celery_redislock.locks import connect
        store = connect(sys.argv[1], prefix=sys.argv[2])
        store.acquire("n", "job-a/1", 30.0, facts="{}")
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, plain_case.url, plain_case.prefix], check=False, timeout=60
    )

    assert done.returncode == -signal.SIGKILL
    assert plain_case.holder() == A
    assert 0 < (plain_case.remaining() or 0.0) <= 30.0


@pytest.mark.parametrize("waiters", [1, 20])
def test_waiters_never_touch_a_dead_holders_end(case: StoreCase, waiters: int) -> None:
    """Waiters that heal a missing TTL, or GETSET the expiry, push a dead holder's end away for ever."""
    case.take(A, 5.0)
    for _ in range(3):
        for number in range(waiters):
            refused(case.take(f"waiter-{number}/1", 3600.0))
    assert (case.remaining() or 99.0) <= 5.0
    case.expire()
    granted(case.take(B))


def test_a_waiter_polling_to_the_last_moment_gets_the_lock_at_its_end(plain_case: RedisCase) -> None:
    """A TTL rounded down to 0 s looked like none, and was set anew in the last half second."""
    plain_case.take(A, 0.3)
    tokens = iter(f"waiter/{number}" for number in range(100_000))
    assert wait_until(lambda: type(plain_case.take(next(tokens))).__name__ == "Grant", 5)


def test_a_lock_that_goes_while_it_is_asked_for_is_no_error(plain_case: RedisCase) -> None:
    """SETNX fails, the holder releases, GET answers nothing: one script sees one state."""
    over, answers, deadline = threading.Event(), Counter[type](), time.monotonic() + 30
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(_come_and_go, plain_case.redis, over)
        try:
            while min(answers[Grant], answers[Refusal]) < 50 and time.monotonic() < deadline:
                answer = plain_case.redis.acquire("n", B, 30.0, facts=ABOUT)
                answers[type(answer)] += 1
                assert isinstance(answer, Grant) or refused(answer).hold.owner == "job"
                plain_case.redis.release("n", B)
        finally:
            over.set()
    assert others.result() > 0
    assert min(answers[Grant], answers[Refusal]) >= 50


def _come_and_go(store: LockStore, over: threading.Event) -> int:
    """Hold the lock again and again, each time under another token; return how often it was ours."""
    held = 0
    while not over.is_set():
        token = new_token("job")
        held += isinstance(store.acquire("n", token, 30.0, facts=ABOUT), Grant)
        store.release("n", token)
    return held

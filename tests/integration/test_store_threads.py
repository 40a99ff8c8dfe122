"""Threads of one store: twenty that use it, the watchdog's, and a main thread that signals interrupt."""

import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

from celery_redislock.locks import Lease, Lock
from celery_redislock.locks.clock import boottime
from celery_redislock.locks.store import Grant, Term
from celery_redislock.locks.watchdog import watchdog_of
from tests.facts import wait_until
from tests.integration.programs import run_program
from tests.stores import ABOUT, RedisCase


def test_a_callback_about_a_loss_may_take_locks(plain_case: RedisCase) -> None:
    """It runs in the watchdog's thread, which renews nothing meanwhile."""
    taken: list[str] = []

    def lost(lock: Lock) -> None:
        with Lock(plain_case.redis, f"after-{lock.name}", ttl=5.0):
            taken.append(lock.name)

    locks = [Lock(plain_case.redis, f"n{number}", ttl=0.9, on_lost=lost) for number in range(5)]
    for lock in locks:
        lock.acquire()
        plain_case.redis.force_release(lock.name)

    assert wait_until(lambda: len(taken) == 5, 10)
    assert [lock.release() for lock in locks] == [False] * 5
    assert plain_case.keys() == []


def test_a_token_that_no_server_can_be_asked_about_costs_its_own_lease_only(plain_case: RedisCase) -> None:
    """Laws 1 and 3: one such header in a worker's queue must not cost all its runs their locks."""
    locks = [Lock(plain_case.redis, f"n{number}", ttl=0.9) for number in range(3)]
    for lock in locks:
        lock.acquire()
    now, watchdog = boottime(), watchdog_of(plain_case.redis)
    broken = Lease(plain_case.redis, Term("broken", "\ud800", 0.9), Grant(1, False, now, now))
    watchdog.watch(broken)

    assert wait_until(lambda: broken.lost, 10)
    before = watchdog.renewals
    assert wait_until(lambda: watchdog.renewals > before + 3, 10)
    assert broken.token not in watchdog._watched
    assert "UnicodeEncodeError" in (broken.lost_because or "")
    assert [lock.release() for lock in locks] == [True] * 3
    assert plain_case.keys() == []


def test_a_signal_in_the_middle_of_a_request_leaves_no_connection_out_of_step(plain_case: RedisCase) -> None:
    """A soft time limit raises at any moment; a late answer must not be taken for the next one's."""
    program = """
        import random, signal

        class Interrupted(Exception):
            pass

        def handle(*_):
            raise Interrupted

        signal.signal(signal.SIGALRM, handle)
        came, end = 0, time.monotonic() + 100
        while came < 200:
            assert time.monotonic() < end, f"only {came} signals"
            token = f"job/{came}"
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.001))
                for _ in range(1000):  # not for ever: where a __del__ runs, the error is swallowed
                    store.mark_done("n", token, 5.0)
                    store.acquire("n", token, 5.0, facts="{}")
                    store.release("n", token)
            except Interrupted:
                came += 1
            store.release("n", token)
            assert store.acquire("n", "next/1", 5.0, facts='{"host": "here"}').fence
            assert store.inspect("n").facts == {"host": "here"}
            assert store.release("n", "next/1").released
    """
    run_program(textwrap.dedent(program), plain_case.url, plain_case.prefix, timeout=110)

    keys = plain_case.keys()
    assert [key for key in keys if ":mark:" not in key] == []


def test_twenty_threads_share_one_store(plain_case: RedisCase) -> None:
    """Law 1, within one process: never two grants for one name at once, and every answer is one's own."""
    inside = 0
    most = 0
    guard = threading.Lock()

    def work(worker: int) -> int:
        nonlocal inside, most
        grants = 0
        for turn in range(40):
            token = f"worker-{worker}/{turn}"
            if isinstance(plain_case.redis.acquire("n", token, 30.0, facts=ABOUT), Grant):
                grants += 1
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1
                assert plain_case.redis.release("n", token).released
            mine = f"own-{worker}"
            assert isinstance(plain_case.redis.acquire(mine, token, 30.0, facts=ABOUT), Grant)
            assert plain_case.redis.release(mine, token).released
        return grants

    with ThreadPoolExecutor(20) as pool:
        grants = list(pool.map(work, range(20)))

    assert sum(grants) > 0
    assert most == 1
    assert plain_case.keys() == []

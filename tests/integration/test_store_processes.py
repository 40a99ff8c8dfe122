"""One store, many threads, and processes that fork."""

import threading
from concurrent.futures import ThreadPoolExecutor

from celery_redislock.locks import Lock
from celery_redislock.locks.store import Grant
from tests.facts import wait_until
from tests.programs import run_program
from tests.stores import ABOUT, RedisCase


def test_a_forked_child_speaks_on_a_connection_of_its_own(plain_case: RedisCase) -> None:
    """Two processes on one socket read each other's replies."""
    run_program(
        """
        store.acquire("n", "job/1", 30.0, facts="{}")
        mine = connection_id()

        def child():
            assert connection_id() != mine
            assert store.inspect("n").token == "job/1"
            store.close()

        in_child(child)
        assert connection_id() == mine
        assert store.release("n", "job/1").released
        """,
        plain_case.url,
        plain_case.prefix,
    )


def test_a_forked_child_holds_nothing_of_its_parents(plain_case: RedisCase) -> None:
    """Its thread-locals are copies; its release, or its renewal, would be its parent's."""
    run_program(
        """
        lock = Lock(store, "n", ttl=30.0)
        with lock:
            watched = watchdog_of(store)

            def child():
                assert not lock.held and lock.fence is None
                assert not lock.acquire(timeout=0)
                lock.__exit__(SystemExit, SystemExit(0), None)

            in_child(child)
            lock.check()
            assert lock.holder() is not None
        assert lock.holder() is None
        """,
        plain_case.url,
        plain_case.prefix,
    )


def test_leases_are_renewed_on_both_sides_of_a_fork(plain_case: RedisCase) -> None:
    """A thread does not survive a fork: the child starts a watchdog of its own, the parent's goes on."""
    run_program(
        """
        parents = Lock(store, "parent", ttl=2.4)
        parents.acquire()

        def child():
            watchdog = watchdog_of(store)
            before = watchdog.renewals
            with Lock(store, "child", ttl=2.4):
                until(lambda: watchdog.renewals >= before + 2)

        in_child(child)
        before = watchdog_of(store).renewals
        until(lambda: watchdog_of(store).renewals >= before + 2)
        parents.check()
        assert parents.release()
        """,
        plain_case.url,
        plain_case.prefix,
    )


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


def test_threads_waiting_for_one_lock_all_get_their_turn(plain_case: RedisCase) -> None:
    lock = Lock(plain_case.redis, "n", timeout=30.0)
    turns: list[int] = []

    def work(worker: int) -> None:
        with lock:
            before = len(turns)
            turns.append(worker)
            assert len(turns) == before + 1

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(work, range(5)))

    assert sorted(turns) == [0, 1, 2, 3, 4]
    assert wait_until(lambda: plain_case.keys() == [], 5)

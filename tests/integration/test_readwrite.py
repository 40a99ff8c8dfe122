"""A read-write lock: many that read or one that writes, in one line, and no thread waits for itself."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_redislock import LockLost
from celery_redislock.exceptions import LockUpgradeError
from celery_redislock.locks import Lock, ReadWriteLock, Semaphore
from tests.stores import RedisCase, StoreCase
from tests.waiters import PATIENCE, in_line


def book(case: StoreCase, **options: Any) -> ReadWriteLock:
    """A lock named ``n``."""
    return ReadWriteLock(case.store, "n", **{"wait": PATIENCE, **options})


def elsewhere(ask: Callable[[], Any]) -> Any:
    """What another thread is answered."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result(PATIENCE)


def test_many_read_at_once_or_one_writes(case: StoreCase) -> None:
    """Law 1, in every order; a Lock of that name writes."""
    with book(case).read as mine:
        assert elsewhere(lambda: book(case).read.acquire(timeout=0))
        assert not elsewhere(lambda: book(case).write.acquire(timeout=0))
        assert not elsewhere(lambda: Lock(case.store, "n").acquire(timeout=0))
        assert mine.fence is None
        assert len(case.store.holders("n")) == 2
        assert {hold.facts["mode"] for hold in case.store.holders("n")} == {"read"}
    for hold in case.store.holders("n"):
        case.store.release("n", hold.token)
    with book(case).write as mine:
        assert mine.fence is not None
        assert not elsewhere(lambda: book(case).read.acquire(timeout=0))
        assert not elsewhere(lambda: book(case).write.acquire(timeout=0))
        assert not elsewhere(lambda: Semaphore(case.store, "n", 9).acquire(timeout=0))
    with Lock(case.store, "n"):
        assert not elsewhere(lambda: book(case).read.acquire(timeout=0))
    assert case.store.holders("n") == ()


def test_readers_behind_a_writer_that_waits_wait_and_start_together(case: StoreCase) -> None:
    """One line, in order: nobody starves, and those at the head that may be together are."""
    order: list[str] = []
    together = threading.Barrier(2, timeout=PATIENCE)

    def read() -> None:
        with book(case).read:
            together.wait()
            order.append("read")

    def write() -> None:
        with book(case).write:
            order.append("write")

    reads = book(case).read
    reads.acquire()
    with in_line(case, write, read, read, write):
        assert not elsewhere(lambda: book(case).read.acquire(timeout=0))
        reads.release()
    assert order == ["write", "read", "read", "write"]


def test_a_thread_reads_again_although_a_writer_waits(case: StoreCase) -> None:
    """It would wait for the writer, and that for it."""
    mine = book(case)
    with mine.read, in_line(case, book(case).write.acquire) as (writes,):
        with mine.read:
            mine.read.check()
        assert mine.read.held
        mine.read.release()
        assert writes.result(PATIENCE)
        mine.read.acquire(timeout=0)
        for hold in case.store.holders("n"):
            case.store.release("n", hold.token)
        assert mine.read.acquire(timeout=0)


def test_a_writer_may_read_and_reads_on_when_it_has_released_the_write(case: StoreCase) -> None:
    """Its own read asks nobody; from then on others may read beside it, and none may write."""
    mine = book(case)
    with mine.write, mine.read:
        assert (mine.write.held, mine.read.held) == (True, True)
        assert len(case.store.holders("n")) == 1
    assert case.store.holders("n") == ()
    mine.write.acquire()
    token = case.holder()
    mine.read.acquire()
    assert mine.write.release()
    assert (mine.write.held, mine.read.held, case.holder()) == (False, True, token)
    with in_line(case, book(case).write.acquire) as (writes,):
        mine.read.check()
        assert mine.read.release()
        assert writes.result(PATIENCE)


def test_a_downgrade_keeps_the_token_and_lets_those_read_that_are_first(case: StoreCase) -> None:
    """In one step, so that nobody writes in between."""
    mine = book(case)
    with mine.write as writes:
        token = case.holder()
        with in_line(case, book(case).read.acquire, book(case).write.acquire) as (reads, waits):
            assert writes.downgrade()
            assert reads.result(PATIENCE)
            assert not waits.done()
            assert (mine.write.held, mine.read.held, mine.read.fence) == (False, True, None)
            tokens = {hold.token for hold in case.store.holders("n")}
            assert token in tokens
            assert len(tokens) == 2
            mine.read.check()
            with pytest.raises(RuntimeError, match="does not hold"):
                writes.downgrade()
            case.store.release("n", (tokens - {token}).pop())
            mine.read.acquire()
            mine.read.release()
            mine.read.release()
            assert waits.result(PATIENCE)
        mine.read.acquire(timeout=0)
        case.store.release("n", case.holder() or "")
        mine.read.acquire(timeout=0)
    assert not mine.read.held
    assert case.store.holders("n") == ()


def test_a_thread_that_reads_may_not_ask_to_write(case: StoreCase) -> None:
    """Two that did so would wait for each other; nothing is sent. Nor may one that writes twice downgrade."""
    mine = book(case)
    with mine.read:
        before = case.store.holders("n")
        with pytest.raises(LockUpgradeError, match="release the read lock first"):
            mine.write.acquire()
        with pytest.raises(LockUpgradeError), mine.write:
            pytest.fail("it writes")
        assert case.store.waiting("n")[0] == 0
        assert [hold.token for hold in case.store.holders("n")] == [hold.token for hold in before]
    with mine.write, mine.write:
        with pytest.raises(RuntimeError, match="2 times"):
            mine.write.downgrade()
        assert mine.write.held


def test_a_downgrade_of_a_write_that_is_gone_says_so(case: StoreCase) -> None:
    """Somebody else may have written: the read that it would go on as is lost."""
    mine = book(case)
    mine.write.acquire()
    case.store.release("n", case.holder() or "")
    assert not mine.write.downgrade()
    with pytest.raises(LockLost):
        mine.read.check()
    assert not mine.read.release()
    assert case.store.holders("n") == ()


def test_a_lost_answer_to_a_downgrade_leaves_a_reader(plain_case: RedisCase, monkeypatch: Any) -> None:
    """Others may read by then, so it never believes that it writes."""
    mine = book(plain_case)
    mine.write.acquire()

    def away(*_: Any, **__: Any) -> Any:
        raise TimeoutError("no answer")

    monkeypatch.setattr(plain_case.store, "downgrade", away)
    with pytest.raises(TimeoutError):
        mine.write.downgrade()
    assert (mine.write.held, mine.read.held) == (False, True)
    assert mine.read.release()
    assert plain_case.store.holders("n") == ()

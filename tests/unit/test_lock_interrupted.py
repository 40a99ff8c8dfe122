"""``Lock``, interrupted by a signal's handler at every point where Python lets one in."""

import threading
from collections.abc import Callable
from itertools import count

import pytest

from celery_redislock.locks import Lock, MemoryStore, watchdog
from celery_redislock.locks.watchdog import watchdog_of
from tests.facts import wait_until
from tests.interrupts import interrupted_at


@pytest.fixture(autouse=True)
def _short_lived_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point is tried on a store of its own, whose watchdog need not stay."""
    monkeypatch.setattr(watchdog, "LINGER", 0.1)


def _points(action: Callable[[Lock], object], *, holds: int = 0) -> list[tuple[Lock, MemoryStore]]:
    """Interrupt an action at each of its points, every time on a lock that was entered so often before."""
    tried: list[tuple[Lock, MemoryStore]] = []
    for point in count(1):
        store = MemoryStore()
        lock = Lock(store, "n", timeout=0.0)
        _another_thread_gets_through(store)  # and its watchdog's thread is there
        for _ in range(holds):
            lock.acquire()
        if not interrupted_at(point, lambda lock=lock: action(lock)):  # type: ignore[misc]  # bound at once
            assert point > 20, "the action was hardly seen"
            return tried
        tried.append((lock, store))
        assert wait_until(lambda store=store: watchdog_of(store).owes == 0, 5)  # type: ignore[misc]
        _another_thread_gets_through(store)
    raise AssertionError


def _another_thread_gets_through(store: MemoryStore) -> None:
    """What an interrupt left locked would stop the watchdog, and every lease of the process with it."""
    thread = threading.Thread(target=lambda: Lock(store, "other").__enter__().release(), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_an_acquire_that_raises_has_taken_nothing() -> None:
    for number, (lock, store) in enumerate(_points(Lock.acquire), 1):
        assert not lock.held, number
        assert wait_until(lambda store=store: store.inspect("n") is None, 5), number  # type: ignore[misc]
        assert not any(each.lease.held for each in watchdog_of(store)._schedule._watched.values()), number


def test_a_block_that_cannot_be_entered_holds_nothing() -> None:
    for number, (lock, store) in enumerate(_points(Lock.__enter__), 1):
        assert not lock.held, number
        assert wait_until(lambda store=store: store.inspect("n") is None, 5), number  # type: ignore[misc]


def test_entering_again_counts_only_if_it_comes_to_its_end() -> None:
    """One entry too many, and the outer block would not release."""
    for number, (lock, store) in enumerate(_points(Lock.acquire, holds=1), 1):
        assert lock.release(), number
        assert not lock.held, number
        assert store.inspect("n") is None, number


def test_a_release_is_carried_out_or_has_not_begun() -> None:
    """Its holder may ask ``held``, and release again; never is renewed what nobody can release any more."""
    for number, (lock, store) in enumerate(_points(Lock.release, holds=1), 1):
        if lock.held:
            assert lock.release(), number
        assert wait_until(lambda store=store: store.inspect("n") is None, 5), number  # type: ignore[misc]
        assert not any(each.lease.held for each in watchdog_of(store)._schedule._watched.values()), number


def test_hardly_anything_of_a_release_comes_before_it_is_carried_out() -> None:
    still_held = [lock for lock, _ in _points(Lock.release, holds=1) if lock.held]

    assert len(still_held) < 15


def test_an_interrupted_renewal_leaves_the_lock_held() -> None:
    for number, (lock, store) in enumerate(_points(lambda lock: lock.renew(60.0), holds=1), 1):
        assert lock.held, number
        assert lock.release(), number
        assert store.inspect("n") is None, number

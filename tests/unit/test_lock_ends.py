"""``Lock``: every way a hold can end, and what its block, its holder and the server are left with."""

from typing import Any

import pytest

from celery_redislock.exceptions import LockLost, LockUnavailable
from celery_redislock.locks import Lock
from tests.clocks import ManualClock
from tests.facts import wait_until
from tests.scripted import FailingStore, lock_on


class TestLoss:
    def test_a_block_that_lost_its_lock_does_not_end_in_peace(
        self, store: FailingStore, clock: ManualClock, lock: Lock
    ) -> None:
        def body() -> None:
            with lock:
                clock.advance(31.0)
                assert lock_on(store, clock, owner="next").acquire(timeout=0)

        with pytest.raises(LockLost):
            body()

        hold = store.inspect("n")
        assert hold is not None
        assert hold.owner == "next"

    def test_the_bodys_own_error_goes_through_unchanged(self, clock: ManualClock, lock: Lock) -> None:
        """Busy, lost and unavailable never mask it."""
        error = ValueError("the body's own")

        def body(pause: float) -> None:
            with lock:
                clock.advance(pause)
                raise error

        for pause in (0.0, 31.0):
            with pytest.raises(ValueError, match="the body's own") as caught:
                body(pause)
            assert caught.value is error

    def test_not_even_a_server_that_is_away_masks_it(self, store: FailingStore, lock: Lock) -> None:
        error = ValueError("the body's own")

        def body() -> None:
            with lock:
                store.fails = frozenset({"release"})
                raise error

        with pytest.raises(ValueError, match="the body's own") as caught:
            body()
        assert caught.value is error

        store.fails = frozenset()
        assert wait_until(lambda: store.inspect("n") is None, 10)

    def test_a_lost_hold_is_not_entered_again(self, clock: ManualClock, lock: Lock) -> None:
        """A new term for the inner block would let the outer one go on as if nothing had happened."""
        lock.acquire()
        clock.advance(31.0)
        with pytest.raises(LockLost):
            lock.acquire(timeout=0)

        assert not lock.release()
        assert lock.acquire(timeout=0)

    def test_on_lost_is_told_the_lock(self, store: FailingStore, clock: ManualClock) -> None:
        told: list[Lock] = []
        lock = lock_on(store, clock, on_lost=told.append)
        lock.acquire()
        clock.advance(31.0)
        with pytest.raises(LockLost):
            lock.check()

        assert told == [lock]
        assert not lock.release()
        assert told == [lock]


class TestServerAway:
    def test_what_an_unanswered_acquire_took_is_given_back_later(
        self, store: FailingStore, lock: Lock
    ) -> None:
        store.fails = frozenset({"acquire", "release"})
        with pytest.raises(LockUnavailable):
            lock.acquire()
        assert store.inspect("n") is not None
        assert not lock.held

        store.fails = frozenset()
        assert wait_until(lambda: store.inspect("n") is None, 10)

    def test_what_an_interrupted_acquire_took_is_given_back_later(
        self, store: FailingStore, lock: Lock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C between the request and its answer."""
        real = store.acquire

        def interrupted(*args: Any, **kwargs: Any) -> None:
            real(*args, **kwargs)
            raise KeyboardInterrupt

        monkeypatch.setattr(store, "acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()

        assert wait_until(lambda: store.inspect("n") is None, 10)

    def test_what_could_not_be_released_is_released_later(self, store: FailingStore, lock: Lock) -> None:
        lock.acquire()
        store.fails = frozenset({"release"})
        with pytest.raises(LockUnavailable):
            lock.release()
        assert not lock.held

        store.fails = frozenset()
        assert wait_until(lambda: store.inspect("n") is None, 10)

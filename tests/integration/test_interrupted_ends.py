"""``on_lock_lost="terminate"`` at the very end of a body: what it must never hit is our own release."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redislock import LockLost
from celery_redislock.connection import use_store
from celery_redislock.interrupt import INTERRUPT_SIGNAL
from tests.unit.shop import Shop

ROUNDS = 500


@pytest.fixture
def shop() -> Iterator[Shop]:
    """Everything in memory."""
    shop = Shop()
    yield shop
    use_store(shop.app, None)
    shop.app.close()


class Loser:
    """Takes a lease away after a while that comes nearer and nearer to its body's end, from both sides."""

    def __init__(self) -> None:
        self.delay = 0.0005
        self._step = 0.0001
        self._thread = threading.Thread()

    def begin(self, lease: Any) -> None:
        """Start to wait."""
        at = time.perf_counter() + self.delay

        def lose() -> None:
            while time.perf_counter() < at:
                pass
            lease.lose("taken away")

        self._thread = threading.Thread(target=lose)
        self._thread.start()

    def end(self, *, was_in_time: bool) -> None:
        """Wait for the thread, and come later next time, or earlier."""
        self._thread.join(10)
        self.delay = max(0.0, self.delay + (self._step if was_in_time else -self._step))
        self._step = max(0.000002, self._step * 0.97) if random.random() > 0.02 else 0.0001  # noqa: S311


def _in_this_thread(call: Callable[[], None]) -> None:
    call()


def _in_another(call: Callable[[], None]) -> None:
    raised: list[BaseException] = []

    def catching() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  handed to the test
            raised.append(error)

    thread = threading.Thread(target=catching)
    thread.start()
    thread.join(100)
    assert raised == []


@pytest.mark.parametrize("where", [_in_this_thread, _in_another], ids=["main thread", "pool thread"])
def test_a_loss_at_the_very_end_ends_the_body_or_nothing(shop: Shop, where: Any) -> None:
    """Law 3: whenever it comes, the lock is given back once and no handler or exception stays behind."""
    loser, seen = Loser(), {"ended": 0, "lost": 0}
    assert INTERRUPT_SIGNAL is not None
    before = signal.getsignal(INTERRUPT_SIGNAL)

    def body(task: Any) -> str:
        loser.begin(task.lease)
        for _ in range(2000):
            pass
        return "done"

    task = shop.unique(body, bind=True, on_lock_lost="terminate")

    def rounds() -> None:
        for number in range(ROUNDS):
            task.apply_async(task_id=f"t{number}")
            shop.store.calls.clear()
            outcome = shop.run()
            was_lost = isinstance(outcome, LockLost)
            loser.end(was_in_time=was_lost)
            seen["lost" if was_lost else "ended"] += 1
            assert was_lost or outcome == "done", (number, outcome)
            assert shop.store.calls.count("release") == 1, (number, outcome, shop.store.calls)
            assert shop.held() == {}

    where(rounds)

    assert min(seen.values()) > ROUNDS / 10, seen
    assert signal.getsignal(INTERRUPT_SIGNAL) in {before, signal.SIG_IGN}

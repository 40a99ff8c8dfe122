"""``on_lock_lost="terminate"`` at the very end of a body: what it must never hit is our own release."""

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redislock import LockLost
from celery_redislock.interrupt import INTERRUPT_SIGNAL
from tests.unit.shop import Shop, open_shop

ROUNDS = 200
#: Seconds no round takes.
DEADLINE = 10.0


@pytest.fixture(autouse=True)
def _threads_that_give_way() -> Iterator[None]:
    """Let a thread that has something to do wait for no more than a moment."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.00002)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def shop() -> Iterator[Shop]:
    """Everything in memory."""
    with open_shop() as shop:
        yield shop


class Loser:
    """Takes a lease away after a while that comes nearer and nearer to its body's end, from both sides."""

    def __init__(self) -> None:
        self._lease: Any = None
        self._delay = 0.0015
        self._step = 0.0001
        self._thread = threading.Thread()

    def wait(self) -> None:
        """Wait for a lease in a thread, which the body must not start: that is no place to be interrupted."""
        self._lease = None
        self._thread = threading.Thread(target=self._lose)
        self._thread.start()

    def begin(self, lease: Any) -> None:
        """Take this one away soon."""
        self._lease = lease

    def end(self, *, was_in_time: bool) -> None:
        """Come later next time, or earlier."""
        self._thread.join(DEADLINE)
        self._delay = max(0.0, self._delay + (self._step if was_in_time else -self._step))
        self._step = max(0.000002, self._step * 0.97) if random.random() > 0.02 else 0.0001  # noqa: S311

    def _lose(self) -> None:
        give_up = time.monotonic() + DEADLINE
        while self._lease is None and time.monotonic() < give_up:
            time.sleep(0.00002)
        at = time.perf_counter() + self._delay
        while time.perf_counter() < at:
            pass
        self._lease.lose("taken away")


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
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass
        return "done"

    task = shop.unique(body, bind=True, on_lock_lost="terminate")

    def rounds() -> None:
        for number in range(ROUNDS):
            task.apply_async(task_id=f"t{number}")
            shop.store.calls.clear()
            loser.wait()
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

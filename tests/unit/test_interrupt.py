"""Raising ``LockLost`` inside a body, and never after it."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_redislock.exceptions import LockLost
from celery_redislock.interrupt import INTERRUPT_SIGNAL, interruptible
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.memory import MemoryStore
from celery_redislock.locks.store import Grant, Term

ROUNDS = 2_000_000
assert INTERRUPT_SIGNAL is not None
SIGNAL: signal.Signals = INTERRUPT_SIGNAL


def lease() -> Lease:
    store = MemoryStore()
    grant = store.acquire("account:7", "t1/x", 30, about={})
    assert isinstance(grant, Grant)
    return Lease(store, Term("account:7", "t1/x", 30), grant)


def lose(held: Lease, interrupt: Callable[[], None]) -> None:
    """What the watchdog's thread does."""

    def watchdog() -> None:
        held.lose("taken away")
        interrupt()

    thread = threading.Thread(target=watchdog)
    thread.start()
    thread.join()


def body_interrupted(held: Lease) -> int:
    """Run a body that loses its lease; return how far it came."""
    rounds = [0]

    def body() -> None:
        with interruptible(held) as interrupt:
            lose(held, interrupt)
            for rounds[0] in range(ROUNDS):
                pass

    with pytest.raises(LockLost) as raised:
        body()

    assert (raised.value.key, raised.value.reason, raised.value.fence) == (held.key, "taken away", held.fence)
    return rounds[0]


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except BaseException as error:  # noqa: BLE001  handed to the test
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def test_a_body_in_the_main_thread_ends_at_once() -> None:
    assert body_interrupted(lease()) < ROUNDS - 1


def test_a_body_in_a_thread_ends_at_its_next_bytecode() -> None:
    assert in_thread(lambda: body_interrupted(lease())) < ROUNDS - 1


@pytest.mark.parametrize("where", [lambda call: call(), in_thread], ids=["main", "thread"])
def test_an_interrupt_that_comes_after_the_body_hits_nothing(where: Any) -> None:
    """What it must not hit is the release."""

    def run() -> str:
        held = lease()
        with interruptible(held) as interrupt:
            pass
        lose(held, interrupt)
        return "released"

    assert where(run) == "released"


@pytest.mark.parametrize("where", [lambda call: call(), in_thread], ids=["main", "thread"])
def test_the_bodys_own_error_is_its_own(where: Any) -> None:
    def run() -> None:
        with interruptible(lease()):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        where(run)


def test_the_signal_of_somebody_else_is_passed_on() -> None:
    """A handler that was there before, and a lease that is not lost."""
    heard = []
    before = signal.signal(SIGNAL, lambda number, _frame: heard.append(number))
    try:
        with interruptible(lease()):
            signal.raise_signal(SIGNAL)
        signal.raise_signal(SIGNAL)
    finally:
        signal.signal(SIGNAL, before)

    assert heard == [SIGNAL] * 2


def test_afterwards_a_late_signal_is_not_deadly() -> None:
    before = signal.signal(SIGNAL, signal.SIG_DFL)
    try:
        with interruptible(lease()):
            pass
        signal.raise_signal(SIGNAL)
    finally:
        signal.signal(SIGNAL, before)

"""Raising ``LockLost`` inside a body, and never after it."""

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from celery_redislock.exceptions import LockLost
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.memory import MemoryStore
from celery_redislock.locks.store import Grant, Term
from celery_redislock.running import interrupt as interrupting
from celery_redislock.running.interrupt import INTERRUPT_SIGNAL, run_interruptible

ROUNDS = 2_000_000
assert INTERRUPT_SIGNAL is not None
SIGNAL: signal.Signals = INTERRUPT_SIGNAL


#: What interrupts the body, once it is offered.
Interrupts = list[Callable[[], None]]


def nothing() -> None:
    """End at once."""


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


def body_over(held: Lease) -> None:
    """Run a body that loses its lease when it is over, and before anything is switched off."""
    interrupts = Interrupts()

    def body() -> None:
        lose(held, interrupts[0])

    with suppress(LockLost):
        run_interruptible(held, body, interrupts.append)


def body_interrupted(held: Lease) -> int:
    """Run a body that loses its lease; return how far it came."""
    rounds, interrupts = [0], Interrupts()

    def body() -> None:
        lose(held, interrupts[0])
        for rounds[0] in range(ROUNDS):
            pass

    with pytest.raises(LockLost) as raised:
        run_interruptible(held, body, interrupts.append)

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


def test_a_signal_that_wakes_nobody_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came after the body's last look for signals, and before the sleep it should have ended."""
    held, interrupts, sent = lease(), Interrupts(), []
    kill = signal.pthread_kill

    def send_but_the_first(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            kill(thread, number)

    def body() -> None:
        lose(held, interrupts[0])
        assert not threading.Event().wait(60), "nobody sets it"

    monkeypatch.setattr(signal, "pthread_kill", send_but_the_first)
    with pytest.raises(LockLost):
        run_interruptible(held, body, interrupts.append)

    assert sent[:2] == [SIGNAL, SIGNAL]


def test_a_signal_is_not_sent_again_to_a_body_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    over = threading.Event()
    monkeypatch.setattr(signal, "pthread_kill", lambda _, number: sent.append(number))
    monkeypatch.setattr(interrupting.time, "sleep", lambda _: over.wait(10))

    body_over(lease())
    over.set()
    for thread in threading.enumerate():
        if thread.name == "redislock-interrupt":
            thread.join(10)

    assert sent == [SIGNAL]


def test_a_body_in_the_main_thread_ends_at_once() -> None:
    assert body_interrupted(lease()) < ROUNDS - 1


def test_a_body_in_a_thread_ends_at_its_next_bytecode() -> None:
    assert in_thread(lambda: body_interrupted(lease())) < ROUNDS - 1


@pytest.mark.parametrize("where", [lambda call: call(), in_thread], ids=["main", "thread"])
def test_an_interrupt_that_comes_after_the_body_hits_nothing(where: Any) -> None:
    """What it must not hit is the release."""

    def run() -> str:
        held, interrupts = lease(), Interrupts()
        run_interruptible(held, nothing, interrupts.append)
        lose(held, interrupts[0])
        return "released"

    assert where(run) == "released"


@pytest.mark.parametrize("where", [lambda call: call(), in_thread], ids=["main", "thread"])
def test_the_bodys_own_error_is_its_own(where: Any) -> None:
    def body() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        where(lambda: run_interruptible(lease(), body, Interrupts().append))


@pytest.mark.parametrize("where", [lambda call: call(), in_thread], ids=["main", "thread"])
def test_a_lease_lost_before_the_body_begins_lets_none_begin(where: Any) -> None:
    held = lease()
    held.lose("taken away")
    begun = []

    with pytest.raises(LockLost, match="taken away"):
        where(lambda: run_interruptible(held, lambda: begun.append("body"), Interrupts().append))
    assert begun == []


@pytest.mark.parametrize("where", [lambda call: call(), in_thread], ids=["main", "thread"])
def test_an_interrupt_that_hits_the_switching_off_is_the_last(
    where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the body's last bytecode and before anything is switched off: it is switched off all the same.

    A context manager made of a generator was left suspended there, its handler in place.
    """
    before = signal.signal(SIGNAL, lambda *_: None)
    mine = signal.getsignal(SIGNAL)
    held, interrupts = lease(), Interrupts()
    _interrupted_once(monkeypatch, lambda: lose(held, interrupts[0]))

    def run() -> str:
        with pytest.raises(LockLost) as raised:
            run_interruptible(held, nothing, interrupts.append)
        assert type(raised.value) is LockLost
        for _ in range(1000):
            pass
        return "released"

    try:
        assert where(run) == "released"
        assert signal.getsignal(SIGNAL) is mine
    finally:
        signal.signal(SIGNAL, before)


def _interrupted_once(monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], None]) -> None:
    """Let the first call of each way's ``end`` be interrupted before it has done anything."""
    came: list[Any] = []
    for way in (interrupting._Signal, interrupting._AsyncException):
        end = way.end

        def interrupted(self: Any, end: Callable[[Any], None] = end) -> None:
            if not came:
                came.append(self)
                interrupt()
            end(self)

        monkeypatch.setattr(way, "end", interrupted)


@pytest.mark.parametrize("body", [body_interrupted, body_over])
def test_an_interrupted_thread_leaves_the_interpreter_as_it_was(body: Callable[[Lease], object]) -> None:
    """Before CPython 3.13 an exception taken back stays announced to all threads until another is raised.

    All of them run slower from then on, and with a profiler or a debugger 3.11 does not get into any
    function again (``Python/ceval.c``, 3.11.7, ``DO_TRACING``: ``CHECK_EVAL_BREAKER`` comes back to itself).
    """
    in_thread(lambda: body(lease()))

    # A handler of C: one of Python could not be entered either.
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 5.0)
    try:
        sys.setprofile(lambda *_: None)
        nothing()
    except KeyboardInterrupt:
        sys.setprofile(None)
        pytest.fail("no function can be entered")
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_the_signal_of_somebody_else_is_passed_on() -> None:
    """A handler that was there before, and a lease that is not lost."""
    heard = []
    before = signal.signal(SIGNAL, lambda number, _frame: heard.append(number))
    try:
        run_interruptible(lease(), lambda: signal.raise_signal(SIGNAL), Interrupts().append)
        signal.raise_signal(SIGNAL)
    finally:
        signal.signal(SIGNAL, before)

    assert heard == [SIGNAL] * 2


def test_afterwards_a_late_signal_is_not_deadly() -> None:
    before = signal.signal(SIGNAL, signal.SIG_DFL)
    try:
        run_interruptible(lease(), nothing, Interrupts().append)
        signal.raise_signal(SIGNAL)
    finally:
        signal.signal(SIGNAL, before)

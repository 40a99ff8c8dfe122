"""``on_lock_lost="terminate"``: raising ``LockLost`` inside a running body, from the watchdog's thread.

In a pool child and in the solo pool the body runs in the main thread, where a
signal's handler can raise out of sleeps and socket calls at once. In a thread
it can only be raised at the next bytecode (``PyThreadState_SetAsyncExc``), and
in a greenlet at its next switch. Never after the body has ended: what the
interruption must not hit is our own release.
"""

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from celery_redislock.exceptions import LockLost
from celery_redislock.locks.lease import Lease

__all__ = ["interruptible"]

#: Celery's own are SIGUSR1 (soft time limit, billiard 4.3.2) and, only when asked for, SIGUSR2 (rdb).
INTERRUPT_SIGNAL = getattr(signal, "SIGUSR2", None)


@contextmanager
def interruptible(lease: Lease) -> Iterator[Callable[[], None]]:
    """Run a body that another thread can interrupt; yields the function that does.

    Raises:
        LockLost: inside the body, with the lease's facts; a body that swallows it goes on.
    """
    greenlet = _current_greenlet()
    if greenlet is not None:
        way: Any = _greenlet_way(greenlet, lease)
    elif threading.current_thread() is threading.main_thread() and INTERRUPT_SIGNAL is not None:
        way = _signal_way(lease)
    else:
        way = _thread_way(lease)
    body = threading.get_ident()
    with way as interrupt:
        # The body's own thread learns of a loss from check(), which raises.
        yield lambda: None if threading.get_ident() == body else interrupt()


@contextmanager
def _signal_way(lease: Lease) -> Iterator[Callable[[], None]]:
    """The main thread: a signal to it, whose handler looks at the lease first."""
    body = threading.get_ident()
    is_on = True

    def handle(number: int, frame: FrameType | None) -> None:
        if is_on and lease.lost:
            raise _lost(lease)
        if callable(previous):
            previous(number, frame)

    def interrupt() -> None:
        if is_on:
            signal.pthread_kill(body, INTERRUPT_SIGNAL)  # type: ignore[arg-type]  # checked by the caller

    previous = signal.signal(INTERRUPT_SIGNAL, handle)  # type: ignore[arg-type]  # checked by the caller
    try:
        yield interrupt
    finally:
        # A signal on its way now finds the handler, which finds the body over; ignored, not deadly.
        is_on = False
        signal.signal(INTERRUPT_SIGNAL, previous if callable(previous) else signal.SIG_IGN)  # type: ignore[arg-type]


@contextmanager
def _thread_way(lease: Lease) -> Iterator[Callable[[], None]]:
    """A pool thread: an exception set by another thread, raised at the next bytecode."""
    body = ctypes.c_ulong(threading.get_ident())
    switch = threading.Lock()
    lost = _lost_in_thread(lease)
    state = {"on": True, "sent": False}

    def interrupt() -> None:
        with switch:
            if state["on"]:
                state["sent"] = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(body, ctypes.py_object(lost))

    try:
        try:
            yield interrupt
        finally:
            with switch:
                state["on"] = False
            _take_in(pending=state["sent"])
    except lost as error:
        # That class lives in this process only: it would not survive a pickle.
        raise _lost(lease) from error


def _lost_in_thread(lease: Lease) -> type[LockLost]:
    """Make the error for one lease: the interpreter creates it without arguments."""

    def init(self: LockLost) -> None:
        LockLost.__init__(self, *_lost(lease).args)

    return type(LockLost.__name__, (LockLost,), {"__init__": init})


def _take_in(*, pending: bool) -> None:
    """Let an exception that was sent as the body ended arrive here, and not inside the release.

    Clearing does nothing where it has been raised already.
    """
    if pending:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)


@contextmanager
def _greenlet_way(greenlet: Any, lease: Lease) -> Iterator[Callable[[], None]]:
    """A greenlet: thrown into it by the hub, at its next switch."""
    state = {"on": True}

    def throw() -> None:
        if state["on"]:
            greenlet.throw(_lost(lease))

    def interrupt() -> None:
        _in_hub(throw)

    try:
        yield interrupt
    finally:
        state["on"] = False


def _current_greenlet() -> Any:
    """The greenlet the body runs in, under gevent or eventlet; ``None`` elsewhere."""
    patched = [name for name in ("gevent.monkey", "eventlet.patcher") if name in sys.modules]
    greenlet = sys.modules.get("greenlet")
    if not patched or greenlet is None:
        return None
    current = greenlet.getcurrent()
    return current if current.parent is not None else None


def _in_hub(throw: Callable[[], None]) -> None:
    if "gevent.hub" in sys.modules:
        sys.modules["gevent.hub"].get_hub().loop.run_callback(throw)
    else:
        sys.modules["eventlet.hubs"].get_hub().schedule_call_global(0, throw)


def _lost(lease: Lease) -> LockLost:
    return LockLost(lease.key, lease.lost_because or "unknown", lease.fence)

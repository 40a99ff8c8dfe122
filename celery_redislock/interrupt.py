"""``on_lock_lost="terminate"``: raising ``LockLost`` inside a running body, from the watchdog's thread.

In a pool child and in the solo pool the body runs in the main thread, where a
signal's handler can raise out of sleeps and socket calls at once. In a thread
it can only be raised at the next bytecode (``PyThreadState_SetAsyncExc``), and
in a greenlet at its next switch. Never after the body has ended: what the
interruption must not hit is our own release.

It may hit whatever runs between the body's last bytecode and the moment it is
switched off, that is, the switching off itself. So it comes once, and the
switching off is tried twice: a context manager made of a generator would be
left suspended there with its handler in place (measured: about one in a
thousand losses that came just then).
"""

import ctypes
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from celery_redislock.exceptions import LockLost
from celery_redislock.locks.lease import Lease

__all__ = ["run_interruptible"]

T = TypeVar("T")

#: Seconds after which a signal that changed nothing is sent again; then after twice as long, and so on.
AGAIN = 0.05
#: How often it is sent again: over about three seconds.
TIMES = 6

#: Celery's own are SIGUSR1 (soft time limit, billiard 4.3.2) and, only when asked for, SIGUSR2 (rdb).
INTERRUPT_SIGNAL = getattr(signal, "SIGUSR2", None)


def run_interruptible(
    lease: Lease, body: Callable[[], T], offer: Callable[[Callable[[], None]], object]
) -> T:
    """Run a body that another thread can interrupt, in this one.

    Args:
        lease: whose loss ends it.
        body: what is run.
        offer: is given the function that interrupts, before the body begins. It may be called in any
            thread and at any time; in the body's own, and when the body is over, it does nothing.

    Raises:
        LockLost: inside the body, with the lease's facts; a body that swallows it goes on.
    """
    way = _way(lease)
    try:
        try:
            way.begin()
            offer(way.interrupt)
            if lease.lost:
                raise _lost(lease)  # before there was a body to interrupt
            return body()
        finally:
            way.end()  # the interruption may hit here
    except way.error as error:
        raise _lost(lease) from error
    finally:
        way.end()  # and then not here


class _Way(ABC):
    """One way to interrupt."""

    #: What it raises, where that is not the error itself.
    error: type[BaseException] | tuple[()] = ()

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._body = threading.get_ident()
        self._is_on = False

    def begin(self) -> None:
        """Switch on."""
        self._is_on = True

    def interrupt(self) -> None:
        """Interrupt the body, if it is on."""
        # Its own thread learns of a loss from check(), which raises.
        if threading.get_ident() != self._body:
            self._send()

    def end(self) -> None:
        """Switch off; done in full by the second call at the latest."""
        self._is_on = False

    @abstractmethod
    def _send(self) -> None:
        """Interrupt the body from another thread."""


class _Signal(_Way):
    """The main thread: a signal to it, whose handler looks at the lease first."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease)
        self._has_raised = False
        self._previous: Any = signal.getsignal(INTERRUPT_SIGNAL)  # type: ignore[arg-type]  # see _way

    def begin(self) -> None:
        signal.signal(INTERRUPT_SIGNAL, self._handle)  # type: ignore[arg-type]  # see _way
        super().begin()

    def end(self) -> None:
        # A signal on its way now finds the handler, which finds the body over; ignored, not deadly.
        super().end()
        if signal.getsignal(INTERRUPT_SIGNAL) == self._handle:  # type: ignore[arg-type]  # see _way
            before = self._previous if callable(self._previous) else signal.SIG_IGN
            signal.signal(INTERRUPT_SIGNAL, before)  # type: ignore[arg-type]  # see _way

    def _send(self) -> None:
        # Timeline of a signal that wakes nobody: the body looks for signals for the last time before it
        # sleeps; the signal comes, and CPython notes it for the next look; the body's thread enters the
        # kernel, which knows of nothing to wake it for. Seen once, in a worker stopped and continued.
        if self._is_on:
            self._kill()
            # Not in the watchdog's thread, which has other leases to renew.
            threading.Thread(target=self._insist, name="redislock-interrupt", daemon=True).start()

    def _insist(self) -> None:
        for number in range(TIMES):
            time.sleep(AGAIN * 2**number)
            if not self._is_on or self._has_raised:
                return
            self._kill()

    def _kill(self) -> None:
        signal.pthread_kill(self._body, INTERRUPT_SIGNAL)  # type: ignore[arg-type]  # see _way

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_on and self._lease.lost and not self._has_raised:
            self._has_raised = True
            raise _lost(self._lease)
        if callable(self._previous):
            self._previous(number, frame)


class _AsyncException(_Way):
    """A pool thread: an exception set by another thread, raised at the next bytecode."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease)
        self.error = _lost_in_thread(lease)
        # Reentrant: interrupted just when it has got it, end() has it for good, and gets it again.
        self._switch = threading.RLock()
        self._was_sent = False

    def end(self) -> None:
        with self._switch:
            super().end()
            if self._was_sent:
                # Sent as the body ended, it must not arrive inside the release.
                self._replace()
                self._was_sent = False

    def _replace(self) -> None:
        """Let an exception arrive here in place of the one that was sent, if that is still on its way.

        Not taken back (with ``NULL``): before CPython 3.13 it would stay announced to every thread until
        another is raised, which slows all of them down, and a profiler stops them on 3.11
        (``Python/ceval.c``, ``_PyEval_SignalAsyncExc``, and ``DO_TRACING`` in 3.11.7).
        """
        with suppress(_Replacement):
            self._set(_Replacement)
            for _ in range(1000):
                pass

    def _send(self) -> None:
        if not self._is_on:
            return
        with self._switch:
            if self._is_on:
                self._was_sent = True
                self._set(self.error)

    def _set(self, error: Any) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._body), ctypes.py_object(error))


class _Replacement(BaseException):
    """Arrives instead of an interruption that came too late."""


class _Throw(_Way):
    """A greenlet: thrown into it by the hub, at its next switch."""

    def __init__(self, lease: Lease, greenlet: Any) -> None:
        super().__init__(lease)
        self._greenlet = greenlet

    def _send(self) -> None:
        _in_hub(self._throw)

    def _throw(self) -> None:
        if self._is_on:
            self._greenlet.throw(_lost(self._lease))


def _way(lease: Lease) -> _Way:
    greenlet = _current_greenlet()
    if greenlet is not None:
        return _Throw(lease, greenlet)
    if threading.current_thread() is threading.main_thread() and INTERRUPT_SIGNAL is not None:
        return _Signal(lease)
    return _AsyncException(lease)


def _lost_in_thread(lease: Lease) -> type[LockLost]:
    """Make the error for one lease: the interpreter creates it without arguments.

    That class lives in this process only, and would not survive a pickle.
    """

    def init(self: LockLost) -> None:
        LockLost.__init__(self, *_lost(lease).args)

    return type(LockLost.__name__, (LockLost,), {"__init__": init})


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

"""``on_lock_lost="terminate"``: raising ``LockLost`` inside a running body, from the watchdog's thread.

Only where the body runs in the main thread, as in a prefork child and in the solo pool: there the handler
of a signal can raise out of sleeps and socket calls. In other pools only ``lease.check()`` raises, and a
worker says so when it starts.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal, TypeVar

from celery_redislock.exceptions import LockLost
from celery_redislock.locks.lease import Lease
from celery_redislock.running.run import Run

T = TypeVar("T")

#: Celery's own are SIGUSR1 (soft time limit, billiard 4.3.2) and, only when asked for, SIGUSR2 (rdb).
#: Windows has neither.
INTERRUPT_SIGNAL: Any = getattr(signal, "SIGUSR2", None)


def run_interruptible(run: Run, body: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a body, which the loss of its lease interrupts where it runs in the main thread.

    Raises:
        LockLost: inside the body, with the lease's facts; a body that swallows it continues.
    """
    is_in_main_thread = threading.current_thread() is threading.main_thread()
    if run.lease is None or not is_in_main_thread or INTERRUPT_SIGNAL is None:
        return body(*args, **kwargs)
    interrupt = _Interrupt(run.lease)
    try:
        try:
            interrupt.begin()
            run.interrupt = interrupt.send
            if run.lease.lost:
                raise _lost(run.lease)  # before there was a body to interrupt
            return body(*args, **kwargs)
        finally:
            interrupt.end()  # the signal may be handled here
    finally:
        interrupt.end()  # and then not here: it raises once


class _Interrupt:
    """A signal to the main thread, whose handler looks at the lease first."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._state: Literal["off", "on", "raised"] = "off"
        self._previous: Any = signal.getsignal(INTERRUPT_SIGNAL)

    def begin(self) -> None:
        """Handle the signal from now on."""
        signal.signal(INTERRUPT_SIGNAL, self._handle)
        self._state = "on"

    def send(self) -> None:
        """Interrupt the body if it runs; called in the thread that learns of the loss.

        The body's own thread learns of it in ``check()``, which raises by itself.
        """
        main = threading.main_thread()
        if self._state == "on" and main.ident is not None and threading.current_thread() is not main:
            signal.pthread_kill(main.ident, INTERRUPT_SIGNAL)

    def end(self) -> None:
        """Handle the signal no more; one that is on its way finds the body ended."""
        self._state = "off"
        if signal.getsignal(INTERRUPT_SIGNAL) == self._handle:
            # Not the default, which would end the process.
            signal.signal(INTERRUPT_SIGNAL, self._previous if callable(self._previous) else signal.SIG_IGN)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._state == "on" and self._lease.lost:
            self._state = "raised"
            raise _lost(self._lease)
        if callable(self._previous):
            self._previous(number, frame)


def _lost(lease: Lease) -> LockLost:
    return LockLost(lease.key, lease.lost_because or "unknown", lease.fence)

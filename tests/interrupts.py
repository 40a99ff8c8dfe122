"""An exception at a chosen point, as a signal's handler raises it: Ctrl-C, a soft time limit.

CPython runs handlers of signals when a function begins and when a call has
returned (and between turns of loops). A profiler is told of exactly these
moments, so that every one of them can be tried, one after the other.
"""

import gc
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Interrupt", "Interrupted", "interrupted_at"]

#: Where interrupts are tried: this package, and the library its locks are from where that works for it.
_OURS, _THREADING = str(Path(__file__).parents[1] / "celery_redislock"), str(threading.__file__)


class Interrupted(Exception):  # noqa: N818  as SoftTimeLimitExceeded and KeyboardInterrupt
    """An ordinary exception, as ``SoftTimeLimitExceeded`` is."""


class Interrupt:
    """Raises :class:`Interrupted` once, at the n-th point of this thread after :meth:`arm`.

    The return to a caller outside the package is no such point: what is raised then is the caller's.
    The garbage collector is off meanwhile: what is raised in the ``__del__`` of some object of another
    test is ignored by the interpreter, and interrupts nothing.

    Attributes:
        has_struck: it has been raised.
    """

    def __init__(self, point: int) -> None:
        self._left = point
        self.has_struck = False

    def arm(self) -> None:
        """Count from now on."""
        gc.disable()
        sys.setprofile(self._look)

    def disarm(self) -> None:
        """Raise nothing any more."""
        sys.setprofile(None)
        gc.enable()

    def _look(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event not in {"call", "return", "c_return"} or not _is_tried(frame):
            return
        if event == "return" and not _is_tried(frame.f_back):
            return
        self._left -= 1
        if not self._left:
            self.disarm()
            self.has_struck = True
            raise Interrupted


def interrupted_at(point: int, action: Callable[[], object]) -> bool:
    """Run an action and interrupt it at its n-th point; false if it came to its end before."""
    interrupt = Interrupt(point)
    interrupt.arm()
    try:
        action()
    except Interrupted:
        assert interrupt.has_struck
    finally:
        interrupt.disarm()
    return interrupt.has_struck


def _is_tried(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename == _THREADING:
        frame = frame.f_back
    if frame is None:
        return False
    code = frame.f_code
    if code.co_flags & inspect.CO_GENERATOR or code.co_filename.endswith("/task.py"):
        # One that is being closed is told as called, and the other is called from Celery's own code, too.
        return False
    return code.co_filename.startswith(_OURS)

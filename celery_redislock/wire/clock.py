"""The clock of leases, and which values count as a time."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeGuard

#: Seconds from an arbitrary start, never set back.
Clock: TypeAlias = Callable[[], float]

_NUMBERS = (int, float)


def _boottime() -> Clock:
    # time.monotonic stops in a suspend on Linux (clock_gettime(2)), and would let a holder trust a lease that
    # is long gone. Other systems have no better clock, and a library that fakes the time may refuse this one.
    try:
        time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic
    return partial(time.clock_gettime, time.CLOCK_BOOTTIME)


#: Seconds since boot, suspends included: a lease expires on its server while this machine sleeps.
boottime: Clock = _boottime()


def is_seconds(value: object) -> TypeGuard[float]:
    """Whether this is a number and a time: neither a truth value, as other locks take one, nor NaN."""
    return isinstance(value, _NUMBERS) and value.__class__ is not bool and value == value  # noqa: PLR0124

"""The one clock leases are measured with on this side."""

import sys
import time
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Clock", "boottime"]

#: Seconds from an arbitrary start, never set back.
Clock: TypeAlias = Callable[[], float]


if sys.platform == "linux":

    def boottime() -> float:
        """Return seconds since boot, suspends included.

        A lease goes on expiring on its server while this machine sleeps; ``time.monotonic`` stops
        then on Linux (clock_gettime(2)), and would let a holder trust a lease that is long gone.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def boottime() -> float:
        """Return seconds from an arbitrary start, never set back."""
        return time.monotonic()

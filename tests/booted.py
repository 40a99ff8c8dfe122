"""A machine that has booted some seconds ago: ``BOOTED=0.05 python -m pytest -p tests.booted``.

The clock of leases counts from the boot of the machine (``celery_redislock/wire/clock.py``). Nothing may
depend on how long ago that was. With ``-p`` pytest imports this module before that clock is bound, in each of
its processes.
``unshare --time --boottime``, where it is allowed, reaches the programs that a test starts as well.
"""

import os
import sys
import time

assert "celery_redislock.wire.clock" not in sys.modules, "the clock is bound already"

_of_the_machine = {"clock_gettime": time.clock_gettime, "monotonic": time.monotonic}
_shift = float(os.environ["BOOTED"]) - time.clock_gettime(time.CLOCK_BOOTTIME)


def _clock_gettime(clock: int) -> float:
    now: float = _of_the_machine["clock_gettime"](clock)
    return now + _shift if clock in {time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC} else now


def _monotonic() -> float:
    return _clock_gettime(time.CLOCK_MONOTONIC)


time.clock_gettime = _clock_gettime
time.monotonic = _monotonic

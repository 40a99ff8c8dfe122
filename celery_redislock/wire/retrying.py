"""Asking the lock server until it answers: for callers that can wait, and have nothing else to do."""

import time
from collections.abc import Callable
from typing import TypeVar

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.wire.clock import Clock, boottime

T = TypeVar("T")

#: Seconds between two attempts: the first pause, and the longest.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0


def keep_trying(
    attempt: Callable[[], T],
    *,
    for_seconds: float,
    clock: Clock = boottime,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call *attempt*, a bounded request that is safe to repeat, until the lock server answers it.

    No attempt begins later than ``for_seconds`` after the first.

    Raises:
        LockUnavailable: the last attempt's.
    """
    give_up = clock() + for_seconds
    pause = FIRST_PAUSE
    while True:
        try:
            return attempt()
        except LockUnavailable:
            if clock() + pause > give_up:
                raise
        sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)

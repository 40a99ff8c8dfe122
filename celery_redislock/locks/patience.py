"""Asking an unreachable lock server again, for a bounded time."""

import time
from collections.abc import Callable
from typing import TypeVar

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.clock import Clock, boottime

__all__ = ["keep_trying"]

T = TypeVar("T")

#: Seconds between two attempts: the first pause, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0


def keep_trying(
    attempt: Callable[[], T],
    *,
    for_seconds: float,
    clock: Clock = boottime,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call until the lock server answers; blocks the calling thread.

    Args:
        attempt: one bounded request; must be safe to repeat.
        for_seconds: no attempt begins later than this after the first.
        clock: injected by tests.
        sleep: injected by tests.

    Raises:
        LockUnavailable: the last attempt's.
    """
    give_up, pause = clock() + for_seconds, FIRST_PAUSE
    while True:
        try:
            return attempt()
        except LockUnavailable:
            if clock() + pause > give_up:
                raise
        sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)

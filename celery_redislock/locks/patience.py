"""Asking again, for a bounded time: a lock server that does not answer, or one that refused."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.clock import Clock, boottime
from celery_redislock.locks.store import Hold

__all__ = ["keep_trying", "outwait"]

T = TypeVar("T")

#: Seconds between two attempts: the first pause, and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0

#: Seconds between attempts to acquire: the first wait, and the longest.
FIRST_WAIT, LONGEST_WAIT = 0.01, 0.25


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


def outwait(
    attempt: Callable[[], Hold | None],
    *,
    timeout: float | None,
    clock: Clock,
    sleep: Callable[[float], None],
) -> Hold | None:
    """Ask for a lock until it is granted; blocks the calling thread.

    Args:
        attempt: asks once; returns who holds, ``None`` once the lock is ours.
        timeout: seconds after which the last refusal counts; ``None`` for no limit.
        clock: injected by tests.
        sleep: injected by tests.

    Returns:
        ``None``, or who held the lock at the last attempt.
    """
    give_up = None if timeout is None else clock() + timeout
    pause = FIRST_WAIT
    while True:
        refused = attempt()
        if refused is None:
            return None
        left = None if give_up is None else give_up - clock()
        if left is not None and left <= 0:
            return refused
        # Random, so that waiters do not march in step; never past the holder's own end.
        wait = min(random.uniform(0.5, 1.0) * pause, max(refused.expires_in, FIRST_WAIT))  # noqa: S311
        sleep(wait if left is None else min(wait, left))
        pause = min(pause * 2, LONGEST_WAIT)

"""Holds that could not be given back when they should have been: the server did not answer."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.clock import Clock

__all__ = ["RETRY_DELAY", "Debts"]

logger = logging.getLogger("celery_redislock")

#: Seconds between attempts to give back a hold the server could not be asked about.
RETRY_DELAY = 1.0


class _Debt(NamedTuple):
    release: Callable[[], object]
    until: float
    what: str


class Debts:
    """What one process owes one lock server. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._owed: deque[_Debt] = deque()
        self._pay_from = float("-inf")

    def __len__(self) -> int:
        return len(self._owed)

    def add(self, release: Callable[[], object], *, within: float, what: str) -> None:
        """Owe a release, for ``within`` seconds: after that the hold is gone anyway."""
        with self._lock:
            self._owed.append(_Debt(release, self._clock() + within, what))

    def next_due(self) -> float:
        """When the next attempt is due; infinity if nothing is owed."""
        return self._pay_from if self._owed else float("inf")

    def pay_one(self) -> None:
        """Give back the oldest, if it is due; only the watchdog's thread pays."""
        with self._lock:
            if self.next_due() > self._clock():
                return
            debt = self._owed.popleft()
        if self._clock() >= debt.until:
            logger.warning("gave up giving back %s; it has expired by now", debt.what)
            return
        try:
            debt.release()
        except LockUnavailable:
            with self._lock:
                # The others are owed to the same server: none of them is tried before this one.
                self._owed.appendleft(debt)
                self._pay_from = self._clock() + RETRY_DELAY
        except Exception:
            logger.exception("giving back %s failed; it will expire", debt.what)
        else:
            logger.info("gave back %s, late: the lock server had been away", debt.what)

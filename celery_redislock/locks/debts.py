"""Holds that could not be given back when they should have been: the server did not answer."""

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.clock import Clock

__all__ = ["MOST", "RETRY_DELAY", "Debts", "NotYet"]

logger = logging.getLogger("celery_redislock")

#: Seconds between attempts to give back a hold, and between any two while the server does not answer.
RETRY_DELAY = 1.0

#: How many are owed at most: a few megabytes. What comes then is left to expire.
MOST = 10_000


class NotYet(Exception):  # noqa: N818  not an error: an answer
    """Raised by a debt's release: the hold must not be given back yet; the server is not the reason."""


@dataclass(slots=True)
class _Debt:
    release: Callable[[], object]
    until: float
    what: str
    token: str | None
    #: It was asked to wait for something else than the server.
    is_early: bool = False


class Debts:
    """What one process owes one lock server. Thread-safe.

    Each is tried in its own time; but while the server does not answer, one
    attempt a second is made for all of them, each time for another one, so
    that none that fails for a reason of its own holds up the rest.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Reentrant, and a heap of tuples, which are compared in one go: a signal handler, or what the
        # collector ends, may owe something in the middle of it.
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._owed: list[tuple[float, int, _Debt]] = []
        #: The one being paid: owed until that is done.
        self._in_hand: _Debt | None = None
        self._is_unanswered = False
        self._away_until = float("-inf")
        self._sweep_from = float("-inf")
        self._told_of_too_many = False

    def __len__(self) -> int:
        with self._lock:
            return len(self._owed) + (self._in_hand is not None)

    def add(
        self, release: Callable[[], object], *, within: float, what: str, token: str | None = None
    ) -> None:
        """Owe a release, for ``within`` seconds: after that the hold is gone anyway.

        With :data:`MOST` owed already it is not taken on: the hold expires.
        """
        now = self._clock()
        with self._lock:
            if len(self._owed) >= MOST and now >= self._sweep_from:
                self._sweep(now)
            if not self._owed:
                self._told_of_too_many = False
            if len(self._owed) < MOST:
                debt = _Debt(release, now + within, what, token)
                heapq.heappush(self._owed, (now, next(self._numbers), debt))
                return
            told, self._told_of_too_many = self._told_of_too_many, True
        if not told:
            logger.warning(
                "the lock server has been away so long that %d holds wait to be given back; "
                "further ones, %s the first of them, are left to expire",
                MOST,
                what,
            )

    def release_of(self, token: str) -> Callable[[], object] | None:
        """What gives back the hold of this token, if it is owed; it stays so until the thread has paid."""
        return next((debt.release for debt in self._all() if debt.token == token), None)

    @property
    def is_server_away(self) -> bool:
        """Whether it did not answer when a debt was last tried, and another one will be."""
        return self._is_unanswered and bool(self)

    @property
    def wait_for_the_server(self) -> bool:
        """Whether any could be given back if only the server answered, as far as is known."""
        return not all(debt.is_early for debt in self._all())

    def clear(self) -> None:
        """Owe nothing any more."""
        with self._lock:
            self._owed = []

    def next_due(self) -> float:
        """When the next attempt is due; infinity if nothing is owed."""
        owed = self._owed
        return max(owed[0][0], self._away_until) if owed else float("inf")

    def pay_one(self) -> None:
        """Give back the one that waits longest, if it is due; only the watchdog's thread pays."""
        debt, expired = self._take()
        if expired:
            others = f" and {len(expired) - 1} others" if len(expired) > 1 else ""
            logger.warning("gave up giving back %s%s: they have expired by now", expired[0].what, others)
        if debt is None:
            return
        try:
            self._pay(debt)
        finally:
            self._in_hand = None

    def _all(self) -> list[_Debt]:
        with self._lock:
            return [debt for *_, debt in self._owed] + ([self._in_hand] if self._in_hand else [])

    def _pay(self, debt: _Debt) -> None:
        try:
            debt.release()
        except LockUnavailable:
            debt.is_early, self._is_unanswered = False, True
            self._away_until = self._clock() + RETRY_DELAY
            self._put_off(debt)
        except NotYet as reason:
            logger.debug("not giving back %s yet: %s", debt.what, reason)
            debt.is_early = True
            self._put_off(debt)
        except Exception:
            logger.exception("giving back %s failed unexpectedly; it is left to expire", debt.what)
        else:
            self._is_unanswered = False
            logger.info("gave back %s late: the lock server had not answered", debt.what)

    def _take(self) -> tuple[_Debt | None, list[_Debt]]:
        """Take out the next that is due, and what has expired before it."""
        now = self._clock()
        expired: list[_Debt] = []
        with self._lock:
            while self.next_due() <= now:
                *_, debt = heapq.heappop(self._owed)
                if now < debt.until:
                    self._in_hand = debt
                    return debt, expired
                expired.append(debt)
        return None, expired

    def _put_off(self, debt: _Debt) -> None:
        with self._lock:
            heapq.heappush(self._owed, (self._clock() + RETRY_DELAY, next(self._numbers), debt))
            self._in_hand = None

    def _sweep(self, now: float) -> None:
        """Drop what has expired; not again before another one can have."""
        self._owed = [entry for entry in self._owed if now < entry[2].until]
        heapq.heapify(self._owed)
        self._sweep_from = min((debt.until for *_, debt in self._owed), default=now)

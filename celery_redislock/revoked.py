"""Claims of messages that were revoked before any worker had them.

No hook of Celery fires for such a message until a worker is given it; only its
state is written, by whatever worker heard of the revocation (celery 5.7.0,
``worker/control.py``, ``revoke``; 5.5 writes none, so there the claim stands
until the message is delivered, and for one with an ETA until that has come). So
a publish or a run that is refused by a claim looks at the state of the claim's
id.
"""

import time
from typing import Any

from celery_redislock.copies import is_revoked
from celery_redislock.guard import Guard
from celery_redislock.locks.store import Hold
from celery_redislock.work import QUEUED

__all__ = ["LookedAt", "make_way"]

#: Seconds a claim is left alone: something just published is rarely revoked, and a look is a round trip.
YOUNG = 2.0
#: Seconds until one process looks at the same key again: a flood of duplicates stays at one trip each.
APART = 1.0


class LookedAt:
    """When this process last looked at which key. A race of two threads costs one look too many."""

    def __init__(self, *, at_most: int = 1000) -> None:
        """Remember this many keys, then begin anew."""
        self._at_most = at_most
        self._when: dict[str, float] = {}

    def is_due(self, key: str, *, now: float) -> bool:
        """Whether it is time to look at a key; counts as having looked."""
        if now - self._when.get(key, float("-inf")) < APART:
            return False
        if len(self._when) >= self._at_most:
            self._when.clear()
        self._when[key] = now
        return True


_looked_at = LookedAt()


def make_way(guard: Guard, task: Any, hold: Hold, *, ttl: float) -> bool:
    """Give a hold back that is the claim of a revoked message; whether it was, so that asking again pays.

    Compared by its token: should the message have been started all the same, its run keeps the lock.

    Args:
        guard: gives it back.
        task: whose result backend is asked.
        hold: what refused a publish or a run.
        ttl: seconds for which giving it back is tried, where the lock server does not answer.
    """
    if not _was_revoked(task, hold):
        return False
    guard.give_back(hold.name, hold.token, ttl=ttl, undo=True)
    return True


def _was_revoked(task: Any, hold: Hold) -> bool:
    """Whether a hold is the claim of a message that was revoked; asks the result backend, if it is time to.

    A revocation from before the claim was made belongs to an earlier job of the same id. A run, and what
    was accepted for a window, is never looked at: it ends by itself.
    """
    since = hold.about.get("since")
    if hold.is_window or hold.about.get("state") != QUEUED or not isinstance(since, int | float):
        return False
    if time.time() - since < YOUNG or not _looked_at.is_due(hold.name, now=time.monotonic()):
        return False
    return is_revoked(task, hold.owner, since=float(since))

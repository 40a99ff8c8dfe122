"""A look at a task's lock from outside: who holds it, and taking it away."""

import logging
from dataclasses import dataclass
from typing import Any, Literal

from celery_redislock.locks.store import QUEUED, Hold, LockStore

logger = logging.getLogger("celery_redislock")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, when the server was asked. Advisory: it may be gone by now.

    Attributes:
        owner: the task id.
        state: ``queued`` (its message is on the way), ``running``, ``period`` (accepted within
            ``lock_period``, whether its run has ended or not) or ``foreign`` (another program's lock
            on the same key).
        task: the task's name.
        host: where the claim or the run was taken.
        pid: of that process.
        since: seconds since the epoch.
        remaining: seconds until the hold ends unless it is renewed; ``inf`` for another program's
            lock that has no end.
        token: the term of holding.
    """

    owner: str
    state: str
    task: str | None
    host: str | None
    pid: int | None
    since: float | None
    remaining: float
    token: str

    @classmethod
    def of(cls, hold: Hold) -> "Holder":
        """Read what a holder wrote about itself."""
        task, host, pid = map(hold.facts.get, ("task", "host", "pid"))
        state = hold.state or "foreign"
        return cls(hold.owner, state, task, host, pid, hold.since, hold.expires_in, hold.token)


class LockHandle:
    """One task's lock for given arguments, from :meth:`SingletonTask.lock_for`.

    Attributes:
        key: the lock's name.
    """

    def __init__(self, task: Any, store: LockStore, key: str) -> None:
        """Point at a lock; sends nothing."""
        self.key = key
        self._task = task
        self._store = store

    def __repr__(self) -> str:
        return f"<LockHandle {self.key!r} of {self._task.name}>"

    def holder(self) -> Holder | None:
        """Return who holds the lock, or ``None``; one request.

        Raises:
            LockUnavailable: the lock server cannot be reached.
            LockKeyError: the key on the server is not a lock.
        """
        hold = self._store.inspect(self.key)
        return None if hold is None else Holder.of(hold)

    def release(self, *, reason: str, only: Literal["queued"] | None = None) -> Holder | None:
        """Take the lock away from whoever holds it, period included; an operator's act, logged as WARNING.

        A run that loses its lock so goes on and learns of it at its next renewal or ``check()``.

        Args:
            reason: why, for the log.
            only: ``"queued"``: only from a claim, never from a run. The holder is compared
                atomically: one that came in between keeps the lock.

        Returns:
            The holder it was taken from; ``None`` if there was none, or none it may be taken from.

        Raises:
            LockUnavailable: the lock server cannot be reached.
            LockKeyError: the key on the server is not a lock.
            ValueError: ``only`` is something else.
        """
        if only not in {None, QUEUED}:
            message = f"only is {only!r}; give 'queued', or None to take the lock from a run as well"
            raise ValueError(message)
        seen = self.holder()
        if seen is None or (only == QUEUED and seen.state != QUEUED):
            return None
        release = self._store.force_release(self.key, expected=seen.token)
        if not release.took_away:
            return None
        logger.warning("released %r by force from %r (%s): %r", self.key, seen.owner, seen.state, reason)
        return seen

"""The lock store: the verbs that must be atomic.

:class:`LockStore` is the seam between what a lock means and where it is kept:
:class:`~celery_redislock.locks.redisstore.RedisStore` keeps it on a server,
:class:`~celery_redislock.locks.memory.MemoryStore` in this process for tests.
Both pass the same contract tests. The values they answer with live in
:mod:`~celery_redislock.locks.values` and are offered here as well.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery_redislock.locks.values import (
    TEN_YEARS,
    DoneMark,
    Grant,
    Hold,
    Recorded,
    Refusal,
    Release,
    Renewal,
    Term,
    new_token,
    owner_of,
)

__all__ = [
    "TEN_YEARS",
    "DoneMark",
    "Grant",
    "Hold",
    "LockStore",
    "Recorded",
    "Refusal",
    "Release",
    "Renewal",
    "Term",
    "new_token",
    "owner_of",
]


class LockStore(ABC):
    """The atomic verbs. Times are seconds. Thread-safe; safe to use after a fork.

    Every verb raises :class:`~celery_redislock.exceptions.LockUnavailable`
    when the server does not answer in a bounded time, and
    :class:`~celery_redislock.exceptions.LockKeyError` when the key on the
    server is not a lock. Every verb may be repeated with the same token.
    """

    _watchdog: Any = None

    @property
    @abstractmethod
    def server(self) -> str:
        """Where the locks are kept, without credentials; for messages."""

    @abstractmethod
    def acquire(
        self,
        name: str,
        token: str,
        ttl: float,
        *,
        about: Mapping[str, Any],
        instead_of: str | None = None,
        period: float | None = None,
        message: str | None = None,
    ) -> Grant | Refusal | Recorded:
        """Take the hold, keep it, or take it over; one round trip.

        Args:
            name: the lock's name.
            token: of the hold asked for. If it holds already, its ``ttl`` starts anew, and the grant
                says ``repeated``.
            ttl: how long the hold lives unless it is renewed.
            about: small facts about the holder for those who are refused, no argument values.
            instead_of: another token this hold replaces where that one holds (a claim
                becoming a lease, a lease becoming a claim again).
            period: least time between two acceptances by the server's clock; taking over
                does not count as a new one.
            message: identity whose done mark refuses a free lock.
        """

    @abstractmethod
    def renew(self, terms: Sequence[Term], *, within: float | None = None) -> Renewal:
        """Set each hold's remaining time back to its ttl; one round trip per 200. Never creates a lock.

        Args:
            terms: the holds.
            within: seconds the answer is of use, where that is less than the store's own bound
                (a lease about to end); half of it for each of two attempts.
        """

    @abstractmethod
    def release(
        self,
        name: str,
        token: str,
        *,
        undo: bool = False,
        done: DoneMark | None = None,
    ) -> Release:
        """Give the hold back if ``token`` still has it; one round trip.

        Args:
            name: the lock's name.
            token: of the hold given back.
            undo: nothing ran under it, so the window it opened is given back too.
            done: note to leave behind, whoever holds the lock.
        """

    @abstractmethod
    def inspect(self, name: str, *, to_decide: bool = False) -> Hold | None:
        """Return who holds the lock, or whose window it waits for, or ``None``.

        Args:
            name: the lock's.
            to_decide: something will be dropped, or put off, for the holder that is found: a replica, which
                may know only one that is long gone, does not do (``LockUnavailable``).
        """

    @abstractmethod
    def force_release(self, name: str, *, expected: str | None = None) -> Release:
        """Take the hold away from whoever has it; an operator's verb.

        Args:
            name: the lock's name.
            expected: only from this token, as seen before; ``None`` from anybody.

        Returns:
            ``released`` with the victim in ``held_by``; or not, with the present
            holder (another token), or nobody.
        """

    @abstractmethod
    def mark_done(self, name: str, done: DoneMark) -> None:
        """Note that a message's outcome is recorded, after its lock was released."""

    @abstractmethod
    def names(self, *, limit: int = 1000) -> list[str]:
        """Return the names of the locks that refuse now, soonest to stop it first.

        Held ones, and free ones whose window has not passed; with both, the one that ends first counts.
        """

    def eviction_policy(self) -> str | None:
        """Return what the server deletes when it runs out of memory; ``None`` where it cannot tell."""
        return None

    def behind(self, moment: float) -> AbstractContextManager[None]:  # noqa: ARG002  nothing is on its way
        """Let what this thread asks within the block overtake no request that was given up before.

        Args:
            moment: when it was given up, by :func:`~celery_redislock.locks.clock.boottime`.
        """
        return nullcontext()

    def transfer(
        self, name: str, old: str, new: str, ttl: float, *, about: Mapping[str, Any]
    ) -> Grant | Refusal | Recorded:
        """Hand the hold from one token to another; where ``old`` is gone and the lock is free, acquire it."""
        return self.acquire(name, new, ttl, about=about, instead_of=old)

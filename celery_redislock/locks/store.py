"""The lock store: the verbs that must be atomic, and the values they answer with.

:class:`LockStore` is the seam between what a lock means and where it is kept:
:class:`~celery_redislock.locks.redisstore.RedisStore` keeps it on a server,
:class:`~celery_redislock.locks.memory.MemoryStore` in this process for tests.
Both pass the same contract tests.

A hold belongs to a *token*, one term of holding, spelled ``owner/nonce`` and
never used twice. Every write compares it, so nothing that is late (an old
run, a repeated request, a delayed packet) can touch a newer hold.
"""

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
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


def new_token(owner: str) -> str:
    """Mint a token for one term of holding: ``owner/nonce``, 72 random bits in the nonce.

    Args:
        owner: who the lock is for, normally a task id. NUL ends a token on the
            server, so it is escaped here.
    """
    return f"{owner.replace(chr(0), '%00')}/{secrets.token_urlsafe(9)}"


def owner_of(token: str) -> str:
    """Return the owner a token was minted for; a foreign value without a nonce is its own owner."""
    return token.rpartition("/")[0] or token


@dataclass(frozen=True, slots=True)
class Hold:
    """What the store knew about a holder at the moment it answered. Advisory: it may be gone by now.

    Attributes:
        name: the lock's name.
        token: the holder's token; the whole value where a foreign client holds the key.
        about: what the holder wrote about itself (task, id, state, host, pid, since, …).
        expires_in: seconds until the hold ends unless it is renewed.
        is_window: nothing is held, but ``lock_period`` has not passed since the last acceptance.
    """

    name: str
    token: str
    about: Mapping[str, Any]
    expires_in: float
    is_window: bool = False

    @property
    def owner(self) -> str:
        """Who the lock is held for: a task id."""
        return owner_of(self.token)

    @classmethod
    def parse(cls, name: str, value: bytes, expires_in: float, *, is_window: bool) -> "Hold":
        """Read a stored value, ``token NUL json``; anything else is a foreign holder's whole token."""
        token, _, text = value.partition(b"\0")
        try:
            about = json.loads(text) if text else {}
        except ValueError:
            about = {}
        return cls(
            name=name,
            token=token.decode("utf-8", "replace"),
            about=about if isinstance(about, dict) else {},
            expires_in=expires_in,
            is_window=is_window,
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """The hold is ours.

    Attributes:
        fence: the fencing token, larger with each grant of the same lock.
        taken_over: the hold was there before, under ``instead_of`` or under this very token.
        sent_at: this process's clock just before the answered request was sent: the lease's
            term is counted from here, because the server's began later.
        answered_at: the same clock when the answer came.
    """

    fence: int
    taken_over: bool
    sent_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Somebody else holds the lock, or its window has not passed."""

    hold: Hold


@dataclass(frozen=True, slots=True)
class Recorded:
    """Nothing was taken: a done mark says that this message's outcome is recorded."""


@dataclass(frozen=True, slots=True)
class Term:
    """What a renewal needs to know about one hold: ``ttl`` in seconds."""

    name: str
    token: str
    ttl: float


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answers to a batch of renewals.

    Attributes:
        renewed: per term, in order: ``True`` renewed; ``None`` missing; ``False`` held by another token.
        sent_at: as for :class:`Grant`.
        answered_at: as for :class:`Grant`.
    """

    renewed: Sequence[bool | None]
    sent_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class DoneMark:
    """A short-lived note that a message's outcome is recorded: ``ttl`` in seconds."""

    message: str
    ttl: float


@dataclass(frozen=True, slots=True)
class Release:
    """What became of a release.

    Attributes:
        released: the hold was ours and is gone now.
        held_by: another token holds the lock; ``None`` where nobody does.
    """

    released: bool
    held_by: Hold | None = field(default=None)


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
            token: of the hold asked for. If it holds already, its ``ttl`` starts anew.
            ttl: how long the hold lives unless it is renewed.
            about: small facts about the holder for those who are refused, no argument values.
            instead_of: another token this hold replaces where that one holds (a claim
                becoming a lease, a lease becoming a claim again).
            period: least time between two acceptances by the server's clock; taking over
                does not count as a new one.
            message: identity whose done mark refuses a free lock.
        """

    @abstractmethod
    def renew(self, terms: Sequence[Term]) -> Renewal:
        """Set each hold's remaining time back to its ttl; one round trip per 200. Never creates a lock."""

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
    def inspect(self, name: str) -> Hold | None:
        """Return who holds the lock, or whose window it waits for, or ``None``."""

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
        """Return the names of the locks held now, soonest to expire first."""

    def eviction_policy(self) -> str | None:
        """Return what the server deletes when it runs out of memory; ``None`` where it cannot tell."""
        return None

    def transfer(
        self, name: str, old: str, new: str, ttl: float, *, about: Mapping[str, Any]
    ) -> Grant | Refusal | Recorded:
        """Hand the hold from one token to another; where ``old`` is gone and the lock is free, acquire it."""
        return self.acquire(name, new, ttl, about=about, instead_of=old)

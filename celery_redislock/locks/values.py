"""The values the lock store takes and answers with.

A hold belongs to a *token*, one term of holding, spelled ``owner/nonce`` and
never used twice. Every write compares it, so nothing that is late (an old
run, a repeated request, a delayed packet) can touch a newer hold.
"""

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "TEN_YEARS",
    "DoneMark",
    "Grant",
    "Hold",
    "Recorded",
    "Refusal",
    "Release",
    "Renewal",
    "Term",
    "new_token",
    "owner_of",
]


#: Ten years in seconds: whoever asks for longer has most likely written milliseconds.
TEN_YEARS = 315_360_000.0


def new_token(owner: str) -> str:
    """Mint a token for one term of holding: ``owner/nonce``, 72 random bits in the nonce.

    Args:
        owner: who the lock is for, normally a task id. NUL ends a token on the
            server, so it is escaped here.
    """
    return f"{owner.replace(chr(0), '%00')}/{base64.urlsafe_b64encode(os.urandom(9)).decode()}"


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
        expires_in: seconds until the hold ends unless it is renewed; ``inf`` for another program's
            lock that has no end.
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


class Grant(NamedTuple):
    """The hold is ours.

    Attributes:
        fence: the fencing token, larger with each grant of the same lock.
        taken_over: the hold was there before, under ``instead_of``.
        sent_at: this process's clock just before the answered request was sent: the lease's
            term is counted from here, because the server's began later.
        answered_at: the same clock when the answer came.
        repeated: the hold was there before under this very token. It was granted to an earlier
            request, whose answer may have got lost, and with it whether that one took anything over.
    """

    fence: int
    taken_over: bool
    sent_at: float
    answered_at: float
    repeated: bool = False


class Refusal(NamedTuple):
    """Somebody else holds the lock, or its window has not passed."""

    hold: Hold


@dataclass(frozen=True, slots=True)
class Recorded:
    """Nothing was taken: a done mark says that this message's outcome is recorded."""


class Term(NamedTuple):
    """What a renewal needs to know about one hold: ``ttl`` in seconds."""

    name: str
    token: str
    ttl: float


class Renewal(NamedTuple):
    """The answers to a batch of renewals.

    Attributes:
        renewed: per term, in order: ``True`` renewed; ``None`` missing; ``False`` held by another token.
        sent_at: as for :class:`Grant`.
        answered_at: as for :class:`Grant`.
    """

    renewed: Sequence[bool | None]
    sent_at: float
    answered_at: float


class DoneMark(NamedTuple):
    """A short-lived note that a message's outcome is recorded: ``ttl`` in seconds."""

    message: str
    ttl: float


class Release(NamedTuple):
    """What became of a release.

    Attributes:
        released: the hold was ours and is gone now.
        held_by: another token holds the lock (after an operator's release: the victim);
            ``None`` where nobody does.
        repeated: an earlier request got no answer and was sent again. The hold found missing or
            held by another token may then have been released by the first one:
            :meth:`~celery_redislock.locks.lease.Lease.gave_back` tells.
    """

    released: bool
    held_by: Hold | None = None
    repeated: bool = False

    @property
    def took_away(self) -> bool:
        """What an operator's release came to: the hold that was seen has been taken away.

        Also where a repeated request finds that nobody holds: most likely the first one took it, and
        an act that may have been done is to be audited as done.
        """
        return self.released or (self.repeated and self.held_by is None)

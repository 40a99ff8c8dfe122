"""An operator's hold: it takes a whole key, goes first in its line, and drops no call that meets it.

It names no process that somebody could find dead, and nothing renews it: its time ends it, or an operator
does. Its token tells it from all others, also where only the token is known, as of one that is first in line.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from celery_redislock.locks.acts import note_act, who
from celery_redislock.locks.lease import new_token
from celery_redislock.log import logger
from celery_redislock.store.store import HELD, HOLD_NONCE, OPERATOR, Entry, Grant, Hold, LockStore, Waiter

#: Seconds: of a hold for which no time is given, and the longest one.
AN_HOUR, A_DAY = 3600.0, 86400.0

#: Entries of a line among which a hold is looked for first, as it goes before others: one request.
LOOKED_AT = 100


class Held(NamedTuple):
    """What became of a hold.

    Attributes:
        before: who holds the key still, and ends before the hold begins; none where it has begun.
        instead_of: the hold of the same key that it has replaced.
    """

    before: Sequence[Hold]
    instead_of: Hold | None


def hold_key(store: LockStore, key: str, seconds: float, reason: str, by: str | None = None) -> Held:
    """Hold a key, or wait for that as the first in its line, at most as long; replace the hold that is there.

    Notes who did it, and logs a WARNING. Up to six requests, and one for each hundred in a longer line.

    Args:
        store: of the lock; for several names the one of those.
        key: of the lock.
        seconds: how long, from when it begins.
        reason: why.
        by: who does it; ``None`` for the user of this process.

    Raises:
        LockUnavailable: the lock server cannot be reached, or keeps no lines.
        LockKeyError: the key on the server is not a lock.
    """
    named = {} if by is None else {"by": by}
    said = {"state": HELD, **who(), **named, "about": reason}
    facts = json.dumps(said, separators=(",", ":"))
    owner, _, nonce = new_token(f"{OPERATOR}{said['by']}").rpartition("/")
    token = f"{owner}/{HOLD_NONCE}{nonce}"
    waiting = hold_in_line(store, key)
    before: Sequence[Hold] = ()
    instead_of = next((hold for hold in store.holders(key) if hold.is_operators), None)
    if instead_of is None or not store.hand_on(key, instead_of.token, token, seconds, facts=facts).released:
        instead_of = None if waiting is None else waiting.hold
        if not isinstance(store.acquire(key, token, seconds, facts=facts), Grant):
            # Its bell is rung, and nobody listens: as one who waits for a bell it leaves the line in time.
            entry = Entry("ring", store.bell(key, nonce), seconds, facts, "1")
            parked = store.park(key, token, entry, nonce=nonce, place="first", within=seconds)
            before = store.holders(key) if parked.word == "parked" else ()
    if waiting is not None:
        store.leave(key, waiting.id)
    outcome = f"for {seconds:g} s"
    outcome += f", behind {len(before)} who hold it still" if before else ""
    outcome += f", in place of that by {instead_of.owner}" if instead_of else ""
    logger.warning("%r is on hold by %r %s: %r", key, owner, outcome, reason)
    note_act(store, "hold", key, outcome, reason, **named)
    return Held(before, instead_of)


def hold_in_line(store: LockStore, key: str) -> Waiter | None:
    """Return the hold that waits for those who hold a key.

    One request; behind the first hundred in line one for each hundred.
    """
    for last in (LOOKED_AT - 1, -1):
        length, waiters = store.waiting(key, last=last)
        found = next((waiter for waiter in waiters if waiter.hold.is_operators), None)
        if found is not None or length <= LOOKED_AT:
            return found
    return None

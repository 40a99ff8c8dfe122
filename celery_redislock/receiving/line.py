"""Who stands behind whom: the messages of a key that this worker has in hand, in the order of their receipt.

Of a task whose duplicates wait, a message that is received while another one of its key is in hand stands
behind that. It is parked at once (``receiving/parking.py``), and starts when the lock is handed to it. What
is noted here is a hint: the script that parks decides, and knows of other workers.

Of each message in hand two things are noted:

- which was the first one parked behind it. If its own run is refused, it goes before that one;
- whether its end wakes the next in line. Nobody else does, where the lock was free when that one was parked.
"""

import threading
import weakref
from typing import Any

from celery_redislock.publishing.message import key_in
from celery_redislock.publishing.turn import facts_of_turn
from celery_redislock.receiving.hand import IN_HAND, OVER, SETTLED, settling
from celery_redislock.receiving.sweep import look_soon
from celery_redislock.store.store import NOBODY
from celery_redislock.wire.clock import boottime

#: Seconds for which a key counts as busy here after a message of it was parked.
LATELY = 2.0

#: Keys that are remembered: of messages in hand, and of those that were parked lately.
MOST_KEYS = 10_000

#: Keys of which a message is in hand, or was parked lately, when they were last looked at; with those that
#: were in hand.
busy: "dict[str, list[weakref.ref[Any]]]" = {}
_parked_at: dict[str, float] = {}

#: Held by who parks, from its look at the line to its note: with threads, messages are received while others
#: are refused.
parking = threading.Lock()


def note(header: str, request: Any) -> None:
    """Note that a message is in hand; what comes of its key stands behind it."""
    if len(busy) >= MOST_KEYS:
        _make_room()
    key = key_in(header)
    ref = weakref.ref(request)
    refs = busy.get(key, ())
    busy[key] = [*(one for one in refs if (it := one()) and it.state in IN_HAND), ref] if refs else [ref]


def _make_room() -> None:
    for key in [key for key, refs in busy.items() if not refs or refs[-1]() is None]:
        del busy[key]
        _parked_at.pop(key, None)
    if len(busy) >= MOST_KEYS:
        busy.clear()
        _parked_at.clear()


def last(key: str) -> Any:
    """Return the message that the next one of this key stands behind; ``None`` if none is in hand."""
    for ref in reversed(busy.get(key, ())):
        request = ref()
        if request is not None and request.state in IN_HAND:
            return request
    return None


def was_parked_lately(key: str) -> bool:
    """Whether a message of this key was parked lately, of which none is in hand; else forget the key."""
    at = _parked_at.get(key)
    if at is not None and boottime() - at < LATELY:
        return True
    busy.pop(key, None)
    _parked_at.pop(key, None)
    return False


def is_parked(key: str) -> None:
    """Note that a message of this key was parked."""
    if key not in busy and len(busy) >= MOST_KEYS:
        _make_room()
    busy.setdefault(key, [])
    _parked_at[key] = boottime()


def put(token: str, key: str, request: Any = None) -> None:
    """Note that a message was parked behind those of this key that are in hand; ``parking`` is held.

    ``request``: of the message, if it was in hand itself. Then it stands before those that stand behind it,
    and behind those alone that were received before it.
    """
    before = "" if request is None else request.first_behind
    for ref in busy.get(key, ()):
        one = ref()
        if one is None:
            continue
        if one is request:
            return
        if one.first_behind == before:
            one.first_behind = token


def claim_ahead(request: Any) -> str:
    """Return the claim of this message on its way to its lock, '' where no run could take it over."""
    delivery = request.delivery
    if delivery is None or delivery.identity is None or delivery.lock.limit is not None:
        return ""
    if delivery.locks.running is None:
        return ""  # what it has there may stand for a period, and its end must not release that
    return f"{delivery.identity}\0{facts_of_turn(delivery.lock)}"


def wake_at_end(request: Any) -> None:
    """Let the next of the line start when what this message leaves is settled, or now if it is.

    Called by who has parked that one behind this; another thread or greenlet may hear of the end meanwhile.
    """
    with settling:
        if request.state not in SETTLED:
            request.at_end = _wake
            return
    _wake(request)


def _wake(request: Any) -> None:
    """Let the next of the line start: it was parked when this run had ended, or not begun.

    If its run had ended then, the claim that was made for it is left.
    """
    if (delivery := request.delivery) is not None:
        # Never the run's token: after a hard time limit its body may go on.
        delivery.lock.release((delivery.identity if request.state is OVER else None) or NOBODY)
        if delivery.options.lock_rate or delivery.options.lock_period:
            look_soon()

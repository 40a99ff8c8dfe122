"""Who waits: the lines of locks, and what keeps them waiting."""

from collections.abc import Sequence
from typing import Any

from celery_redislock.operating.server import LockServer, Place


def places_of(server: LockServer, key: str, *, last: int = -1) -> list[Place]:
    """Return who waits for a lock, up to the ``last`` rank; for all of them, where the key is ``""``.

    Who names a key need not know that calls wait to be its queued one under a second name.
    """
    return [*server.places(*([key, f"queued:{key}"] if key else []), last=last)]


def document_of(server: LockServer, key: str, places: Sequence[Place]) -> dict[str, Any]:
    """Return the document of these places: who waits, which line nobody serves, which rate is full."""
    # Of all lines it would be a request for each.
    firsts = {place.waiter.key: place.facts for place in places if place.rank == 1 and key}
    return {
        "key": key or None,
        "waiting": [place.document() for place in places],
        "unserved": server.unserved(places),
        "rates": server.full_rates(firsts),
    }

"""Which locks are held: those that fit what is asked for, in an order."""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from celery_redislock.operating import telling
from celery_redislock.operating.server import LockServer
from celery_redislock.publishing.handle import Holder
from celery_redislock.publishing.held import fits

#: The states of a lock that is held, or refuses.
STATES = ("queued", "running", "period", "hold", "foreign")

#: Keys with a line that nobody of ours holds, and that are looked at one by one: one request.
MOST_BESIDE = 250

#: What a list is sorted by. Who does not say since when comes last.
ORDERS: Mapping[str, Callable[[Holder], Any]] = {
    "age": lambda holder: holder.since if holder.since is not None else float("inf"),
    "remaining": lambda holder: holder.remaining,
    "key": lambda holder: holder.key,
    "task": lambda holder: (holder.task or "", holder.key),
}


def all_of(server: LockServer, **patterns: str | None) -> list[Holder]:
    """Return who holds locks, of those who fit: :func:`fits`; another program's too, where calls wait for it.

    Of such keys :data:`MOST_BESIDE` are looked at, as a lock of another program is on no list of ours.
    """
    holders = [*server.holders()]
    held = {holder.key for holder in holders}
    keys = (place.waiter.key for place in server.places(last=0))
    beside = islice((key for key in keys if key not in held), MOST_BESIDE)
    holders += [Holder.of(hold) for holds in server.store.holders_of_each(beside) for hold in holds]
    return [holder for holder in holders if fits(holder, **patterns)]


def chosen(
    holders: Iterable[Holder], *, states: Collection[str] = (), older_than: float | None = None, sort: str
) -> list[Holder]:
    """Return those in these states, all if none is given, and at least so many seconds old; sorted."""
    return sorted((one for one in holders if _fits(one, states, older_than)), key=ORDERS[sort])


def _fits(holder: Holder, states: Collection[str], older_than: float | None) -> bool:
    age = telling.age(holder)
    return (not states or holder.state in states) and (older_than is None or (age or 0.0) >= older_than)


def document_of(found: list[Holder], limit: int) -> dict[str, Any]:
    """Return the document of the first so many, which says whether there are more."""
    return {"locks": found[:limit], "more": len(found) > limit}

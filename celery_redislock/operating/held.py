"""Which locks are held: those that fit what is asked for, in an order."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from celery_redislock.operating import telling
from celery_redislock.publishing.handle import Holder

#: The states of a lock that is held, or refuses.
STATES = ("queued", "running", "period", "hold", "foreign")

#: What a list is sorted by. Who does not say since when comes last.
ORDERS: Mapping[str, Callable[[Holder], Any]] = {
    "age": lambda holder: holder.since if holder.since is not None else float("inf"),
    "remaining": lambda holder: holder.remaining,
    "key": lambda holder: holder.key,
    "task": lambda holder: (holder.task or "", holder.key),
}


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

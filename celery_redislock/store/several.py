"""What locks of several names are on every store: facts of all names, one answer for all, a few verbs."""

from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from celery_redislock.store.store import Hold, LockStore, Parked, Release, Waiter


def with_names(facts: str, name: str) -> str:
    """Return facts that tell the names, where they are several: who hands a lock over looks for them."""
    names = name.split()
    if len(names) == 1:
        return facts
    # Not at the end, where the scripts find what is told of the arguments.
    more = f'{{"names":[{",".join(map(quoted, names))}]'
    return f"{more},{facts[1:]}" if len(facts) > len("{}") else f"{more}}}"


def together(answers: Sequence[Release | Parked]) -> Release:
    """Return one answer for all: ``released`` where all of them were."""
    held_by = next((each.held_by for each in answers if each.held_by is not None), None)
    promoted = tuple(one for each in answers for one in each.promoted)
    is_released = all(isinstance(each, Release) and each.released for each in answers)
    is_repeated = any(isinstance(each, Release) and each.repeated for each in answers)
    return Release(is_released, held_by, is_repeated, promoted)


def parked_together(answers: Sequence[Parked]) -> Parked:
    """Return one answer for all; the place is that in the longest line."""
    words = [each.word for each in answers]
    word = next((word for word in ("full", "woken", "parked") if word in words), words[0])
    both = together(answers)
    return Parked(word, max(each.place for each in answers), both.held_by, both.promoted)


class OfSeveral(LockStore):
    """What a store of locks of several names does in terms of the store of single ones, which follows it."""

    begin = LockStore.begin
    leads_to = LockStore.leads_to
    reaches = LockStore.reaches
    release_and_store = LockStore.release_and_store

    def holders(self, name: str, *, to_decide: bool = False) -> tuple[Hold, ...]:
        """As :meth:`LockStore.holders`, of each in turn; a request for each."""
        one = super().holders  # type: ignore[safe-super]  # a store's
        return tuple(hold for each in name.split() for hold in one(each, to_decide=to_decide))

    def waiting(self, name: str, **which: Any) -> tuple[int, list[Waiter]]:
        """As :meth:`LockStore.waiting`, for the first of them."""
        return super().waiting(name.split(maxsplit=1)[0], **which)  # type: ignore[safe-super]  # a store's

    def mark_done(self, name: str, message: str, ttl: float) -> None:
        """As :meth:`LockStore.mark_done`, for each of them."""
        for each in name.split():
            super().mark_done(each, message, ttl)  # type: ignore[safe-super]  # a store's

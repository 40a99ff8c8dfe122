"""What locks of several names are on every store: facts that name them all, and one answer for all."""

from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted

from celery_redislock.store.store import Parked, Release


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

"""What a store in memory keeps, as a value: with times from now on, to be compared and put back."""

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from celery_redislock.store.memory import MemoryStore, _Held, _Place, _Waiting

_Items = tuple[Any, ...]


class Frozen(NamedTuple):
    """All that the verbs read, but fences and nonces: of those, nothing is ever asked again."""

    holders: _Items
    limits: _Items
    periods: _Items
    marks: _Items
    lines: _Items
    sends: _Items
    due: _Items
    merging: _Items
    newest: _Items
    starts: _Items

    @property
    def places(self) -> Iterator[_Place]:
        """Those in all lines."""
        return (place for _, line in self.lines for place in line)


#: The last fence before each step.
BEFORE = 1000


def freeze(store: MemoryStore, now: float) -> Frozen:
    """Return what it keeps; what has ended by now is left out, and times that have passed are 0."""

    def left(until: float) -> float:
        return round(until - now, 3)

    def ahead(until: float) -> float:
        return max(0.0, round(until - now, 3))

    def expiring(entries: dict[Any, Any]) -> tuple[Any, ...]:
        if not entries:
            return ()
        return tuple((key, value, left(end)) for key, (value, end) in sorted(entries.items()) if end > now)

    def place_now(place: _Place) -> _Place:
        return place._replace(until=ahead(place.until), due=place.due and ahead(place.due))

    holders = []
    for name in sorted(store._holders):
        held = store._holders_of(name)
        live = tuple([(t, h.value, left(h.until), h.is_alone) for t, h in held.items()])
        if live:
            holders.append((name, live))
    lines: _Items = ()
    due: _Items = ()
    if store._lines:
        lines = tuple([(name, tuple(map(place_now, line))) for name, line in sorted(store._lines.items())])
        due = tuple([(name, ahead(at)) for name, at in sorted(store._due.items())])
    starts: list[Any] = []
    for key, each in sorted(store._starts.items()):
        ours = tuple([(left(at), token) for at, token in each if at + key[1] > now])
        if ours:
            starts.append((key, ours))
    merging = [(key, (w.id, left(w.first), *w[2:])) for key, w in sorted(store._merging.items())]
    return Frozen(
        tuple(holders),
        expiring(store._limits),
        expiring(store._periods),
        expiring(store._marks),
        lines,
        tuple(sorted(store._sends.items())),
        due,
        tuple(merging),
        tuple(sorted(store._newest.items())),
        tuple(starts),
    )


def thaw(state: Frozen, store: MemoryStore) -> None:
    """Let a store keep this, at its time 0."""
    holders, limits, periods, marks, lines, sends, due, merging, newest, starts = state
    store._holders = defaultdict(dict)
    for name, held in holders:
        store._holders[name] = {token: _Held(*rest) for token, *rest in held}
    store._limits = {key: (value, end) for key, value, end in limits}
    store._periods = {key: (value, end) for key, value, end in periods}
    store._marks = {key: (value, end) for key, value, end in marks}
    store._lines = {name: list(line) for name, line in lines}
    store._sends = dict(sends)
    store._due = dict(due)
    store._merging = {key: _Waiting(*rest) for key, rest in merging}
    store._newest = dict(newest)
    store._starts = defaultdict(list)
    for key, each in starts:
        store._starts[key] = list(each)
    store._notes = {}
    store._fence = BEFORE
    store.queues = defaultdict(deque)


def ends(state: Frozen) -> set[float]:
    """Return when something of it ends, or is due."""
    holders, limits, periods, marks, _, _, due, _, _, starts = state
    found = {end for _, held in holders for _, _, end, _ in held}
    found.update(end for each in (limits, periods, marks) for _, _, end in each)
    found.update(time for place in state.places for time in (place.until, place.due))
    found.update(at for _, at in due)
    found.update(round(at + span, 3) for (_, span), each in starts for at, _ in each)
    return {end for end in found if 0.0 < end < float("inf")}

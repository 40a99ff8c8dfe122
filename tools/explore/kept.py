"""What two stores are to answer and to keep alike, in memory and on a server."""

import re
from collections import defaultdict
from collections.abc import Iterator
from math import ceil, inf
from typing import Any

from celery_redislock.store.store import Grant, Hold, Marked, Parked, Refusal, Release, Renewal, Sweep
from tools.explore.frozen import Frozen
from tools.explore.server import BROKERS, FOR_EVER, PREFIX, Key
from tools.explore.world import Copy, State


def compared(answer: Any) -> Any:
    """Return what two stores are to answer alike: not fences, nor times to the millisecond."""
    said: Any = answer
    match answer:
        case Grant():
            said = "granted", answer.taken_over, answer.repeated, answer.sent_again
        case Marked():
            said = "marked", answer.is_done
        case Refusal():
            said = "refused", sorted(map(_hold, answer.holds)), answer.number is None
        case Parked():
            said = answer.word, answer.place, _hold(answer.held_by), len(answer.promoted)
        case Release():
            said = "released", answer.released, _hold(answer.held_by), len(answer.promoted)
        case Renewal():
            said = "renewed", tuple(answer.renewed)
        case (str() as word, bytes(), Release() as release):
            said = "left", word, compared(release)
        case Sweep():
            said = "swept", sorted(map(_hold, answer.held)), len(answer.promoted), answer.elsewhere
    return said


def _hold(hold: Hold | None) -> Any:
    return () if hold is None else (hold.token, hold.state or "", hold.is_period)


def _seconds(value: float) -> float:
    """Return a time that is left, in whole halves: a server has spent some of it."""
    return ceil(2 * value - 0.05) / 2


def kept_in_memory(state: State) -> dict[str, Any]:
    """Return what the store in memory keeps, to be compared."""
    store: Frozen = state.store
    held = {name: {token for token, *_ in held} for name, held in store.holders}
    line = {}
    sent = {}
    for name, places in store.lines:
        # Who has lost what it was handed waits again as soon as somebody asks.
        is_handed = {place.id for place in places if place.is_sent} & held.get(name, set())
        line[name] = [place.id for place in places if place.id not in is_handed]
        sent[name] = is_handed
    return {
        "holders": {
            name: {(token, _seconds(end)) for token, _, end, _ in held} for name, held in store.holders
        },
        "marks": {(key, value, _seconds(end)) for key, value, end in store.marks if end < inf},
        "done": {key for key, _, end in store.marks if end == inf},
        "periods": {(name, _token(value), _seconds(end)) for name, value, end in store.periods},
        "line": {name: ids for name, ids in line.items() if ids},
        "sent": {name: ids for name, ids in sent.items() if ids},
        "lines": {name for name, _ in store.due},
        "sends": {id_: sends for id_, sends in store.sends if sends != (0, 0)},
        "merging": {(name, waiting[0]) for (name, _), waiting in store.merging},
        "newest": {(name, newest[0]) for (name, _), newest in store.newest},
        "starts": {(name, token) for (name, _), each in store.starts for _, token in each},
        "queue": [],
        "without an end": set(),
    }


#: What is compared.
_SETS = ("marks", "done", "periods", "lines", "merging", "newest", "starts", "without an end")
_BY_NAME = ("holders", "line", "sent", "sends")

#: Keys that may live for ever: messages that wait.
_LINES = frozenset({"line", "sent", "parked", "until", "merge", "lines"})


def kept_by_server(keys: list[Key], now: float) -> dict[str, Any]:
    """Return what a server keeps, to be compared."""
    found = _Found(now)
    for key in keys:
        whole = re.fullmatch(PREFIX + r":\{([^}]*)\}:([^:]+):?(.*)", key.name)
        name, part, rest = whole.groups() if whole else ("", key.name.removeprefix(f"{PREFIX}:"), "")
        if key.pttl < 0 and part not in _LINES | BROKERS:
            found.kept["without an end"].add(key.name)
        read = getattr(found, part, None)
        if read:
            read(name, key, rest)
    kept = found.kept
    found.bring_back()
    # One whose line is empty meanwhile is looked at once more.
    kept["lines"].intersection_update({*kept["line"], *kept["sent"]})
    return kept


class _Found:
    """Reads keys, each by the method of its name."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.kept: dict[str, Any] = {part: set() for part in _SETS} | {part: {} for part in _BY_NAME}
        self.kept["queue"] = []
        self._places: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def bring_back(self) -> None:
        """Count those as waiting that have lost what they were handed: they do as soon as somebody asks."""
        for name, places in self._places.items():
            handed = self.kept["sent"].get(name, set()) & {t for t, _ in self.kept["holders"].get(name, ())}
            self.kept["sent"][name] = handed
            self.kept["line"][name] = [
                id_ for id_ in sorted(places, key=places.__getitem__) if id_ not in handed
            ]
        for part in ("line", "sent"):
            self.kept[part] = {name: ids for name, ids in self.kept[part].items() if ids}

    def lock(self, name: str, key: Key, _: str) -> None:
        if not key.value.startswith(b"permits/"):
            self.kept["holders"][name] = {(_token(key.value), _seconds(key.pttl / 1000))}

    def permits(self, name: str, key: Key, _: str) -> None:
        ends = [(token.decode(), float(end) / 1000 - self._now) for token, end in _pairs(key.value)]
        if held := {(token, _seconds(end)) for token, end in ends if end > 0.0}:
            self.kept["holders"][name] = held

    def mark(self, name: str, key: Key, message: str) -> None:
        left = key.pttl / 1000
        if left > FOR_EVER / 2:
            self.kept["done"].add((name, message))
        else:
            word = b"done" if key.value == b"1" else b"ending"
            self.kept["marks"].add(((name, message), word, _seconds(left)))

    def period(self, name: str, key: Key, _: str) -> None:
        self.kept["periods"].add((name, _token(key.value), _seconds(key.pttl / 1000)))

    def line(self, name: str, key: Key, _: str) -> None:
        self._places[name].update({id_.decode(): float(place) for id_, place in _pairs(key.value)})

    def sent(self, name: str, key: Key, _: str) -> None:
        self.line(name, key, "")
        self.kept["sent"][name] = {id_.decode() for id_, _ in _pairs(key.value)}

    def lines(self, _: str, key: Key, __: str) -> None:
        self.kept["lines"] = {each.decode() for each, _ in _pairs(key.value)}

    def parked(self, _: str, key: Key, __: str) -> None:
        fields = {field.decode(): value for field, value in _pairs(key.value)}
        for id_ in {field.partition("\0")[0] for field in fields}:
            counts = tuple(int(fields.get(f"{id_}\0{what}", 0)) for what in ("sent", "kept"))
            if counts != (0, 0):
                self.kept["sends"][id_] = counts

    def merge(self, name: str, key: Key, _: str) -> None:
        self.kept["merging"].update((name, _token(value)) for _, value in _pairs(key.value))

    def newest(self, name: str, key: Key, _: str) -> None:
        self.kept["newest"].update((name, _token(value)) for _, value in _pairs(key.value))

    def starts(self, name: str, key: Key, span: str) -> None:
        starts = [each.decode().split(" ") for each in key.value]
        since = 1000 * self._now - int(span)
        self.kept["starts"].update((name, token) for at, token in starts if int(at) > since)

    def q(self, _: str, key: Key, __: str) -> None:
        self.kept["queue"] = sorted(_copy_in(text).token for text in key.value)


def _token(value: bytes) -> str:
    return value.partition(b"\0")[0].decode()


def _pairs(values: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(values[::2], values[1::2], strict=True)


def _copy_in(text: bytes) -> Copy:
    found = re.search(rb'"copy": "([^"]*)"', text)
    return Copy.loads((found[1] if found else text).decode())

"""What the page knows of a lock server: one look at it, and what is derived from that."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest
from typing import Any

from celery_redislock.operating.held import ORDERS
from celery_redislock.operating.server import Place
from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import Counts

#: The figures of the page, in its order.
FIGURES = ("running", "queued", "in line", "late", "skipped", "workers")


@dataclass(frozen=True)
class Sample:
    """One look: who holds and who waits, as the lock server told it slice by slice, not in one moment.

    Attributes:
        at: when it began, in seconds since the epoch.
        holders: the oldest first.
        lines: the first of each line, the longest first; where nobody waits, one that was handed its lock.
        counts: what was counted of tasks.
        rates: which rates of these lines have had their starts, by key.
        unserved: keys whose first in line belongs to a broker without workers, and that broker.
        free: keys with a line whose first could start, and that nobody held.
        headless: those of them that were free at the look before, too.
    """

    at: float
    holders: Sequence[Holder] = ()
    lines: Sequence[Place] = ()
    counts: Counts = field(default_factory=Counts)
    rates: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    unserved: Mapping[str, str] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    headless: frozenset[str] = frozenset()

    @cached_property
    def by_key(self) -> Mapping[str, Sequence[Holder]]:
        """Who holds which key."""
        return _grouped(self.holders, "key")

    @cached_property
    def lengths(self) -> Mapping[str, int]:
        """How many wait for which key."""
        return {place.waiter.key: place.length for place in self.lines}

    @cached_property
    def late(self) -> Sequence[Holder]:
        """Those whose renewal is overdue."""
        return [holder for holder in self.holders if holder.is_late]

    @cached_property
    def by_state(self) -> Mapping[str, Sequence[Holder]]:
        """Who is in which state."""
        return _grouped(self.holders, "state")

    @cached_property
    def texts(self) -> Mapping[int, str]:
        """What is searched of each holder, by its identity: folded once for all searches."""
        return {id(holder): text_of(holder).casefold() for holder in self.holders}

    @cached_property
    def queued(self) -> Mapping[str, Holder]:
        """The queued calls by their task ids."""
        return {holder.owner: holder for holder in self.by_state.get("queued", ())}

    def counted(self, what: str) -> Mapping[str, int]:
        """Return how often this was counted, by task."""
        found = self.counts.numbers.items()
        return {name: number for (name, event, *bound), number in found if event == what and not bound}

    def chosen(self, wanted: Mapping[str, str], most: int) -> tuple[int, Sequence[Holder]]:
        """Return how many holders fit, and the first so many of them, sorted.

        ``wanted``: ``state``, which may be ``late``; ``task`` and ``host``, and ``search`` in keys, tasks,
        owners and descriptions: texts that must be in there; ``sort``.
        """
        found: Iterable[Holder] = self.holders
        if state := wanted.get("state"):
            found = self.late if state == "late" else self.by_state.get(state, ())
        for name in ("task", "host"):
            if word := wanted.get(name):
                found = [one for one in found if has(word, getattr(one, name))]
        if word := wanted.get("search"):
            folded = word.casefold()
            found = [one for one in found if folded in self.texts[id(one)]]
        found = found if isinstance(found, Sequence) else [*found]
        sort = wanted.get("sort") or "age"
        # They are sorted by age as it is; and few of many are shown.
        return len(found), found[:most] if sort == "age" else nsmallest(most, found, key=ORDERS[sort])

    def figures(self, since: "Sample", workers: int) -> dict[str, int]:
        """Return the figures of the page; skips are those since another sample."""
        skipped = sum(self.counted("skipped").values()) - sum(since.counted("skipped").values())
        held = (len(self.by_state.get(state, ())) for state in ("running", "queued"))
        numbers = (*held, sum(self.lengths.values()))
        return dict(zip(FIGURES, (*numbers, len(self.late), max(0, skipped), workers), strict=True))


def _grouped(holders: Iterable[Holder], by: str) -> dict[str, list[Holder]]:
    found: dict[str, list[Holder]] = {}
    for holder in holders:
        found.setdefault(getattr(holder, by), []).append(holder)
    return found


def text_of(holder: Holder) -> str:
    """Return what is searched of a holder."""
    owner = None if holder.state == "foreign" else holder.owner
    return f"{holder.key}\n{holder.task or ''}\n{owner or ''}\n{holder.about or ''}"


def has(word: str, text: str | None) -> bool:
    """Whether a text is in another one, in small letters or large ones."""
    return text is not None and word.casefold() in text.casefold()


def sample_of(at: float, holders: Iterable[Holder], lines: Iterable[Place], **more: Any) -> Sample:
    """Return a sample, sorted."""
    oldest = sorted(holders, key=ORDERS["age"])
    longest = sorted(lines, key=lambda place: (-place.length, place.waiter.key))
    return Sample(at, oldest, longest, **more)

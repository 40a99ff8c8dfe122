"""Law 1, checked from a recorded history: who held what when, with which fence. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Interval:
    """One holder's time at work. Times are readings of one clock.

    Attributes:
        key: what it held.
        who: names it in what is found.
        fence: of its lease; ``None`` where the lock gives none.
        start: when it began to work.
        end: when it ended; its last sign of life where it was killed.
        lost_at: the deadline of its lease, where it had learnt of the loss by its end: what it did later
            it did as somebody who holds nothing. ``None``: it believed to the end that it was alone.
        limit: so many may hold the key at once, as it knew.
    """

    key: str
    who: str
    fence: int | None
    start: float
    end: float
    lost_at: float | None = None
    limit: int = 1

    @property
    def counts_until(self) -> float:
        """The end of the time in which nobody else may have been at work."""
        return self.end if self.lost_at is None else min(self.end, self.lost_at)

    @property
    def counts(self) -> bool:
        """It was at work at all while it held; one that was paused before it began may not have been."""
        return self.lost_at is None or self.lost_at > self.start


def violations(history: Iterable[Interval]) -> list[str]:
    """Return what contradicts mutual exclusion, in words; an empty list for a history that keeps it.

    Per key, no two may be at work at once while the leases of both are valid, or no more than the least limit
    that they know; and each one's fence must be larger than those of all who began before it.
    """
    of_key: dict[str, list[Interval]] = defaultdict(list)
    found = []
    for interval in history:
        if interval.end < interval.start:
            found.append(f"{interval.who} ended before it began")
        if interval.counts:
            of_key[interval.key].append(interval)
    for key, intervals in of_key.items():
        in_order = sorted(intervals, key=lambda interval: interval.start)
        found += _overlaps(key, in_order) + _fences(key, in_order)
    return found


def _overlaps(key: str, in_order: list[Interval]) -> list[str]:
    found = []
    at_work: list[Interval] = []
    for interval in in_order:
        at_work = [each for each in at_work if interval.start < each.counts_until]
        if len(at_work) >= min(each.limit for each in [*at_work, interval]):
            overlap = min(each.counts_until for each in [*at_work, interval]) - interval.start
            who = ", ".join(each.who for each in at_work)
            found.append(f"{who} and {interval.who} held {key!r} at once for {overlap:.3f} s")
        at_work.append(interval)
    return found


def _fences(key: str, in_order: list[Interval]) -> list[str]:
    fenced = [(interval.fence, interval.who) for interval in in_order if interval.fence is not None]
    return [
        f"{who} has fence {fence} on {key!r}, not more than {before} of {earlier} before it"
        for (before, earlier), (fence, who) in pairwise(fenced)
        if fence <= before
    ]

"""Figures by task: what the scripts have counted of it, what it holds, and how many of its calls wait."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from celery_redislock.operating import telling
from celery_redislock.operating.server import LockServer

#: What is counted, in the order in which it is shown.
EVENTS = ("accepted", "started", "skipped", "asked", "waited", "merged", "lost", "forced", "restored")

#: Upper bounds in seconds of how long calls wait and runs hold, as the scripts have them (history.lua).
BOUNDS = ("0.1", "0.5", "1", "5", "15", "60", "300", "900", "3600", "inf")

#: Locks that are looked at.
MOST = 10_000


@dataclass
class Figures:
    """The figures of one task.

    Attributes:
        events: how often, by :data:`EVENTS`.
        held: how many locks it holds, by state.
        oldest: the age of the oldest of them in seconds, by state.
        late: runs whose renewal is overdue: most likely dead.
        in_line: messages that wait for a lock; all of a line count for the task of the first one.
        times: by ``wait`` and ``hold``, how many took no longer than each of :data:`BOUNDS`, and more than
            the one before; and ``ms``, the sum. With ``redislock_metrics`` only.
    """

    events: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EVENTS, 0))
    held: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    oldest: dict[str, float] = field(default_factory=dict)
    late: int = 0
    in_line: int = 0
    times: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def mean(self, what: str) -> float | None:
        """Return the mean of ``wait`` or ``hold`` in seconds; ``None`` where nothing was measured."""
        times = self.times.get(what, {})
        number = sum(times.get(bound, 0) for bound in BOUNDS)
        return times.get("ms", 0) / 1000 / number if number else None


def census(server: LockServer, *, task: str | None = None) -> tuple[float | None, dict[str, Figures]]:
    """Return since when was counted, in seconds since the epoch, and the figures by task.

    ``task``: a pattern of names. A request for the counts, and a walk over the locks that are held, up to
    :data:`MOST`, and over the lines. Raises ``LockUnavailable``.
    """
    figures: dict[str, Figures] = defaultdict(Figures)
    counts = server.store.counts()
    for (name, what, *bound), number in counts.numbers.items():
        if bound:
            figures[name].times[what][bound[0]] = number
        elif what in EVENTS:
            figures[name].events[what] = number
    for holder in islice(server.holders(), MOST):
        one = figures[holder.task or "-"]
        one.held[holder.state] += 1
        one.late += holder.is_late
        one.oldest[holder.state] = max(telling.age(holder) or 0.0, one.oldest.get(holder.state, 0.0))
    for place in server.places(last=0):
        figures[place.waiter.task or "-"].in_line += place.length
    chosen = {name: one for name, one in figures.items() if task is None or fnmatchcase(name, task)}
    return counts.since, chosen


def document_of(figures: Mapping[str, Figures]) -> dict[str, dict[str, Any]]:
    """Return the object of each task, by name."""
    return {name: _object_of(one) for name, one in sorted(figures.items())}


def _object_of(one: Figures) -> dict[str, Any]:
    means = {"mean_wait": one.mean("wait"), "mean_hold": one.mean("hold")}
    return {"events": one.events, "held": one.held, "late": one.late, "in_line": one.in_line, **means}

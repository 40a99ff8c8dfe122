"""What is concluded from facts: pure functions over what the bodies wrote down."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Body", "Outcome", "bodies_of", "most_at_once", "number_of", "once_a_tick"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a library fared in a scenario.

    Attributes:
        passed: whether what is wanted was seen; ``None``: the library has no means for it.
        seen: in a few words, with the numbers.
    """

    passed: bool | None
    seen: str

    def __str__(self) -> str:
        mark = {True: "✓", False: "✗", None: "n/a:"}[self.passed]
        return f"{mark} {self.seen}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Body:
    """One execution of a task's body.

    Attributes:
        task: name of the task, without that of the app.
        args: its positional arguments, as text.
        task_id: of the message that it runs for.
        pid: the process it was in.
        retries: how often the message was retried before.
        eager: it ran in the caller.
        start: seconds, by a clock that all processes share.
        end: the same; ``None`` while it is on, and for ever if it was killed.
    """

    task: str
    args: str
    task_id: str
    pid: int
    retries: int
    eager: bool
    start: float
    end: float | None = None


def bodies_of(starts: Mapping[str, Mapping[str, Any]], ends: Mapping[str, float]) -> list[Body]:
    """Return the bodies in the order they began, from what was noted under their numbers."""
    bodies = [Body(**about, end=ends.get(number)) for number, about in starts.items()]
    return sorted(bodies, key=lambda body: body.start)


def most_at_once(bodies: Iterable[Body]) -> int:
    """Return how many bodies were on at the same time, at most; without an end: for ever."""
    changes = []
    for body in bodies:
        changes += [(body.start, 1), (math.inf if body.end is None else body.end, -1)]
    most = now = 0
    # At one moment ends come first: who follows at once does not overlap.
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def number_of(count: int, thing: str) -> str:
    """Return ``"1 run"``, ``"2 runs"``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def once_a_tick(bodies: Iterable[Body], first: float, every: float, ticks: int, entries: int = 1) -> Outcome:
    """Judge whether each of some ticks had one run, within the time until the next one.

    Args:
        bodies: those that began before or after these ticks do not count.
        first: seconds, when the time of the first tick begins, by the clock of the bodies.
        every: seconds between two of them.
        ticks: how many each entry had.
        entries: how many there were; each has arguments of its own.
    """
    each = [(body.args, math.floor((body.start - first) / every)) for body in bodies]
    counted = [(args, tick) for args, tick in each if 0 <= tick < ticks]
    wanted = ticks * entries
    seen = f"{number_of(len(counted), 'run')} for {number_of(wanted, 'tick')}"
    missed = wanted - len(set(counted))
    repeated = len(counted) - len(set(counted))
    if missed:
        seen += f": {missed} missed" + (f", {repeated} repeated" if repeated else "")
    return Outcome(not missed and not repeated, seen)

"""What bodies did, and what of it must never be: pure, from records alone."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Run", "overlaps", "unordered_fences"]


@dataclass(frozen=True, slots=True)
class Run:
    """One body under one lease. Times are seconds of one clock on one host.

    Attributes:
        key: what was locked.
        task_id: of the message.
        token: of the lease.
        fence: of the lease.
        start: when the body began.
        end: when it ended; of one that was killed the last sign of life.
        trusted_until: the last deadline of its lease that the body knew of.
        ended_by: ``""``, an exception's name, or ``None`` where no end was noted.
        lost: the lease was lost when the task was over; ``None`` where that was not noted.
    """

    key: str
    task_id: str
    token: str
    fence: int
    start: float
    end: float
    trusted_until: float
    ended_by: str | None
    lost: bool | None


def overlaps(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of one key whose later began while the earlier was on and could trust its lease.

    After its deadline a body that was paused may still be on: that is what the fence is for.
    """
    found = []
    for of_one_key in _by_key(runs):
        for place, later in enumerate(of_one_key):
            found += [
                (earlier, later)
                for earlier in of_one_key[:place]
                if later.start < min(earlier.end, earlier.trusted_until)
            ]
    return found


def unordered_fences(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Return the neighbours of one key of which the later did not draw the larger fence."""
    return [
        (earlier, later)
        for of_one_key in _by_key(runs)
        for earlier, later in itertools.pairwise(of_one_key)
        if later.fence <= earlier.fence
    ]


def _by_key(runs: Iterable[Run]) -> list[list[Run]]:
    keys: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.start):
        keys.setdefault(run.key, []).append(run)
    return list(keys.values())

"""What a scenario is, and how a function becomes one."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.scoreboard.judging import Outcome
from benchmarks.scoreboard.stage import Stage

__all__ = ["Play", "Scenario", "scenario"]

Play = Callable[[Stage], Outcome]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table.

    Attributes:
        number: two digits.
        title: what happens, and what is wanted.
        play: plays it and judges what was seen.
        starts_worker: it starts the worker itself, when it is time.
        visibility: seconds after which the broker delivers again what is not acknowledged; ``None``: an hour.
        term: seconds without a sign of life after which a worker counts as dead, where a library does so;
            ``None``: its default.
    """

    number: str
    title: str
    play: Play
    starts_worker: bool = False
    visibility: int | None = None
    term: float | None = None


def scenario(
    number: str,
    title: str,
    *,
    starts_worker: bool = False,
    visibility: int | None = None,
    term: float | None = None,
) -> Callable[[Play], Scenario]:
    """Make a scenario of the function that plays it."""
    return lambda play: Scenario(number, title, play, starts_worker, visibility, term)

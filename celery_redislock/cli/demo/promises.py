"""Each scene's expectation, and the verdict on what was seen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PROMISES", "AtMost", "Line", "Promise"]


@dataclass(frozen=True, slots=True)
class AtMost:
    """An expectation that a number is not larger."""

    number: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and other <= self.number

    __hash__ = None  # type: ignore[assignment]  # equal to many numbers

    def __format__(self, spec: str) -> str:
        return f"at most {self.number:{spec}}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Attributes:
        title: the promise.
        expected: in words.
        seen: in the same words, or what went wrong.
        agrees: whether every fact is as expected.
    """

    title: str
    expected: str
    seen: str
    agrees: bool


@dataclass(frozen=True, slots=True)
class Promise:
    """What a scene must show.

    Attributes:
        title: of the scene.
        wording: how its facts are said, expected and seen ones alike.
        expected: the facts, by name; each must be there and equal.
    """

    title: str
    wording: str
    expected: Mapping[str, Any]

    def line(self, facts: Mapping[str, Any]) -> Line:
        """Compare what was seen with what was promised."""
        agrees = facts.keys() == self.expected.keys() and all(
            promised == facts[name] for name, promised in self.expected.items()
        )
        try:
            seen = self.wording.format(**facts)
        except (KeyError, TypeError, ValueError):
            seen = f"incomplete facts: {dict(facts)}"
        return Line(self.title, self.wording.format(**self.expected), seen, agrees)

    def broken(self, error: BaseException) -> Line:
        """Report a scene that did not come to its end."""
        return Line(
            self.title, self.wording.format(**self.expected), f"{type(error).__name__}: {error}", False
        )


#: In the order of the table, by the scene's name.
PROMISES: Mapping[str, Promise] = {
    "crowd": Promise(
        "50 calls of delay() at the same moment",
        "runs: {runs}; duplicates: {duplicates}; different task ids: {ids}",
        {"runs": 1, "duplicates": 49, "ids": 1},
    ),
    "account": Promise(
        "two tasks, one account, six calls",
        "runs: {runs}; at the same time: {at_once}; results: {results}",
        {"runs": 6, "at_once": 1, "results": [1, 2, 3, -1, -2, -3]},
    ),
    "long": Promise(
        "a body five times as long as its lock's ttl",
        "runs: {runs}; at the same time: {at_once}; duplicates meanwhile: {duplicates} of {calls}",
        {"runs": 1, "at_once": 1, "duplicates": 15, "calls": 15},
    ),
    "kill": Promise(
        "kill -9 of the pool process that holds a lock",
        "held before: {held}; free after: {seconds:.1f} s; next run: {next_run}",
        {"held": "yes", "seconds": AtMost(10.0), "next_run": "SUCCESS"},
    ),
    "failure": Promise(
        "a task that fails, ten times in a row",
        "failed: {failed}; held its lock: {held}; free when get() raised: {free}",
        {"failed": 10, "held": 10, "free": 10},
    ),
    "chord": Promise(
        "a chord with a duplicate member",
        "sum: {sum}; duplicates at the same time: {at_once}",
        {"sum": 34, "at_once": 1},
    ),
}

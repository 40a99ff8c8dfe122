"""Figures from interleaved pairs, and the table they are shown in.

Two things are compared by measuring them in turn, round after round, on the
same machine at the same time: a noisy neighbour slows both. Each round gives
one ratio; what counts is their median, and the least and largest show how far
to trust it.
"""

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Figure", "machine", "ratios", "report", "rounds", "say"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure: its values round by round, and what it should be.

    Attributes:
        name: what was measured.
        values: one per round.
        target: what the median should be; ``None`` where it is for information only.
        at_least: the target is a lower bound; otherwise an upper one.
        unit: of the values; ``x`` for a ratio.
    """

    name: str
    values: Sequence[float]
    target: float | None = None
    at_least: bool = False
    unit: str = "x"

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        missed_by = self.target - self.median if self.at_least else self.median - self.target
        return "reached" if missed_by <= 0 else f"missed by {missed_by:.3g} {self.unit}"

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "least": min(self.values),
            "median": self.median,
            "largest": max(self.values),
            "unit": self.unit,
            "target": self.target,
            "bound": None if self.target is None else "at least" if self.at_least else "at most",
            "verdict": self.verdict,
        }


def rounds(
    count: int, contenders: Mapping[str, Callable[[], Mapping[str, float]]]
) -> dict[str, dict[str, list[float]]]:
    """Measure all contenders in turn, ``count`` times, the order turned by one place each round.

    Returns:
        contender -> quantity -> values by round. A first round to warm up is not counted.
    """
    found: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}
    names = list(contenders)
    for number in range(count + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            for quantity, value in contenders[name]().items():
                if number:
                    found[name].setdefault(quantity, []).append(value)
    return found


def ratios(found: Mapping[str, Mapping[str, list[float]]], what: str, one: str, other: str) -> list[float]:
    """Return one contender's quantity divided by the other's, round by round."""
    return [a / b for a, b in zip(found[one][what], found[other][what], strict=True)]


def report(title: str, figures: Sequence[Figure], *, json_path: str | None) -> None:
    """Print the table; with a path also write JSON there (``-``: JSON alone, to standard output)."""
    if json_path:
        data = {"title": title, "machine": machine(), "figures": [figure.as_json() for figure in figures]}
        text = json.dumps(data, indent=2)
        if json_path == "-":
            print(text)
            return
        Path(json_path).write_text(text + "\n", encoding="utf-8")
    print(f"{title} ({machine()})\n")
    print(f"{'':66} {'least':>8} {'median':>8} {'largest':>8}       target")
    for figure in figures:
        bound = "" if figure.target is None else f"{'>=' if figure.at_least else '<='} {figure.target:g}"
        print(
            f"{figure.name:66} {min(figure.values):8.3g} {figure.median:8.3g} {max(figure.values):8.3g} "
            f"{figure.unit:4} {bound:>8}  {figure.verdict}"
        )
    print()


def machine() -> str:
    """Describe the machine without naming it."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def say(text: str) -> None:
    """Tell the person waiting what goes on; not on standard output, which may be JSON."""
    print(text, file=sys.stderr, flush=True)

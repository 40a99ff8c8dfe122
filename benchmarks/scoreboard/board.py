"""The board: what was measured, as a file, and as the table in the README."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import ROOT
from benchmarks.scoreboard.judging import Outcome
from benchmarks.scoreboard.libraries import LIBRARIES, OURS

__all__ = ["README", "RESULTS", "Board", "table_in", "with_table"]

RESULTS = Path(__file__).parent / "results.json"
README = ROOT / "README.md"
BEGIN = "<!-- scoreboard: written by python -m benchmarks.scoreboard -->"
END = "<!-- end of scoreboard -->"


@dataclass(slots=True)
class Board:
    """Outcomes by library and scenario.

    Attributes:
        conditions: what was measured with.
        versions: by library.
        outcomes: by library, then by the scenario's number.
    """

    conditions: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = RESULTS) -> "Board":
        """Return the board kept in a file; an empty one if there is none."""
        if not path.exists():
            return cls()
        data = json.loads(path.read_text(encoding="utf-8"))
        outcomes = {
            library: {number: Outcome(**outcome) for number, outcome in column.items()}
            for library, column in data["outcomes"].items()
        }
        return cls(data["conditions"], data["versions"], outcomes)

    def write(self, path: Path = RESULTS) -> None:
        """Keep it in a file."""
        data = {
            "conditions": self.conditions,
            "versions": self.versions,
            "outcomes": {
                library: {number: outcome.as_json() for number, outcome in sorted(column.items())}
                for library, column in self.outcomes.items()
            },
        }
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def passed(self, library: str) -> str:
        """Return how many a library passed, of those it has the means for."""
        verdicts = [outcome.passed for outcome in self.outcomes[library].values()]
        return f"{verdicts.count(True)} of {len(verdicts) - verdicts.count(None)}"

    def table(self, titles: Mapping[str, str]) -> str:
        """Return it as a Markdown table, and the conditions below.

        Args:
            titles: of the scenarios, by number.
        """
        libraries = [name for name in LIBRARIES if name in self.outcomes]
        rows = [["scenario and what is wanted", *libraries], ["---"] * (len(libraries) + 1)]
        for number, title in titles.items():
            cells = [self.outcomes[library].get(number) for library in libraries]
            rows.append([f"{number} {title}", *(str(cell or "") for cell in cells)])
        rows.append(["**passed**", *(f"**{self.passed(library)}**" for library in libraries)])
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([*lines, "", self._below(libraries)])

    def _below(self, libraries: list[str]) -> str:
        versions = ", ".join(
            f"{name} {self.versions[name]}{' (this checkout)' if name == OURS else ''}" for name in libraries
        )
        with_what = ", ".join(f"{name} {version}" for name, version in self.conditions.items())
        return f"Measured: {versions}. With: {with_what}."


def with_table(page: str, table: str) -> str:
    """Return a page with the table between its two marks."""
    before, _, rest = page.partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def table_in(page: str) -> str:
    """Return what a page has between the two marks.

    Raises:
        ValueError: it has not exactly one of each.
    """
    if (page.count(BEGIN), page.count(END)) != (1, 1):
        message = f"there must be one {BEGIN} and one {END}"
        raise ValueError(message)
    return page.partition(BEGIN)[2].partition(END)[0].strip()

"""The board: what was measured, as a file, as a table in its page, and as the last row in the README."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import ROOT
from benchmarks.scoreboard.judging import Outcome
from benchmarks.scoreboard.libraries import LIBRARIES, OURS

__all__ = ["PAGE", "README", "RESULTS", "Board", "check_pages", "table_in", "with_table", "write_pages"]

RESULTS = Path(__file__).parent / "results.json"
#: Has the whole table.
PAGE = ROOT / "docs" / "scoreboard.md"
#: Has its last row.
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
        rows = []
        for number, title in titles.items():
            cells = [self.outcomes[library].get(number) for library in self._libraries]
            rows.append([f"{number} {title}", *(str(cell or "") for cell in cells)])
        return f"{self._rows('scenario and what is wanted', rows)}\n\n{self._below()}"

    def totals(self) -> str:
        """Return how many each library passed, as a Markdown table of one row."""
        return self._rows("", [])

    @property
    def _libraries(self) -> list[str]:
        return [name for name in LIBRARIES if name in self.outcomes]

    def _rows(self, head: str, rows: list[list[str]]) -> str:
        first = [[head, *self._libraries], ["---"] * (len(self._libraries) + 1)]
        last = ["**passed**", *(f"**{self.passed(library)}**" for library in self._libraries)]
        return "\n".join(f"| {' | '.join(row)} |" for row in (*first, *rows, last))

    def _below(self) -> str:
        versions = ", ".join(
            f"{name} {self.versions[name]}{' (this checkout)' if name == OURS else ''}"
            for name in self._libraries
        )
        with_what = ", ".join(f"{name} {version}" for name, version in self.conditions.items())
        return f"Measured: {versions}. With: {with_what}."


def check_pages() -> None:
    """Look whether both pages have a place for what is written there.

    Raises:
        ValueError: one of them has not.
    """
    for path in (PAGE, README):
        try:
            table_in(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None


def write_pages(board: Board, titles: Mapping[str, str]) -> None:
    """Write the table into its page, and its last row into the README.

    Args:
        board: what was measured.
        titles: of the scenarios, by number.
    """
    for path, table in ((PAGE, board.table(titles)), (README, board.totals())):
        path.write_text(with_table(path.read_text(encoding="utf-8"), table), encoding="utf-8")


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

"""Run the tests with the versions that users have: ``python -m tools.newest [--folder FOLDER] [PYTHON ...]``.

Each combination (``tools/newest/combinations.py``) has an environment of its own. What this machine's release
of Debian does not have is fetched from the next ones into a folder; nothing is installed. Exit status 0 only
if no test failed. What cannot be had here is named, and left out.
"""

import argparse
import json
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from tools.newest.combinations import COMBINATIONS, HERE, PYPI, Combination
from tools.newest.suite import Suite, this_release
from tools.newest.trial import ROOT, STEPS, MissingError, Outcome, Trial
from tools.record import Table, add_record, keep

#: Columns of the table.
VERSIONS = ("Python", "Celery", "kombu", "redis-py", "lock server")
COLUMNS = (*VERSIONS, *STEPS, "day")


def main() -> int:
    """Run what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    known = {each.python: each for each in COMBINATIONS}
    parser.add_argument(
        "pythons", nargs="*", metavar="PYTHON", choices=[[], *known], help="such as 3.14; all without"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build/newest", help="build/newest without")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="tests at once; 2 without")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=[*STEPS], help="all without")
    add_record(parser)
    arguments = parser.parse_args()
    if arguments.record and arguments.steps != [*STEPS]:
        parser.error("--record keeps whole rows: leave --steps out")
    chosen = [known[python] for python in arguments.pythons] or COMBINATIONS
    folder = arguments.folder.resolve()
    rows, status = _run(chosen, folder, arguments)
    print(f"\n| {' | '.join([*VERSIONS, *arguments.steps, 'day'])} |")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    if arguments.record and rows:
        kept = merged(_kept(arguments.record), rows)
        machine = this_release().get("PRETTY_NAME", platform.platform())
        keep(
            arguments.record,
            "newest",
            [Table(COLUMNS, kept)],
            versions=("celery_redislock",),
            machine=machine,
        )
    return status if rows else 1


def _run(
    chosen: Sequence[Combination], folder: Path, arguments: argparse.Namespace
) -> tuple[list[list[str]], int]:
    suites = {
        each.origin: Suite(each.origin, folder)
        for combination in chosen
        for each in (combination.interpreter, combination.store)
        if each.origin not in {HERE, PYPI}
    }
    rows = []
    status = 0
    for combination in chosen:
        trial = Trial(combination, folder, suites, arguments.jobs)
        try:
            trial.prepare()
        except MissingError as missing:
            print(f"Left out: Python {combination.python} with {combination.server}: {missing}.")
            continue
        versions = trial.versions()
        print(f"\n=== {', '.join(map(' '.join, zip(VERSIONS, versions, strict=True)))}", flush=True)
        outcomes: list[Outcome] = [trial.run(step) for step in arguments.steps]
        status |= any(each.failed for each in outcomes)
        today = datetime.now(timezone.utc).date().isoformat()
        rows.append([*versions, *map(str, outcomes), today])
    return rows, status


def merged(kept: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the rows that were kept, with new ones in place of those of the same Python, in its order."""
    by_minor = {_minor(row[0]): row for row in (*kept, *rows)}
    return [by_minor[minor] for minor in sorted(by_minor)]


def _minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def _kept(path: Path) -> Sequence[Sequence[str]]:
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return [row for columns, rows in record.get("newest", {}).get("tables", []) for row in rows]


if __name__ == "__main__":
    raise SystemExit(main())

"""What a tool has found, kept for the page of proof: ``--record docs/proof.json``."""

import json
import platform
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

__all__ = ["Table", "add_record", "keep"]


#: Packages whose versions are kept.
NAMED = ("celery_redislock", "celery", "kombu", "redis")


class Table(NamedTuple):
    """Figures in columns; each cell is a text or a number."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]


def add_record(parser: ArgumentParser) -> None:
    """Add the option that says where to keep the figures."""
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the figures, for the page of proof")


def keep(
    path: Path | None,
    tool: str,
    tables: Iterable[Table],
    *,
    versions: Sequence[str] = ("Python", *NAMED),
    **drawn: object,
) -> None:
    """Keep the figures of a tool, in place of its last ones, with the day, the versions and what was drawn.

    ``path`` is ``None`` where nothing is to be kept. ``drawn`` has seeds and times, by their names.
    ``versions`` names those to keep: none where the figures are of others than the tool runs with.
    """
    if path is None:
        return
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept[tool] = {
        "day": datetime.now(timezone.utc).date().isoformat(),
        "versions": {
            name: platform.python_version() if name == "Python" else version(name) for name in versions
        },
        "drawn": drawn,
        "tables": [[list(table.columns), [list(map(str, row)) for row in table.rows]] for table in tables],
    }
    path.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")

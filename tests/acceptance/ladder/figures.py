"""What the ladder measured: seconds, by ending and pool, in a JSON file."""

import fcntl
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

__all__ = ["FIGURES", "Figures", "note", "read"]

#: The figures the page is made of.
FIGURES = Path(__file__).with_name("figures.json")

#: By ending and pool; ``None`` where nothing was locked.
Seconds = dict[str, dict[str, float | None]]


class Figures(NamedTuple):
    """One run's figures.

    Attributes:
        versions: of what it ran with, by name.
        seconds: from an ending's cause to its free lock.
    """

    versions: dict[str, str]
    seconds: Seconds

    @classmethod
    def loads(cls, text: str) -> "Figures":
        """Read the file's text; empty is no figures."""
        return cls(**(json.loads(text) if text else {"versions": {}, "seconds": {}}))

    def dumps(self) -> str:
        """Write the file's text."""
        return json.dumps(self._asdict(), indent=1, sort_keys=True) + "\n"


def note(ending: str, pool: str, seconds: float | None) -> None:
    """Write a figure down, where ``LADDER_JSON`` names a file; many processes may at once."""
    path = os.environ.get("LADDER_JSON")
    if not path:
        return
    with Path(path).open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        figures = Figures.loads(file.read())
        figures.versions.update({name: version(name) for name in ("celery", "kombu", "billiard", "redis")})
        figures.seconds.setdefault(ending, {})[pool] = None if seconds is None else round(seconds, 2)
        file.seek(0)
        file.truncate()
        file.write(figures.dumps())


def read(path: Path = FIGURES) -> Figures:
    """Return what a run measured."""
    return Figures.loads(path.read_text(encoding="utf-8"))

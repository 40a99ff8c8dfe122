"""How a lock looks to people and to programs."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from celery_redislock.handle import Holder
from celery_redislock.locks.store import Hold

__all__ = ["LockView", "duration", "printable", "table"]


@dataclass(frozen=True, slots=True)
class LockView:
    """One held lock, when it was looked at; the keys of ``--json``. Times are float seconds.

    Attributes:
        key: the lock's name.
        state: ``queued``, ``running``, ``window`` or ``foreign``.
        task: the task's name; ``None`` if unknown, as is everything below.
        owner: the task id.
        host: where the claim or the run was taken.
        pid: of that process.
        since: seconds since the epoch.
        age: since then, by this machine's clock.
        remaining: until the hold ends unless it is renewed; ``None`` for never (a foreign lock).
        token: the term of holding.
    """

    key: str
    state: str
    task: str | None
    owner: str
    host: str | None
    pid: int | None
    since: float | None
    age: float | None
    remaining: float | None
    token: str

    @classmethod
    def of(cls, hold: Hold, *, now: float | None = None) -> "LockView":
        """Read a hold; what its holder wrote about itself is not trusted to be what we write."""
        holder = Holder.of(hold)
        since = holder.since if isinstance(holder.since, int | float) else None
        return cls(
            key=hold.name,
            state=holder.state,
            task=holder.task if isinstance(holder.task, str) else None,
            owner=holder.owner,
            host=holder.host if isinstance(holder.host, str) else None,
            pid=holder.pid if isinstance(holder.pid, int) else None,
            since=since,
            age=None if since is None else round(max(0.0, (now or time.time()) - since), 3),
            remaining=holder.remaining if math.isfinite(holder.remaining) else None,
            token=holder.token,
        )

    @property
    def where(self) -> str:
        """Host and process."""
        return "-" if self.host is None else f"{self.host}:{self.pid}"

    def as_json(self) -> dict[str, Any]:
        """Return the object of ``--json``."""
        return asdict(self)

    def row(self) -> tuple[str, ...]:
        """Return the cells of :func:`table`."""
        age = "-" if self.age is None else duration(self.age)
        remaining = "no end" if self.remaining is None else duration(self.remaining)
        return (self.key, self.state, self.task or "-", self.owner, self.where, age, remaining)

    def __str__(self) -> str:
        task = "" if self.task is None else f"{self.task}, "
        return printable(f"{self.owner} ({task}{self.state}, {self.where})")


def table(views: Sequence[LockView]) -> str:
    """Lay locks out in columns."""
    rows = [("KEY", "STATE", "TASK", "OWNER", "WHERE", "AGE", "REMAINING")]
    rows += [tuple(printable(cell) for cell in view.row()) for view in views]  # type: ignore[misc]  # seven each
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def duration(seconds: float) -> str:
    """Write seconds as one would say them: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, smaller, smaller_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // smaller} {smaller_name}"
    return f"{whole} s"


def printable(text: str) -> str:
    """Escape what a terminal would obey: keys and holders may have been written by anybody."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

"""What the demo's tasks write down while they run: the evidence every verdict is made from."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Entry", "Notebook", "count_runs", "most_at_once"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the notebook.

    Attributes:
        what: ``start`` or ``end`` of a body.
        task_id: whose.
        pid: the pool child's.
        held: whether the body held its lock then; ``None`` where it did not look.
    """

    what: str
    task_id: str
    pid: int
    held: bool | None = None


class Notebook:
    """Lists on the server, one per subject, in the order in which things happened.

    A body writes ``start`` after it began and ``end`` before it is over, so
    two runs that overlap here did overlap.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        """Write with this redis-py client, under this prefix."""
        self._client = client
        self._prefix = prefix

    @contextmanager
    def run(self, subject: str, task_id: str, *, held: bool | None = None) -> Iterator[None]:
        """Write down the start and the end of a body; a killed one has no end."""
        self._write(subject, "start", task_id, held)
        try:
            yield
        finally:
            self._write(subject, "end", task_id, None)

    def entries(self, subject: str) -> list[Entry]:
        """Return what was written down about a subject so far."""
        lines = self._client.lrange(self._key("runs", subject), 0, -1)
        return [Entry(**json.loads(line)) for line in lines]

    def let_go(self, subject: str) -> None:
        """Tell the bodies that wait for this that they may end."""
        self._client.set(self._key("go", subject), "1", ex=600)

    def is_let_go(self, subject: str) -> bool:
        """Whether they were told."""
        return bool(self._client.exists(self._key("go", subject)))

    def erase(self) -> None:
        """Delete every key that begins with the prefix: notes, results, messages, locks."""
        names = list(self._client.scan_iter(match=f"{self._prefix}*", count=1000))
        for start in range(0, len(names), 500):
            self._client.delete(*names[start : start + 500])

    def _write(self, subject: str, what: str, task_id: str, held: bool | None) -> None:
        key = self._key("runs", subject)
        line = json.dumps({"what": what, "task_id": task_id, "pid": os.getpid(), "held": held})
        self._client.rpush(key, line)
        self._client.expire(key, 600)

    def _key(self, kind: str, subject: str) -> str:
        return f"{self._prefix}{kind}:{subject}"


def count_runs(entries: Sequence[Entry]) -> int:
    """Return how many bodies began."""
    return sum(entry.what == "start" for entry in entries)


def most_at_once(entries: Sequence[Entry]) -> int:
    """Return how many bodies were on at the same time, at most."""
    now = most = 0
    for entry in entries:
        now += 1 if entry.what == "start" else -1
        most = max(most, now)
    return most

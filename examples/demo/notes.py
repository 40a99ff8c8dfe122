"""What the demo's tasks write down while they run: the evidence for every verdict."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from celery import Celery

__all__ = ["Note", "Notes", "count_runs", "most_at_once"]

#: Seconds a body waits at most for the signal to end: no scene takes longer.
PATIENCE = 30.0

Note = Mapping[str, Any]


class Notes:
    """Lists on the result backend's server, one per subject, in the order in which things happened.

    A body writes ``start`` after it has begun and ``end`` before it ends, so two runs that overlap
    here did overlap.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app

    @contextmanager
    def run(self, subject: str, task_id: str, **facts: object) -> Iterator[None]:
        """Write down the start and the end of a body; a killed one has no end."""
        self.write(subject, what="start", task_id=task_id, pid=os.getpid(), **facts)
        try:
            yield
        finally:
            self.write(subject, what="end")

    def write(self, subject: str, **note: object) -> None:
        """Write something down."""
        self._client.rpush(f"notes:{subject}", json.dumps(note))

    def of(self, subject: str) -> list[Note]:
        """Return what was written down about a subject so far."""
        return [json.loads(line) for line in self._client.lrange(f"notes:{subject}", 0, -1)]

    def let_go(self, subject: str) -> None:
        """Signal the bodies that wait for this that they may end."""
        self._client.set(f"go:{subject}", "1")

    def wait_for(self, subject: str) -> None:
        """Wait for that signal, in a body."""
        deadline = time.monotonic() + PATIENCE
        while not self._client.exists(f"go:{subject}") and time.monotonic() < deadline:
            time.sleep(0.02)

    @property
    def _client(self) -> Any:
        return self._app.backend.client


def count_runs(notes: Sequence[Note]) -> int:
    """Return how many bodies began."""
    return sum(note["what"] == "start" for note in notes)


def most_at_once(notes: Sequence[Note]) -> int:
    """Return how many bodies ran at the same time, at most."""
    now = most = 0
    for note in notes:
        now += 1 if note["what"] == "start" else -1
        most = max(most, now)
    return most

"""What the bodies write down, and how long they are kept on: kept on the scenario's own server."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import redis

from benchmarks.scoreboard.judging import Body, bodies_of

__all__ = ["Journal"]

#: A database that neither Celery nor a library uses.
DATABASE = 15
#: Seconds after which nothing is kept on any longer, whatever has become of the scenario.
KEPT = 120
#: Seconds between two looks of a body that is kept on.
LOOK = 0.02


class Journal:
    """The facts of one scenario.

    Args:
        url: of the server, ``redis://host:port/0``.
    """

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url, db=DATABASE, decode_responses=True)
        self.broker = redis.Redis.from_url(url, decode_responses=True)

    @contextmanager
    def body(self, task: Any) -> Iterator[None]:
        """Note that a body of this task has begun, and its end."""
        number = uuid4().hex
        about = {
            "task": task.name.rpartition(".")[2],
            "args": repr(task.request.args),
            "task_id": task.request.id,
            "pid": os.getpid(),
            "retries": task.request.retries,
            "eager": bool(task.request.is_eager),
            "start": time.monotonic(),
        }
        self._redis.hset("starts", number, json.dumps(about))
        try:
            yield
        finally:
            self._redis.hset("ends", number, time.monotonic())

    def stay(self, task: Any, seconds: float = 0.0) -> None:
        """Stay on for some seconds, and for as long as the task is kept on; not in eager mode."""
        until = time.monotonic() + seconds
        name = f"kept:{task.name.rpartition('.')[2]}"
        while not task.request.is_eager and (time.monotonic() < until or self._redis.exists(name)):
            time.sleep(LOOK)

    @contextmanager
    def kept_on(self, name: str) -> Iterator[None]:
        """Keep the bodies of a task on until the block ends."""
        self._redis.set(f"kept:{name}", 1, ex=KEPT)
        try:
            yield
        finally:
            self._redis.delete(f"kept:{name}")

    def bodies(self) -> list[Body]:
        """Return every body there was so far, in the order they began."""
        starts, ends = self._redis.hgetall("starts"), self._redis.hgetall("ends")
        return bodies_of(
            {str(number): json.loads(about) for number, about in starts.items()},
            {str(number): float(end) for number, end in ends.items()},
        )

    def begun(self) -> int:
        """Return how many bodies have begun so far."""
        return int(self._redis.hlen("starts"))

    def note(self, fact: str) -> None:
        """Write down that something has come to pass."""
        self._redis.set(fact, 1)

    def is_noted(self, fact: str) -> bool:
        """Return whether it has."""
        return bool(self._redis.exists(fact))

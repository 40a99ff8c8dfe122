"""What bodies write down while they run, and what tests read: facts, on the broker's server by raw redis-py.

Times are ``time.monotonic()``, which on one host is the same clock in every process.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import billiard
import redis

from celery_redislock.locks import Lease
from tests.history import Interval

#: Seconds between two signs of life of a body.
BEAT = 0.02
#: Seconds after which a body that is kept on goes on by itself, whatever became of the test.
KEPT = 60.0


@dataclass(frozen=True, slots=True)
class Body:
    """One execution of a body."""

    name: str
    key: str
    task_id: str
    pid: int
    worker: int  # the worker's main process
    token: str | None  # of its lease; ``None`` for an inert one
    fence: int | None
    retries: int
    start: float
    end: float  # for one that was killed its last sign of life
    ended_by: str | None  # ``""``, the exception's name, or ``None`` where it has not ended
    lost_at: float | None = None  # the deadline of its lease, where it had learnt by its end that it was lost

    @property
    def interval(self) -> Interval:
        """Its time at work, as the history checker sees it."""
        who = f"{self.task_id}, pid {self.pid}"
        return Interval(self.key, who, self.fence, self.start, self.end, self.lost_at)


class Journal:
    """One project's journal."""

    def __init__(self, url: str, name: str) -> None:
        """Open the journal kept on the server at ``url`` under ``name``; connects when it is used."""
        self._redis = redis.Redis.from_url(url)
        self._name = name
        self._task_ids: dict[str, str] = {}

    @contextmanager
    def body(self, task: Any, key: str) -> Iterator[str]:
        """Note a body's start and end; yields its number, for :meth:`beat` and :meth:`stay`."""
        request = task.request
        number = str(self._redis.incr(f"{self._name}:bodies"))
        about = {
            "name": task.name,
            "key": key,
            "task_id": request.id,
            "pid": os.getpid(),
            "worker": os.getppid() if is_pool_child() else os.getpid(),
            "token": task.lease.token if hasattr(task, "lease") else None,
            "fence": task.lease.fence if hasattr(task, "lease") else None,
            "retries": request.retries,
            "start": time.monotonic(),
        }
        self._task_ids[number] = request.id
        ended_by = ""
        try:
            # In here, because whoever reads it may stop the body at once: before the answer is read.
            self._redis.hset(f"{self._name}:starts:{key}", number, json.dumps(about))
            yield number
        except BaseException as error:
            ended_by = type(error).__name__
            raise
        finally:
            del self._task_ids[number]
            end = json.dumps([time.monotonic(), ended_by, _lost_at(task)])
            self._redis.hset(f"{self._name}:ends:{key}", number, end)

    def beat(self, key: str, number: str) -> None:
        """Give a sign of life."""
        self._redis.hset(f"{self._name}:beats:{key}", number, time.monotonic())

    @contextmanager
    def kept_on(self, key: str) -> Iterator[None]:
        """Let bodies of this key, or of this task id, that call :meth:`stay` stay on until the block ends."""
        self._redis.set(f"{self._name}:kept:{key}", 1, ex=int(KEPT))
        try:
            yield
        finally:
            self._redis.delete(f"{self._name}:kept:{key}")

    def stay(self, key: str, number: str, seconds: float = 0.0, *, gate: str | None = None) -> None:
        """Stay on for some seconds, and as long as a gate (by default the key, or the task id) is kept on."""
        until = time.monotonic() + seconds
        kept = [f"{self._name}:kept:{name}" for name in ([gate] if gate else [key, self._task_ids[number]])]
        while (left := until - time.monotonic()) > 0 or self._redis.exists(*kept):
            time.sleep(min(BEAT, left) if left > 0 else BEAT)
            self.beat(key, number)

    def reach(self, key: str, moment: str) -> None:
        """Say that a run of this key has come to a moment; stop there while ``key@moment`` is kept on."""
        kept = f"{self._name}:kept:{key}@{moment}"
        if self._redis.exists(kept):
            self.note(f"{key}@{moment}", os.getpid())
        while self._redis.exists(kept):
            time.sleep(BEAT)

    def note(self, subject: str, value: object) -> None:
        """Write down one more fact about a subject."""
        self._redis.rpush(f"{self._name}:notes:{subject}", json.dumps(value))

    def count(self, subject: str) -> int:
        """Count one more of a subject, in whatever process, and return how many there were."""
        return int(self._redis.incr(f"{self._name}:counts:{subject}"))

    def notes(self, subject: str) -> list[Any]:
        """Return the facts about a subject."""
        return [json.loads(text) for text in self._redis.lrange(f"{self._name}:notes:{subject}", 0, -1)]

    def take(self, subject: str) -> Any:
        """Take the first fact about a subject away; ``None`` where there is none."""
        text = self._redis.lpop(f"{self._name}:notes:{subject}")
        return None if text is None else json.loads(text)

    def bodies(self, key: str) -> list[Body]:
        """Return every body of this key there was, in the order they began."""
        starts, ends, beats = (
            self._redis.hgetall(f"{self._name}:{what}:{key}") for what in ("starts", "ends", "beats")
        )
        bodies = []
        for number, text in starts.items():
            about = json.loads(text)
            if number in ends:
                end, ended_by, lost_at = json.loads(ends[number])
            else:
                end, ended_by, lost_at = float(beats.get(number, about["start"])), None, None
            bodies.append(Body(**about, end=end, ended_by=ended_by, lost_at=lost_at))
        return sorted(bodies, key=lambda body: body.start)

    def close(self) -> None:
        """Close its connections."""
        self._redis.close()


def _lost_at(task: Any) -> float | None:
    """The deadline of a lost lease, in the journal's time: its own clock may be another."""
    lease = getattr(task, "lease", None)
    if not isinstance(lease, Lease) or not lease.lost:
        return None
    return lease.deadline - lease._clock() + time.monotonic()


def is_pool_child() -> bool:
    """Whether this process is a prefork pool's."""
    return type(billiard.current_process()).__name__ == "ForkProcess"


def overlaps_of(bodies: list[Body]) -> list[tuple[Body, Body]]:
    """Return the pairs of bodies that were on at the same time."""
    return [
        (one, other)
        for place, one in enumerate(bodies)
        for other in bodies[place + 1 :]
        if one.start < other.end and other.start < one.end
    ]

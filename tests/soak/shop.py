"""The app under test: one task on a shared resource, whose body writes down its life.

Worker processes import this module with the plan in the environment; the
soak's own process opens the same app by itself.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis
from celery import Celery
from celery.signals import task_postrun

from celery_redislock import LockLost, SingletonTask
from celery_redislock.locks.lease import Lease, boottime
from tests.history import Interval
from tests.workers import SWEEPING, end_with_parent

#: Seconds of a lease, and between two signs of life of a body.
TTL, BEAT = 2.0, 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """One body under one lease.

    Attributes:
        token: of the lease.
        at_work: when, on which key; it counts until the last deadline of the lease that the body knew of.
            After it a body that was paused may still be on: that is what the fence is for.
        ended_by: ``""``, an exception's name, or ``None`` where no end was noted.
        lost: the lease was lost when the task was over; ``None`` where that was not noted.
    """

    token: str
    at_work: Interval
    ended_by: str | None
    lost: bool | None


class Journal:
    """Facts, on the broker's server by raw redis-py: the broker's own process is never hurt."""

    def __init__(self, url: str) -> None:
        """Open it; connects when it is used."""
        self._redis = redis.Redis.from_url(url)

    def begin(self, key: str, task_id: str, lease: Lease) -> None:
        """Note a body's start."""
        about = [key, task_id, lease.fence, boottime(), lease.deadline]
        self._redis.hset("soak:starts", lease.token, json.dumps([*about, os.getpid(), os.getppid()]))

    def beat(self, lease: Lease) -> None:
        """Give a sign of life, with the deadline known now."""
        self._redis.hset("soak:beats", lease.token, json.dumps([boottime(), lease.deadline]))

    def end(self, lease: Lease, ended_by: str) -> None:
        """Note a body's end."""
        self._redis.hset("soak:ends", lease.token, json.dumps([boottime(), ended_by]))

    def settle(self, lease: Lease) -> None:
        """Note, when all of the task is over, whether its lease was lost."""
        self._redis.hset("soak:settled", lease.token, int(lease.lost))

    def announce(self, lease: Lease) -> None:
        """Note that a loss was announced."""
        self._redis.rpush("soak:announced", lease.token)

    def announced(self) -> list[str]:
        """Return the tokens whose loss was announced, as often as it was."""
        return [token.decode() for token in self._redis.lrange("soak:announced", 0, -1)]

    def on_now(self) -> list[tuple[str, int, int]]:
        """Return the bodies that are on: task id, process, its parent."""
        ends = set(self._redis.hkeys("soak:ends"))
        starts = self._redis.hgetall("soak:starts")
        bodies = [json.loads(text) for token, text in starts.items() if token not in ends]
        return [(body[1], *body[-2:]) for body in bodies]

    def runs(self) -> list[Run]:
        """Return every body there was."""
        starts, beats, ends, settled = (
            {token.decode(): json.loads(text) for token, text in self._redis.hgetall(f"soak:{name}").items()}
            for name in ("starts", "beats", "ends", "settled")
        )
        runs = []
        for token, (key, task_id, fence, start, granted_until, *_) in starts.items():
            seen, deadline = beats.get(token, (start, granted_until))
            end, ended_by = ends.get(token, (seen, None))
            lost = bool(settled[token]) if token in settled else None
            at_work = Interval(key, f"{task_id} ({token})", fence, start, end, deadline)
            runs.append(Run(token, at_work, ended_by, lost))
        return runs


def open_shop(plan: Mapping[str, Any]) -> Celery:
    """Return the app.

    Args:
        plan: ``broker`` and ``locks`` in Celery's form, ``journal`` in redis-py's.
    """
    app = Celery("soak", broker=plan["broker"], backend=plan["broker"], set_as_current=False)
    app.conf.update(
        redislock_url=plan["locks"],
        redislock_ttl=TTL,
        redislock_retry_delay=0.3,
        redislock_socket_timeout=0.3,
        redislock_start_timeout=2.0,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 5, **SWEEPING},
    )
    app.journal = journal = Journal(plan["journal"])

    @app.task(
        name="soak.work",
        base=SingletonTask,
        bind=True,
        shared=False,
        lock_key="soak:{key}",
        acks_late=True,
        reject_on_worker_lost=True,
        autoretry_for=(LockLost,),
        retry_kwargs={"max_retries": None, "countdown": 0.2},
        on_lock_lost=journal.announce,
    )
    def work(self: Any, key: str, number: int, seconds: float) -> int:
        """Stay on for some seconds, as long as the lease is not lost."""
        lease = self.lease
        journal.begin(key, self.request.id, lease)
        ended_by = ""
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                lease.check()
                journal.beat(lease)
                time.sleep(BEAT)
        except BaseException as error:
            ended_by = type(error).__name__
            raise
        finally:
            journal.end(lease, ended_by)
        return number

    task_postrun.connect(_settle, weak=False, dispatch_uid="soak.settle")
    work.name  # noqa: B018  evaluates the declaration now
    return app


def _settle(task: Any, **_: Any) -> None:
    lease = task.lease if isinstance(task, SingletonTask) else None
    if isinstance(lease, Lease):
        task.app.journal.settle(lease)


if "PROJECT_PLAN" in os.environ:
    app = open_shop(json.loads(os.environ["PROJECT_PLAN"]))
    end_with_parent()

"""The app under attack: tasks as a round has drawn them, whose bodies write down their lives.

Workers and publishers import this module with the plan in the environment; the
kit's own process opens the same app by itself.
"""

import json
import os
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import redis
from billiard.util import set_pdeathsig
from celery import Celery
from celery.signals import task_postrun, worker_process_init

from celery_redislock import LockLost, Resources, SingletonTask, lock_lost
from celery_redislock.locks.lease import Lease
from celery_redislock.wire.clock import boottime
from tests.acceptance.worker import SWEEPING, end_with_parent
from tools.attack.draw import RESTORING, TERM

#: Seconds between two signs of life of a body.
BEAT = 0.05


class OnPurpose(Exception):  # noqa: N818  it is none
    """A body's own failure."""


class Journal:
    """Facts, by raw redis-py on a server that is never hurt; each is JSON in a hash."""

    def __init__(self, url: str) -> None:
        """Open it; connects when it is used."""
        self.redis: Any = redis.Redis.from_url(url)

    def note(self, subject: str, name: str, fact: object) -> None:
        """Note a fact."""
        self.redis.hset(f"attack:{subject}", name, json.dumps(fact))

    def facts(self, subject: str) -> dict[str, Any]:
        """Return the facts about a subject by their names."""
        found = self.redis.hgetall(f"attack:{subject}")
        return {name.decode(): json.loads(text) for name, text in found.items()}

    def on_now(self) -> list[dict[str, Any]]:
        """Return the bodies that have begun and not ended, killed ones included."""
        ends = self.facts("ends")
        return [body for name, body in self.facts("starts").items() if name not in ends]


def open_shop(plan: Mapping[str, Any]) -> Celery:
    """Return the app; the stage makes the plan."""
    app = Celery("attack", broker=plan["broker"], backend=plan["backend"], set_as_current=False)
    app.is_restoring = plan["kind"] == RESTORING
    app.keys_of_round = plan["keys"]
    on_redis = {"visibility_timeout": 3600 if app.is_restoring else 5, **SWEEPING}
    # Unconfirmed, Celery's own publish into a connection that is being cut is lost without an error.
    on_rabbitmq = {
        "client_properties": {"connection_name": f"{plan['queue']}/{os.getpid()}"},
        "confirm_publish": True,
    }
    conf = dict(plan["conf"])
    of_kind = conf.pop("broker_transport_options", {})
    app.conf.update(
        conf,
        task_default_queue=plan["queue"],
        redislock_url=plan["locks"],
        redislock_ttl=plan["ttl"],
        redislock_queue_ttl=plan["queue_ttl"],
        redislock_retry_delay=0.3,
        redislock_socket_timeout=0.5,
        redislock_start_timeout=2.0,
        redislock_restore=TERM,
        worker_prefetch_multiplier=4 if app.is_restoring else 2,
        # Celery would restore it from the pool's thread or greenlet, on the socket that its main loop reads.
        worker_enable_prefetch_count_reduction=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            **(on_rabbitmq if "amqp" in plan["broker"] else on_redis),
            **of_kind,
        },
    )
    if app.is_restoring:
        # Celery lets children die with their main process.
        worker_process_init.connect(_outlive, weak=False, dispatch_uid="attack.outlive")
    app.journal = Journal(plan["journal"])
    for name, options in plan["tasks"].items():
        again = {"autoretry_for": (LockLost,), "retry_kwargs": {"max_retries": None, "countdown": 1}}
        declared = dict(options)
        if plan["keys"] and isinstance(options["lock_key"], list):
            declared["lock_key"] = Resources(*options["lock_key"])
        app.task(name=name, base=SingletonTask, bind=True, shared=False, **again, **declared)(_new_body())
        app.tasks[name].options_of_round = options
    lock_lost.connect(_announce, weak=False, dispatch_uid="attack.lost")
    task_postrun.connect(_settle, weak=False, dispatch_uid="attack.settle")
    return app


def _outlive(**_: Any) -> None:
    set_pdeathsig(0)


def _new_body() -> Any:
    def work(self: Any, key: Any, number: int = 0, seconds: float = 0.0, then: str = "") -> int:
        """Stay on for some seconds, as long as the lease is not lost; then end as asked."""
        run, journal, name = self.request.redislock_run, self.app.journal, uuid4().hex
        lease = run.lease if run is not None else None
        about = {
            "task": self.name,
            "id": self.request.id,
            "number": number,
            "retries": self.request.retries,
            "early": not self.acks_late,
            "pid": os.getpid(),
            # What nobody else may do meanwhile: work under this key, run this message.
            "key": None if run is None or run.locks.running is None else run.lock.key,
            "message": run.identity if run is not None and run.again else None,
            "limit": 1 if run is None or run.lock.limit is None else run.lock.limit,
            "fence": None if lease is None else lease.fence,
            "start": boottime(),
            "deadline": None if lease is None else lease.deadline,
        }
        ended_by = ""
        try:
            journal.note("starts", name, about)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                self.lease.check() if about["key"] and lease else None
                journal.note("beats", name, [boottime(), None if lease is None else lease.deadline])
                time.sleep(min(BEAT, max(0.0, until - time.monotonic())))
            return _end(self, number, then)
        except BaseException as error:
            ended_by = type(error).__name__
            raise
        finally:
            journal.note("ends", name, [boottime(), ended_by, None if lease is None else lease.deadline])

    return work


def _end(task: Any, number: int, then: str) -> int:
    if then == "fail":
        raise OnPurpose
    if then.startswith("retry") and not task.request.retries:
        asked = task.retry(countdown=1, max_retries=None, throw=False)
        task.app.journal.note("asked", str(number), 1)
        # Published, and not unwound yet.
        time.sleep(0.0 if then == "retry" else 0.5)
        if then != "retry_quietly":
            raise asked
    return number


def _announce(sender: Any, lease: Lease, **_: Any) -> None:
    sender.app.journal.redis.hincrby("attack:announced", lease.token, 1)


def _settle(task: Any, **_: Any) -> None:
    run = task.request.redislock_run
    if run is not None and run.lease is not None and run.locks.running is not None:
        task.app.journal.note("settled", run.lease.token, int(run.lease.lost))


if "PROJECT_PLAN" in os.environ:
    app = open_shop(json.loads(os.environ["PROJECT_PLAN"]))
    end_with_parent()

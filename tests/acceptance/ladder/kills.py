"""SIGKILL, for a child and for a whole worker."""

import os
import signal
import time

from celery import states

from tests.acceptance.harness import wait_until
from tests.acceptance.ladder.ending import Act, Case, Ending, Freed, Group, own
from tests.acceptance.ladder.scene import Scene
from tests.workers import SWEEPING

__all__ = ["KILLS"]

#: Celery looks for dead children every 5 s (5.7.0, concurrency/asynpool.py); doubled for a busy machine.
NOTICED = 10.0
#: Seconds, of the leases of workers that are killed.
TTL = 1.0
REDELIVERED = "the message is delivered again, with Redis as the broker after its visibility timeout"


def _child(task: str, *, goes_on: bool = False) -> Act:
    """Kill the body's process."""

    def act(scene: Scene) -> float | None:
        with scene.running(task) as body:
            killed = time.monotonic()
            os.kill(body.pid, signal.SIGKILL)
        return None if goes_on else killed

    return act


def _worker(task: str) -> Act:
    """Kill the main process of the body's worker; prefork's children die with it."""

    def act(scene: Scene) -> float:
        with scene.running(task, lock_ttl=TTL) as body:
            worker = next(one for one in scene.shop.workers if one.process.pid == body.worker)
            killed = time.monotonic()
            worker.signal(signal.SIGKILL)
            worker.process.wait(10)
        if task == "sell_late" and scene.shop.pool in {"gevent", "eventlet"}:
            _wait_swept(scene)
        return killed

    return act


def _wait_swept(scene: Scene) -> None:
    """Let the other worker have its hands full: before that it does not look for unacknowledged messages."""
    with scene.behind_another("sell_late"):
        wait_until(scene.shop.queued, 20.0, "the message is back in its queue")


def _prefork(*ends: str | None, **rest: object) -> tuple[Case, ...]:
    return (Case(("prefork",), ends, within=NOTICED, **rest),)  # type: ignore[arg-type]  # fields by name


KILLS = Group(
    "Processes are killed",
    "A killed child's lock is given back by its worker's main process, which looks for dead children every "
    "five seconds. A killed worker's locks expire: within `lock_ttl`.",
    (
        Ending(
            "child killed, early acknowledgement",
            _child("sell"),
            _prefork(None, freed=Freed.MAIN, state=states.FAILURE),
        ),
        Ending(
            "child killed, late acknowledgement",
            _child("sell_late"),
            _prefork(None, freed=Freed.MAIN, state=states.FAILURE),
        ),
        Ending(
            "child killed, `reject_on_worker_lost`",
            _child("sell_late_again", goes_on=True),
            _prefork(None, "", freed=Freed.RUN),
            kept=True,
        ),
        Ending(
            "child killed, `retry_on_worker_lost`",
            _child("sell_retrying_lost", goes_on=True),
            _prefork(None, "", freed=Freed.RUN),
            kept=True,
            since=(5, 7),
        ),
        Ending(
            "worker killed, early acknowledgement",
            _worker("sell"),
            (
                Case(
                    ("prefork", "threads", "gevent", "eventlet"),
                    (None,),
                    Freed.EXPIRY,
                    TTL + 1.0,
                    term="`lock_ttl`",
                    state=states.PENDING,
                    lost="the running task: its message was acknowledged when it began",
                ),
                Case(
                    ("solo",),
                    (None,),
                    Freed.EXPIRY,
                    TTL + 1.0,
                    term="`lock_ttl`",
                    state=states.PENDING,
                    note="delivered again all the same: its one thread acknowledges only after the body "
                    "(`worker/consumer/consumer.py`, `call_soon`)",
                ),
            ),
            stage=own(),
        ),
        Ending(
            "worker killed, late acknowledgement",
            _worker("sell_late"),
            (
                Case(
                    ("prefork", "threads", "solo"),
                    (None, ""),
                    Freed.EXPIRY,
                    TTL + 1.0,
                    term="`lock_ttl`",
                    note=REDELIVERED,
                    slow=True,
                ),
                Case(
                    ("gevent", "eventlet"),
                    (None, ""),
                    Freed.EXPIRY,
                    TTL + 1.0,
                    term="`lock_ttl`",
                    note=f"{REDELIVERED}, by a worker whose hands are full: an idle one of this pool "
                    "does not look "
                    "for such messages (kombu 5.7.0, `transport/redis.py`, `MultiChannelPoller.get`)",
                    slow=True,
                ),
            ),
            stage=own(workers=2, broker_transport_options={"visibility_timeout": 3, **SWEEPING}),
        ),
    ),
)

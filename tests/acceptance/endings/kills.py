"""SIGKILL, for a child and for a whole worker."""

import os
import signal
import time
from typing import Any

from celery import states

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.store.store import Grant
from tests.acceptance.endings.ending import EVERY, PREFORK, Act, Case, Ending, Free, own
from tests.acceptance.endings.scene import Scene
from tests.acceptance.harness import wait_until
from tests.acceptance.terms import DEAD, FREED, PATIENCE
from tests.acceptance.worker import SWEEPING


def _child(task: str, *, goes_on: bool = False) -> Act:
    """Kill the body's process."""

    def act(scene: Scene) -> float | None:
        with scene.running(task) as body:
            killed = time.monotonic()
            os.kill(body.pid, signal.SIGKILL)
        return None if goes_on else killed

    return act


def _claims_next(scene: Scene) -> bool:
    """Claim the key as the next publish does, and give it back, as one that fails."""
    lock = declaration_of(scene.project.executed).task_lock((scene.key,), {}, "next")
    is_granted = isinstance(lock.accept("next/1", 60.0, message="next/1"), Grant)
    if is_granted:
        lock.release("next/1", opened_by="next/1")
    return is_granted


def _worker(task: str) -> Act:
    """Kill the main process of the body's worker; prefork's children die with it."""

    def act(scene: Scene) -> float:
        with scene.running(task) as body:
            worker = next(one for one in scene.project.workers if one.process.pid == body.worker)
            killed = time.monotonic()
            worker.signal(signal.SIGKILL)
            worker.process.wait(PATIENCE)
        if task == "executed":
            wait_until(lambda: _claims_next(scene), DEAD, "the next publish is accepted")
        if task == "executed_acks_late" and scene.project.pool == "gevent":
            # An idle worker of this pool does not look for unacknowledged messages
            # (kombu 5.7.0, transport/redis.py, MultiChannelPoller.get): keep the other one busy.
            with scene.behind_another("executed_acks_late"):
                wait_until(scene.project.queued, PATIENCE, "the message is back in its queue")
        return killed

    return act


def _row(name: str, act: Act, *ends: str | None, since: tuple[int, int] = (5, 5), **rest: Any) -> Ending:
    kept = len(ends) > 1
    return Ending(name, act, (Case(PREFORK, ends, within=FREED, **rest),), kept=kept, since=since)


_REJECTS = _child("executed_reject_on_worker_lost", goes_on=True)
_REJECTS_TWO = _child("until_and_while_reject_on_worker_lost", goes_on=True)
_RETRIES = _child("executed_retry_on_worker_lost", goes_on=True)

KILLS = (
    _row("child killed, early ack", _child("executed"), None, state=states.FAILURE),
    _row("child killed, two locks", _child("until_and_while"), None, state=states.FAILURE),
    _row("child killed, late ack", _child("executed_acks_late"), None, state=states.FAILURE),
    _row("child killed, reject_on_worker_lost", _REJECTS, None, ""),
    _row("child killed, reject_on_worker_lost, two locks", _REJECTS_TWO, None, ""),
    _row("child killed, retry_on_worker_lost", _RETRIES, None, "", since=(5, 7)),
    # The message was acknowledged when the body began. Solo acknowledges only after the body
    # (worker/consumer/consumer.py, call_soon): there the message is delivered again.
    Ending(
        "worker killed, early ack",
        _worker("executed"),
        (
            Case(EVERY, (None,), Free.RELEASED, DEAD, states.PENDING, is_lost=True),
            Case(("solo",), (None,), Free.RELEASED, DEAD, states.PENDING),
        ),
        own(),
    ),
    Ending(
        "worker killed, late ack",
        _worker("executed_acks_late"),
        (Case(EVERY, (None, ""), Free.RELEASED, FREED, slow=True),),
        own(workers=2, broker_transport_options={"visibility_timeout": 3, **SWEEPING}),
    ),
)

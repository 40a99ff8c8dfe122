"""The broker delivers a message twice."""

import celery
import redis

from tests.acceptance.harness import wait_until
from tests.acceptance.ladder.ending import EVERY_POOL, Act, Case, Ending, Freed, Group, own
from tests.acceptance.ladder.scene import Scene
from tests.acceptance.messages import captured, deliver
from tests.workers import SWEEPING

__all__ = ["BROKER"]


def _wait_said(scene: Scene, text: str) -> None:
    assert scene.result is not None
    task_id = scene.result.id
    wait_until(
        lambda: any(task_id in line for line in scene.shop.lines(text)), 40.0, f"a worker says {text!r}"
    )


def _cut(scene: Scene) -> None:
    """End every connection to the broker, which is there for new ones at once."""
    client = redis.Redis.from_url(scene.broker.redis_url)
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)
    client.close()


def _wait_noticed(scene: Scene) -> None:
    wait_until(lambda: scene.shop.lines("Connection to broker lost"), 20.0, "the loss is noticed")


#: Before, a worker whose connection was lost starts nothing in its other processes until the body is over
#: that was on then (5.5.0, tried with plain tasks).
_STARTS_MEANWHILE = celery.VERSION[:2] >= (5, 7)


def _loses_connection(task: str, until: str | None = None) -> Act:
    """Lose the connection while a body is on, and let that be until the copy was heard of."""

    def act(scene: Scene) -> None:
        with scene.running(task):
            _cut(scene)
            if scene.shop.pool != "solo":
                _wait_noticed(scene)
                if until is not None and (_STARTS_MEANWHILE or scene.shop.pool != "prefork"):
                    _wait_said(scene, until)
        _wait_noticed(scene)

    return act


def _loses_connection_and_cancels(scene: Scene) -> None:
    with scene.running("sell_late"):
        _cut(scene)
        wait_until(lambda: scene.bodies[0].ended_by is not None, 30.0, "the body is ended")


def _outlives_visibility(scene: Scene) -> None:
    with scene.running("sell_late"):
        _wait_said(scene, "runs already")
    _wait_said(scene, "was delivered again after")


def _delivered_after_success(scene: Scene) -> None:
    result = scene.publish("sell_late", queue="aside")
    message = captured(scene.shop)
    deliver(scene.shop, message)
    result.get(timeout=20)
    deliver(scene.shop, message, again=True)
    received = f"[{result.id}] received"
    wait_until(
        lambda: len(scene.shop.lines(received)) == 2 and not scene.undelivered(),
        20.0,
        "the copy is dealt with",
    )


BROKER = Group(
    "Delivered twice",
    "A copy of a message whose run is on waits; once that run's outcome is recorded the copy does nothing.",
    (
        Ending(
            "connection to the broker lost, early acknowledgement",
            _loses_connection("sell"),
            (Case(EVERY_POOL, ("",), Freed.RUN),),
            own(own_broker=True, concurrency=2),
        ),
        Ending(
            "connection to the broker lost, late acknowledgement",
            _loses_connection("sell_late", "runs already"),
            (Case(EVERY_POOL, ("",), Freed.RUN),),
            own(own_broker=True, concurrency=2),
        ),
        Ending(
            "the same, with `worker_cancel_long_running_tasks_on_connection_loss`",
            _loses_connection_and_cancels,
            (
                Case(("prefork",), ("SystemExit", ""), Freed.RUN),
                Case(
                    ("gevent", "eventlet"),
                    ("GreenletExit", ""),
                    Freed.RUN,
                    gap=True,
                    note="a killed greenlet frees the lock, which is free until the next delivery",
                ),
            ),
            own(own_broker=True, concurrency=2, worker_cancel_long_running_tasks_on_connection_loss=True),
            kept=True,
            since=(5, 7),
        ),
        Ending(
            "visibility timeout shorter than the task",
            _outlives_visibility,
            (Case(EVERY_POOL, ("",), Freed.RUN, slow=True),),
            own(workers=2, broker_transport_options={"visibility_timeout": 2, **SWEEPING}),
        ),
        Ending(
            "`worker_deduplicate_successful_tasks`, delivered again after success",
            _delivered_after_success,
            (Case(EVERY_POOL, ("",), Freed.RUN),),
            own(worker_deduplicate_successful_tasks=True),
        ),
    ),
)

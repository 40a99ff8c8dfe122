"""The broker delivers a message twice."""

import celery
import redis

from tests.acceptance.endings.ending import EVERY, Act, Case, Ending, own
from tests.acceptance.endings.scene import Scene
from tests.acceptance.harness import wait_until
from tests.acceptance.terms import PATIENCE

#: Before, a worker whose connection was lost starts nothing in its other processes until the body has ended
#: that ran then (5.5.0, tried with plain tasks).
_STARTS_MEANWHILE = celery.VERSION[:2] >= (5, 7)


def _cut(scene: Scene) -> None:
    """End every connection to the broker, which is there for new ones at once."""
    assert scene.broker is not None, "the stage has no broker of its own"
    client = redis.Redis.from_url(scene.broker.redis_url)
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)
    client.close()


def _wait_noticed(scene: Scene) -> None:
    wait_until(lambda: scene.project.lines("Connection to broker lost"), PATIENCE, "the loss is noticed")


def _loses_connection(task: str, *, copy_waits: bool = False) -> Act:
    """Lose the connection while a body runs, which goes on until the copy has found it."""

    def act(scene: Scene) -> None:
        with scene.running(task):
            _cut(scene)
            _wait_noticed(scene)
            if copy_waits and (_STARTS_MEANWHILE or scene.project.pool != "prefork"):
                assert scene.result is not None
                scene.project.wait_waiting(scene.result.id)

    return act


def _loses_connection_and_cancels(scene: Scene) -> None:
    with scene.running("executed_acks_late"):
        _cut(scene)
        wait_until(lambda: scene.bodies[0].ended_by is not None, PATIENCE, "the body is ended")


BROKER = (
    Ending(
        "connection to the broker lost, early ack",
        _loses_connection("executed"),
        (Case(EVERY, ("",)),),
        own(own_broker=True, concurrency=2),
    ),
    Ending(
        "connection to the broker lost, late ack",
        _loses_connection("executed_acks_late", copy_waits=True),
        (Case(EVERY, ("",), copied=True),),
        own(own_broker=True, concurrency=2),
    ),
    # A killed greenlet releases the lock, which is free until the next delivery.
    Ending(
        "worker_cancel_long_running_tasks_on_connection_loss",
        _loses_connection_and_cancels,
        (Case(("prefork",), ("SystemExit", ""), gap=True), Case(("gevent",), ("GreenletExit", ""), gap=True)),
        own(own_broker=True, concurrency=2, worker_cancel_long_running_tasks_on_connection_loss=True),
        kept=True,
        since=(5, 7),
    ),
)

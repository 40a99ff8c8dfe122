"""Workers that are asked to end.

On gevent Celery's handler for SIGQUIT runs in whatever greenlet is on, and what becomes of a body depends on
that (``apps/worker.py``, ``on_cold_shutdown``): there the body itself hears the signal.
"""

import signal

from celery import states

from tests.acceptance.endings.ending import AND_SOLO, Act, Case, Ending, Free, own
from tests.acceptance.endings.scene import Scene
from tests.acceptance.harness import wait_until
from tests.acceptance.terms import FREED, PATIENCE


def _warm(number: int, task: str = "executed") -> Act:
    """Ask the worker to end while a body runs, which ends when the worker has heard it."""

    def act(scene: Scene) -> None:
        worker = scene.project.workers[0]
        with scene.running(task):
            worker.signal(number)
            wait_until(lambda: "shutdown" in worker.log.lower(), PATIENCE, "the worker has heard it")
        worker.process.wait(PATIENCE)

    return act


def _cold(task: str = "executed", *, then_start: bool = False) -> Act:
    """Tell the worker to end at once, or, on gevent, in the very greenlet of the body."""

    def act(scene: Scene) -> None:
        worker = scene.project.workers[0]
        if scene.project.pool == "gevent":
            scene.publish(task, "quit")
        else:
            with scene.running(task):
                worker.signal(signal.SIGQUIT)
                if scene.project.pool == "threads":
                    wait_until(lambda: "shutdown" in worker.log.lower(), PATIENCE, "the worker has heard it")
                else:
                    wait_until(lambda: scene.bodies[0].ended_by is not None, PATIENCE, "the body is ended")
        worker.process.wait(PATIENCE)
        if then_start:
            scene.project.start_worker(scene.project.pool, concurrency=1)

    return act


def _prefetched(scene: Scene) -> None:
    worker = scene.project.workers[0]
    with scene.behind_another():
        scene.project.wait_received(scene.publish().id)
        worker.signal(signal.SIGTERM)
        wait_until(lambda: "shutdown" in worker.log.lower(), PATIENCE, "the worker has heard it")
    worker.process.wait(PATIENCE)
    assert scene.project.holder(scene.key) is not None
    scene.project.start_worker(scene.project.pool, concurrency=1)


#: The greenlet is killed and counts as successful (concurrency/gevent.py, _make_killable_target), or as
#: retried where the worker comes to its message first: the task is lost, late acknowledgement or not.
STOPPED_GREENLET = Case(
    ("gevent",), ("GreenletExit",), gap=True, state=states.PENDING, rather=states.RETRY, is_lost=True
)
#: The worker waits for its threads.
WAITED_FOR = Case(("threads",), ("",), gap=True)

SHUTDOWNS = (
    Ending("warm shutdown", _warm(signal.SIGTERM), (Case(AND_SOLO, ("",)),), own()),
    Ending(
        "warm shutdown, prefetched",
        _prefetched,
        (Case(("prefork",), ("",)),),
        own("--prefetch-multiplier", "4"),
        kept=True,
    ),
    # Celery calls the task retried and publishes nothing (worker/request.py, Request.cancel).
    Ending(
        "cold shutdown, early ack",
        _cold(),
        (
            Case(("prefork",), ("SystemExit",), Free.RELEASED, FREED, states.RETRY, is_lost=True),
            WAITED_FOR,
            STOPPED_GREENLET,
        ),
        own(),
    ),
    Ending(
        "cold shutdown, late ack",
        _cold("executed_acks_late", then_start=True),
        (Case(("prefork",), ("SystemExit", ""), gap=True), WAITED_FOR, STOPPED_GREENLET),
        own(),
        kept=True,
        since=(5, 7),
    ),
    Ending(
        "soft shutdown, the body ends in time",
        _warm(signal.SIGQUIT),
        (Case(("prefork", "threads"), ("",), slow=True),),
        own(worker_soft_shutdown_timeout=4.0),
    ),
    Ending(
        "soft shutdown, the body takes too long, late ack",
        _cold("executed_acks_late", then_start=True),
        (Case(("prefork",), ("SystemExit", ""), gap=True, slow=True),),
        own(worker_soft_shutdown_timeout=1.0),
        kept=True,
        since=(5, 7),
    ),
    Ending(
        "worker_max_tasks_per_child",
        lambda scene: scene.publish() and None,
        (Case(("prefork",), ("",)),),
        own("--max-tasks-per-child", "1"),
    ),
)

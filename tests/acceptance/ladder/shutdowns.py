"""Workers that are asked to end."""

import signal

from celery import states

from tests.acceptance.harness import wait_until
from tests.acceptance.ladder.ending import EVERY_POOL, Act, Case, Ending, Freed, Group, own
from tests.acceptance.ladder.scene import Scene

__all__ = ["SHUTDOWNS"]

#: Seconds until a worker that was asked to end has ended.
ENDED = 30.0


def _asked(number: int, task: str = "sell", *, then_start: bool = False) -> Act:
    """Ask the worker to end while a body is on, which ends when the worker has heard it."""

    def act(scene: Scene) -> None:
        worker = scene.shop.workers[0]
        with scene.running(task):
            worker.signal(number)
            wait_until(lambda: "shutdown" in worker.log.lower(), 20.0, "it is heard")
        worker.process.wait(ENDED)
        if then_start:
            scene.shop.start_worker(scene.shop.pool, concurrency=1)

    return act


def _told_to_stop(task: str = "sell", *, then_start: bool = False) -> Act:
    """Tell the worker to end at once; the body would be on for long."""

    def act(scene: Scene) -> None:
        worker = scene.shop.workers[0]
        with scene.running(task):
            worker.signal(signal.SIGQUIT)
            if scene.shop.pool == "threads":
                wait_until(lambda: "shutdown" in worker.log.lower(), 20.0, "it is heard")
            else:
                wait_until(lambda: scene.bodies[0].ended_by is not None, 20.0, "the body is ended")
        worker.process.wait(ENDED)
        if then_start:
            scene.shop.start_worker(scene.shop.pool, concurrency=1)

    return act


def _prefetched(scene: Scene) -> None:
    worker = scene.shop.workers[0]
    with scene.behind_another():
        scene.wait_received(scene.publish().id)
        worker.signal(signal.SIGTERM)
        wait_until(lambda: "shutdown" in worker.log.lower(), 20.0, "it is heard")
    worker.process.wait(ENDED)
    assert scene.shop.holder(scene.key) is not None
    scene.shop.start_worker(scene.shop.pool, concurrency=1)


def _heard(task: str = "sell", *, then_start: bool = False) -> Act:
    """Tell the worker to end at once, in the very greenlet of the body."""

    def act(scene: Scene) -> None:
        worker = scene.shop.workers[0]
        scene.publish(task, "quit")
        worker.process.wait(ENDED)
        if then_start:
            scene.shop.start_worker(scene.shop.pool, concurrency=1)

    return act


def _success(scene: Scene) -> None:
    scene.publish()


STOPPED_GREEN = Case(
    ("gevent",),
    ("GreenletExit",),
    Freed.RUN,
    gap=True,
    state=states.PENDING,
    rather=states.RETRY,
    lost="the running task, late acknowledgement or not: its greenlet is killed and counts as successful "
    "(`concurrency/gevent.py`, `_make_killable_target`), or as retried where the worker comes to its message "
    "first",
)
STOPPED_BY_ITSELF = STOPPED_GREEN._replace(
    lost="the running task: there is no soft shutdown on greenlets. Where the handler sleeps in a body's, "
    "that body waits for itself and is killed; where it would in the event loop's, which nothing may, "
    "the worker logs an unrecoverable error and ends when its bodies have",
)
WAITED_FOR = Case(("threads",), ("",), Freed.RUN, gap=True, note="the worker waits for its threads")
STOPPED_SOLO = Case(
    ("solo",),
    ("NotImplementedError",),
    Freed.RUN,
    gap=True,
    state=states.FAILURE,
    note="the signal's handler raises inside the body (`concurrency/base.py`, `terminate_job`)",
)

SHUTDOWNS = Group(
    "Workers end",
    "What ends by itself frees as ever. What is stopped and goes back to the queue keeps its lock for its "
    "next delivery; what is stopped and lost frees it. On gevent and eventlet Celery's handler for SIGQUIT "
    "runs in whatever greenlet is on, and what becomes of a body depends on that (`apps/worker.py`, "
    "`on_cold_shutdown`): the rows name the greenlet. On eventlet there are none: a body that is killed by "
    "itself, or by the event loop, may not come to its end (`greenthread.kill` leaves a switch behind, "
    "`wait` fails in the loop). There a lock that is not given back expires.",
    (
        Ending(
            "warm shutdown (SIGTERM), running",
            _asked(signal.SIGTERM),
            (Case(EVERY_POOL, ("",), Freed.RUN),),
            own(),
        ),
        Ending(
            "warm shutdown, prefetched",
            _prefetched,
            (Case(("prefork",), ("",), Freed.RUN),),
            own("--prefetch-multiplier", "4"),
            kept=True,
        ),
        Ending(
            "cold shutdown (SIGQUIT), early acknowledgement",
            _told_to_stop(),
            (
                Case(
                    ("prefork",),
                    ("SystemExit",),
                    Freed.DEAD,
                    10.0,
                    states.RETRY,
                    lost="the running task: Celery calls it retried and publishes nothing "
                    "(`worker/request.py`, "
                    "`Request.cancel`)",
                ),
                WAITED_FOR,
                STOPPED_SOLO,
            ),
            own(),
        ),
        Ending(
            "cold shutdown, late acknowledgement",
            _told_to_stop("sell_late", then_start=True),
            (
                Case(("prefork",), ("SystemExit", ""), Freed.RUN),
                WAITED_FOR,
                STOPPED_SOLO,
            ),
            own(),
            kept=True,
            since=(5, 7),
        ),
        Ending(
            "cold shutdown, heard in the body's greenlet, early acknowledgement",
            _heard(),
            (STOPPED_GREEN,),
            own(),
        ),
        Ending(
            "cold shutdown, heard in the body's greenlet, late acknowledgement",
            _heard("sell_late", then_start=True),
            (STOPPED_GREEN,),
            own(),
            kept=True,
            since=(5, 7),
        ),
        Ending(
            "soft shutdown, the body ends in time",
            _asked(signal.SIGQUIT),
            (Case(("prefork", "threads"), ("",), Freed.RUN, slow=True),),
            own(worker_soft_shutdown_timeout=4.0),
        ),
        Ending(
            "soft shutdown, heard in the body's greenlet",
            _heard(),
            (STOPPED_BY_ITSELF,),
            own(worker_soft_shutdown_timeout=1.0),
        ),
        Ending(
            "soft shutdown, the body takes too long, late acknowledgement",
            _told_to_stop("sell_late", then_start=True),
            (Case(("prefork",), ("SystemExit", ""), Freed.RUN, slow=True),),
            own(worker_soft_shutdown_timeout=1.0),
            kept=True,
            since=(5, 7),
        ),
        Ending(
            "`worker_max_tasks_per_child`",
            _success,
            (Case(("prefork",), ("",), Freed.RUN),),
            own("--max-tasks-per-child", "1"),
        ),
    ),
)

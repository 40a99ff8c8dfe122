"""Endings that the body brings about itself."""

import time

from celery import states

from tests.acceptance.endings.ending import AND_SOLO, EVERY, Act, Case, Ending, Free, own
from tests.acceptance.endings.scene import Scene
from tests.acceptance.terms import FREED, PATIENCE


def _body(task: str, then: str | None = None, more: object = None) -> Act:
    """Publish a task and let its body end by itself."""

    def act(scene: Scene) -> None:
        scene.publish(task, then, more)

    return act


def _ending_worker(then: str, *pools: str) -> Act:
    """Publish a task whose body ends the worker in these pools."""

    def act(scene: Scene) -> None:
        scene.publish("executed", then)
        if scene.project.pool in pools:
            scene.project.workers[0].process.wait(PATIENCE)

    return act


def _before_start(task: str) -> Act:
    """Publish a task that never gets to its body."""

    def act(scene: Scene) -> float:
        published = time.monotonic()
        scene.publish(task)
        return published

    return act


def _replaced(scene: Scene) -> None:
    scene.publish("executed", "replace", ["project.executed", scene.key, 0.3])


def _replaced_by_another(scene: Scene) -> None:
    scene.publish("while_executing", "replace", ["project.while_executing_too", scene.key, 0.3])


def _row(
    name: str, act: Act, *ends: str, kept: bool = False, pools: tuple[str, ...] = EVERY, **rest: object
) -> Ending:
    return Ending(name, act, (Case(pools, ends, **rest),), kept=kept)  # type: ignore[arg-type]  # by name


BODY = (
    _row("success", _body("executed"), "", pools=AND_SOLO),
    _row("success, result ignored", _body("executed_ignore_result"), "", state=states.PENDING),
    _row("success, two locks", _body("until_and_while"), ""),
    _row("error", _body("executed", "fail"), "ValueError", state=states.FAILURE, pools=AND_SOLO),
    _row("Ignore", _body("executed", "ignore"), "Ignore", state=states.PENDING),
    _row("Reject, early ack", _body("executed", "reject"), "Reject", state=states.FAILURE, stores=False),
    _row(
        "Reject, late ack",
        _body("executed_acks_late", "reject"),
        "Reject",
        state=states.FAILURE,
        stores=False,
    ),
    # Its message was acknowledged already (worker/request.py, Request.reject).
    _row(
        "Reject(requeue=True), early ack",
        _body("executed", "requeue"),
        "Reject",
        state=states.PENDING,
        is_lost=True,
    ),
    _row("result not serialisable", _body("executed", "unserialisable"), "", state=states.FAILURE),
    # Its claim is released in ``task_postrun``, just after the failure is stored.
    _row(
        "before_start raises",
        _before_start("before_start_fails"),
        state=states.FAILURE,
        free=Free.RELEASED,
    ),
    _row("before_start raises Ignore", _before_start("before_start_ignores"), state=states.PENDING),
    Ending(
        "SystemExit",
        _body("executed", "exit"),
        (
            Case(("prefork",), ("SystemExit",), state=states.FAILURE, stores=False),
            Case(("threads", "gevent"), ("SystemExit",), state=states.PENDING),
        ),
    ),
    _row(
        "SystemExit, late ack",
        _body("executed_acks_late", "exit"),
        "SystemExit",
        pools=("prefork",),
        within=FREED,
        state=states.FAILURE,
        stores=False,
    ),
    # On prefork the whole worker ends (worker/request.py, Request.on_failure).
    Ending(
        "MemoryError",
        _ending_worker("run_out_of_memory", "prefork"),
        (Case(EVERY, ("MemoryError",), state=states.FAILURE),),
        own(),
    ),
)

GOES_ON = (
    _row(
        "self.retry", _body("executed", "retry", {"countdown": 0.5}), "Retry", "", kept=True, pools=AND_SOLO
    ),
    _row(
        "self.retry, two locks",
        _body("until_and_while", "retry", {"countdown": 0.5}),
        "Retry",
        "",
        kept=True,
    ),
    _row(
        "autoretry_for, exhausted",
        _body("executed_autoretry", "fail"),
        *["ValueError"] * 3,
        state=states.FAILURE,
        kept=True,
    ),
    _row(
        "self.retry, exhausted",
        _body("executed", "exhaust"),
        "Retry",
        "ValueError",
        state=states.FAILURE,
        kept=True,
    ),
    # The first body's result is stored while the second one is on its way.
    _row(
        "self.retry(throw=False)",
        _body("executed", "retry_quietly"),
        "",
        "",
        free=Free.RELEASED,
        kept=True,
    ),
    _row("Reject(requeue=True), late ack", _body("executed_acks_late", "requeue"), "Reject", "", kept=True),
    _row(
        "Reject(requeue=True), two locks",
        _body("until_and_while_acks_late", "requeue"),
        "Reject",
        "",
        kept=True,
    ),
    _row("replaced by itself", _replaced, "Ignore", "", kept=True),
    _row("replaced by another task, same key", _replaced_by_another, "Ignore", "", kept=True),
)

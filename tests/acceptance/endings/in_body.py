"""Endings that the body brings about itself."""

import time
from typing import Any

from celery import states

from tests.acceptance.endings.ending import AND_SOLO, EVERY, PREFORK, Act, Case, Ending, Free, own
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


def _replaced(task: str, by: str) -> Act:
    return lambda scene: scene.publish(task, "replace", [f"project.{by}", scene.key, 0.3]) and None


def _row(
    name: str, act: Act, *ends: str, kept: bool = False, pools: tuple[str, ...] = EVERY, **rest: Any
) -> Ending:
    return Ending(name, act, (Case(pools, ends, **rest),), kept=kept)


_FAILED: Any = {"state": states.FAILURE}
_PENDING: Any = {"state": states.PENDING}
#: Celery before 5.7 stores no state then.
_UNSTORED: Any = {**_FAILED, "stores": False}
_KEPT: Any = {"kept": True}
_IN_A_WHILE = {"countdown": 0.5}

BODY = (
    _row("success", _body("executed"), "", pools=AND_SOLO),
    _row("success, result ignored", _body("executed_ignore_result"), "", **_PENDING),
    _row("success, two locks", _body("until_and_while"), ""),
    _row("error", _body("executed", "fail"), "ValueError", pools=AND_SOLO, **_FAILED),
    _row("Ignore", _body("executed", "ignore"), "Ignore", **_PENDING),
    _row("Reject, early ack", _body("executed", "reject"), "Reject", **_UNSTORED),
    _row("Reject, late ack", _body("executed_acks_late", "reject"), "Reject", **_UNSTORED),
    # Its message was acknowledged already (worker/request.py, Request.reject).
    _row("Reject(requeue=True), early ack", _body("executed", "requeue"), "Reject", is_lost=True, **_PENDING),
    _row("result not serialisable", _body("executed", "unserialisable"), "", **_FAILED),
    # Its claim is released in ``task_postrun``, just after the failure is stored.
    _row("before_start raises", _before_start("before_start_fails"), free=Free.RELEASED, **_FAILED),
    _row("before_start raises Ignore", _before_start("before_start_ignores"), **_PENDING),
    Ending(
        "SystemExit",
        _body("executed", "exit"),
        (
            Case(PREFORK, ("SystemExit",), **_UNSTORED),
            Case(("threads", "gevent"), ("SystemExit",), **_PENDING),
        ),
    ),
    _row(
        *("SystemExit, late ack", _body("executed_acks_late", "exit"), "SystemExit"),
        **{"pools": PREFORK, "within": FREED, **_UNSTORED},
    ),
    # On prefork the whole worker ends (worker/request.py, Request.on_failure).
    Ending(
        "MemoryError",
        _ending_worker("run_out_of_memory", "prefork"),
        (Case(EVERY, ("MemoryError",), **_FAILED),),
        own(),
    ),
)

GOES_ON = (
    _row("self.retry", _body("executed", "retry", _IN_A_WHILE), "Retry", "", pools=AND_SOLO, **_KEPT),
    _row("self.retry, two locks", _body("until_and_while", "retry", _IN_A_WHILE), "Retry", "", **_KEPT),
    _row(
        *("autoretry_for, exhausted", _body("executed_autoretry", "fail"), *["ValueError"] * 3),
        **{**_FAILED, **_KEPT},
    ),
    _row("self.retry, exhausted", _body("executed", "exhaust"), "Retry", "ValueError", **_FAILED, **_KEPT),
    # The first body's result is stored while the second one is on its way.
    _row("self.retry(throw=False)", _body("executed", "retry_quietly"), "", "", free=Free.RELEASED, **_KEPT),
    _row("Reject(requeue=True), late ack", _body("executed_acks_late", "requeue"), "Reject", "", **_KEPT),
    _row(
        *("Reject(requeue=True), two locks", _body("until_and_while_acks_late", "requeue"), "Reject", ""),
        **_KEPT,
    ),
    _row("replaced by itself", _replaced("executed", "executed"), "Ignore", "", **_KEPT),
    _row(
        *("replaced by another task, same key", _replaced("while_executing", "while_executing_too")),
        *("Ignore", ""),
        **_KEPT,
    ),
)

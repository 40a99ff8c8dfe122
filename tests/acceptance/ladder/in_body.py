"""Endings that the body brings about itself."""

import time

from celery import states

from tests.acceptance.ladder.ending import EVERY_POOL, Act, Case, Ending, Freed, Group, own
from tests.acceptance.ladder.scene import Scene

__all__ = ["AGAIN", "BODY"]

NOT_SOLO = ("prefork", "threads", "gevent", "eventlet")
NOT_PREFORK = ("threads", "gevent", "eventlet")


def _body(task: str, then: str | None = None, more: object = None) -> Act:
    """Publish a task and let its body end by itself."""

    def act(scene: Scene) -> None:
        scene.publish(task, then, more)

    return act


def _ending_worker(then: str, *pools: str) -> Act:
    """Publish a task whose body ends the worker in these pools."""

    def act(scene: Scene) -> None:
        scene.publish("sell", then)
        if scene.shop.pool in pools:
            scene.shop.workers[0].process.wait(30)

    return act


def _before_start(task: str) -> Act:
    """Publish a task that never gets to its body."""

    def act(scene: Scene) -> float:
        published = time.monotonic()
        scene.publish(task)
        return published

    return act


def _replaced(scene: Scene) -> None:
    scene.publish("sell", "replace", ["shop.sell", scene.key, 0.3])


def _replaced_by_another(scene: Scene) -> None:
    scene.publish("serve", "replace", ["shop.serve_too", scene.key, 0.3])


def _replaced_elsewhere(scene: Scene) -> None:
    """The replacement has a key of its own; it is over when its result is in."""
    other = f"{scene.key}-other"
    scene.publish("sell", "replace", ["shop.sell", other])
    scene.shop.wait_ended(other)


def _ends(*ends: str | None, **rest: object) -> tuple[Case, ...]:
    return (Case(EVERY_POOL, ends, Freed.RUN, **rest),)  # type: ignore[arg-type]  # fields of Case by name


BODY = Group(
    "The body ends",
    "The lock is free before the result can be seen, and before callbacks and the next link of a chain are "
    "published.",
    (
        Ending("success", _body("sell"), _ends("")),
        Ending("success, result ignored", _body("sell_quietly"), _ends("", state=states.PENDING)),
        Ending("error", _body("sell", "fail"), _ends("ValueError", state=states.FAILURE)),
        Ending("`Ignore`", _body("sell", "ignore"), _ends("Ignore", state=states.PENDING)),
        Ending(
            "`Reject`, early acknowledgement",
            _body("sell", "reject"),
            _ends("Reject", state=states.FAILURE, stores=False),
        ),
        Ending(
            "`Reject`, late acknowledgement",
            _body("sell_late", "reject"),
            _ends("Reject", state=states.FAILURE, stores=False),
        ),
        Ending(
            "`Reject(requeue=True)`, early acknowledgement",
            _body("sell", "requeue"),
            _ends(
                "Reject",
                state=states.PENDING,
                lost="the task: its message was acknowledged already (`worker/request.py`, `Request.reject`)",
            ),
        ),
        Ending(
            "the result cannot be serialised",
            _body("sell", "unserialisable"),
            _ends("", state=states.FAILURE),
        ),
        Ending(
            "`before_start` raises an error",
            _before_start("stumble"),
            _ends(state=states.FAILURE),
        ),
        Ending(
            "`before_start` raises `Ignore`",
            _before_start("pass_over"),
            _ends(state=states.PENDING),
        ),
        Ending(
            "`SystemExit`",
            _ending_worker("exit", "solo"),
            (
                Case(("prefork",), ("SystemExit",), Freed.RUN, state=states.FAILURE, stores=False),
                Case(NOT_PREFORK, ("SystemExit",), Freed.RUN, state=states.PENDING),
                Case(
                    ("solo",),
                    ("SystemExit",),
                    Freed.RUN,
                    state=states.PENDING,
                    stage=own(),
                    note="the worker ends with it",
                ),
            ),
        ),
        Ending(
            "`SystemExit`, late acknowledgement",
            _body("sell_late", "exit"),
            (
                Case(
                    ("prefork",),
                    ("SystemExit",),
                    Freed.MAIN,
                    10.0,
                    states.FAILURE,
                    stores=False,
                    note="its child leaves the lock to the main process, which knows whether the "
                    "message comes again",
                ),
            ),
        ),
        Ending(
            "`MemoryError`",
            _ending_worker("run_out_of_memory", "prefork", "solo"),
            (
                Case(
                    ("prefork", "solo"),
                    ("MemoryError",),
                    Freed.RUN,
                    state=states.FAILURE,
                    note="the whole worker ends (`worker/request.py`, `Request.on_failure`)",
                ),
                Case(
                    ("threads", "gevent", "eventlet"),
                    ("MemoryError",),
                    Freed.RUN,
                    state=states.FAILURE,
                    note="the worker goes on",
                ),
            ),
            stage=own(),
        ),
    ),
)

AGAIN = Group(
    "The task goes on in another message",
    "The lease becomes a claim for the next message, which is published when the body has unwound: the "
    "key is "
    "never free in between, and two bodies never overlap.",
    (
        Ending("`self.retry`", _body("sell", "retry", {"countdown": 0.5}), _ends("Retry", ""), kept=True),
        Ending(
            "`autoretry_for`, exhausted",
            _body("sell_stubbornly", "fail"),
            _ends(*["ValueError"] * 3, state=states.FAILURE),
            kept=True,
        ),
        Ending(
            "`self.retry`, exhausted",
            _body("sell", "exhaust"),
            _ends("Retry", "ValueError", state=states.FAILURE),
            kept=True,
        ),
        Ending(
            "`self.retry(throw=False)`",
            _body("sell", "retry_quietly"),
            (
                Case(
                    EVERY_POOL,
                    ("", ""),
                    Freed.LATE,
                    note="the first body's result is stored while the second one is on its way",
                ),
            ),
            kept=True,
        ),
        Ending(
            "`Reject(requeue=True)`, late acknowledgement",
            _body("sell_late", "requeue"),
            _ends("Reject", ""),
            kept=True,
        ),
        Ending("replaced by itself", _replaced, _ends("Ignore", ""), kept=True),
        Ending("replaced by another task, same key", _replaced_by_another, _ends("Ignore", ""), kept=True),
        Ending(
            "replaced by a task with another key",
            _replaced_elsewhere,
            _ends("Ignore", note="the replacement takes its own lock"),
        ),
    ),
)

"""What celery-once does: its README and its source (3.0.1)."""

from types import ModuleType
from typing import Any

from tests.peers.stage import Case, Stage, fail, let_pass, outcome, retry_once, until


def second(library: ModuleType, stage: Stage, *calls: tuple[Any, ...], **options: Any) -> str:
    """Publish the first call, and return what comes of the second."""
    task = stage.task(library.QueueOnce, **options)
    before, after = calls or ((7,), (7,))
    task.delay(*before)
    return outcome(task.delay, *after)


def counted_down(
    library: ModuleType, stage: Stage, once: dict[str, Any] | None = None, **of_call: Any
) -> list[bool]:
    """Return whether the countdown is less than a minute, and more than a second."""
    task = stage.task(library.QueueOnce, **({"once": once} if once else {}))
    task.apply_async((7,), **of_call)
    try:
        task.delay(7)
    except library.AlreadyQueued as error:
        return [error.countdown <= 60, error.countdown > 1]
    return []


def graceful(
    library: ModuleType, stage: Stage, once: dict[str, Any] | None = None, **of_call: Any
) -> list[object]:
    task = stage.task(library.QueueOnce, **({"once": once} if once else {}))
    task.delay(7)
    result = task.apply_async((7,), **of_call)
    return [result.id, result.state, result.get(), stage.queued()]


def expired(library: ModuleType, stage: Stage) -> bool:
    task = stage.task(library.QueueOnce, once={"timeout": 1})
    task.delay(7)
    return until(lambda: outcome(task.delay, 7) == "published")


def again(library: ModuleType, stage: Stage, body: Any = None) -> list[object]:
    task = stage.task(library.QueueOnce, body)
    states = stage.run(task.delay(7))
    return [states, outcome(task.delay, 7)]


def while_running(library: ModuleType, stage: Stage, seconds: float = 0, **once: Any) -> str:
    task = stage.task(library.QueueOnce, stage.waiting, **({"once": once} if once else {}))
    task.delay(7)
    with stage.running():
        let_pass(seconds)
        return outcome(task.delay, 7)


def retried(library: ModuleType, stage: Stage) -> list[str]:
    return stage.run(stage.task(library.QueueOnce, retry_once, bind=True).delay(7))


def of_call(library: ModuleType, stage: Stage, **once: Any) -> str:
    task = stage.task(library.QueueOnce)
    task.delay(7, 1)
    return outcome(task.apply_async, (7, 2), once=once)


def by_keyword(library: ModuleType, stage: Stage) -> str:
    task = stage.task(library.QueueOnce)
    task.delay(7)
    return outcome(task.delay, a=7)


def called(library: ModuleType, stage: Stage) -> list[object]:
    task = stage.task(library.QueueOnce)
    task.delay(7)
    return [task(7), task.apply((7,), once={"graceful": True}).get()]


def of_signature(library: ModuleType, stage: Stage) -> str:
    task = stage.task(library.QueueOnce)
    task.delay(7)
    return str(task.s(7).set(once={"graceful": True}).apply_async().state)


def unpublished(library: ModuleType, stage: Stage) -> list[str]:
    task = stage.task(library.QueueOnce)
    return [outcome(task.apply_async, (7,), serializer="none such"), outcome(task.delay, 7)]


CASES = [
    Case("a duplicate of a queued call raises", second, "AlreadyQueued"),
    Case("calls with other arguments are others", lambda *on: second(*on, (7,), (8,)), "published"),
    Case("a keyword is the argument it names", by_keyword, "AlreadyQueued"),
    Case("a duplicate of a running call raises", while_running, "AlreadyQueued"),
    Case("the error counts down from an hour", counted_down, [False, True]),
    Case("the timeout is the task's", lambda *on: counted_down(*on, {"timeout": 60}), [True, True]),
    Case("the timeout is the call's", lambda *on: counted_down(*on, once={"timeout": 60}), [True, True]),
    Case("the timeout is the app's", counted_down, [True, True], settings={"ONCE": {"default_timeout": 60}}),
    Case("it ends the lock of a queued call", expired, True),
    Case("graceful, a task tells by its state", lambda *on: graceful(*on, {"graceful": True}),
         [None, "REJECTED", None, 1]),
    Case("graceful, a call does", lambda *on: graceful(*on, once={"graceful": True}),
         [None, "REJECTED", None, 1]),
    Case("graceful, a signature does", of_signature, "REJECTED"),
    Case("keys name the arguments that count", lambda *on: second(*on, (7, 1), (7, 2), once={"keys": ["a"]}),
         "AlreadyQueued"),
    Case("and no others", lambda *on: second(*on, (7, 1), (8, 1), once={"keys": ["a"]}), "published"),
    Case("no keys mean one lock", lambda *on: second(*on, (7,), (8,), once={"keys": []}), "AlreadyQueued"),
    Case("the keys of a call count for nothing", lambda *on: of_call(*on, keys=["a"]), "published"),
    Case("a success frees it", again, [["SUCCESS"], "published"]),
    Case("a failure frees it", lambda *on: again(*on, fail), [["FAILURE"], "published"]),
    Case("with unlock_before_run a start does", lambda *on: while_running(*on, unlock_before_run=True),
         "published"),
    Case("a retry is published", retried, ["SUCCESS"]),
    Case("calls in place take no lock", called, [7, 7]),
    # What differs.
    Case("a run keeps its lock after the timeout", lambda *on: while_running(*on, 1.5, timeout=1),
         "published", here="AlreadyQueued"),
    Case("a publish that fails frees it", unpublished, ["SerializerNotInstalled", "AlreadyQueued"],
         here=["SerializerNotInstalled", "published"]),
    Case("a number is no text", lambda *on: second(*on, (7,), ("7",)), "AlreadyQueued", here="published"),
    Case("a default is an argument", lambda *on: second(*on, (7,), (7, 0)), "published",
         here="AlreadyQueued"),
]  # fmt: skip

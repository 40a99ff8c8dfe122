"""What celery-singleton does: its README and its source (0.3.1)."""

from types import ModuleType
from typing import Any

from tests.peers.stage import PATIENCE, Case, Stage, fail, outcome, retry_once, until


def duplicate(library: ModuleType, stage: Stage, *calls: tuple[Any, ...], **options: Any) -> list[object]:
    """Publish these calls; return whether all have one id, and how many messages are queued."""
    task = stage.task(library.Singleton, **options)
    results = [task.delay(*args) for args in calls or ((7,), (7,))]
    return [len({result.id for result in results}) == 1, stage.queued()]


def by_keyword(library: ModuleType, stage: Stage) -> int:
    task = stage.task(library.Singleton)
    task.delay(7)
    task.delay(a=7)
    return stage.queued()


def default_as_key(library: ModuleType, stage: Stage) -> str:
    return outcome(stage.task(library.Singleton, unique_on=["b"]).delay, 7)


def refused(library: ModuleType, stage: Stage, **options: Any) -> list[object]:
    task = stage.task(library.Singleton, **options)
    result = task.delay(7)
    try:
        return ["returned", task.delay(7).id == result.id]
    except library.DuplicateTaskError as error:
        return ["raised", error.task_id == result.id]


def expired(library: ModuleType, stage: Stage, **options: Any) -> list[object]:
    task = stage.task(library.Singleton, **options)
    result = task.delay(7)
    return [until(lambda: task.delay(7).id != result.id), stage.queued()]


def again(library: ModuleType, stage: Stage, body: Any = None) -> list[object]:
    task = stage.task(library.Singleton, body)
    result = task.delay(7)
    states = stage.run(result)
    return [states, task.delay(7).id != result.id]


def while_running(library: ModuleType, stage: Stage) -> bool:
    task = stage.task(library.Singleton, stage.waiting)
    result = task.delay(7)
    with stage.running():
        return bool(task.delay(7).id == result.id)


def unpublished(library: ModuleType, stage: Stage) -> list[str]:
    task = stage.task(library.Singleton, raise_on_duplicate=True)
    return [outcome(task.apply_async, (7,), serializer="none such"), outcome(task.delay, 7)]


def cleared(library: ModuleType, stage: Stage) -> int:
    task = stage.task(library.Singleton)
    task.delay(7)
    library.clear_locks(stage.app)
    task.delay(7)
    return stage.queued()


def cleared_while_running(library: ModuleType, stage: Stage) -> bool:
    task = stage.task(library.Singleton, stage.waiting)
    result = task.delay(7)
    with stage.running():
        library.clear_locks(stage.app)
        return bool(task.delay(7).id == result.id)


def retried(library: ModuleType, stage: Stage) -> str:
    result = stage.task(library.Singleton, retry_once, bind=True).delay(7)
    with stage.worker():
        until(lambda: result.state in {"RETRY", "SUCCESS"})
        # A retry that was published runs before this one.
        stage.app.tasks["celery.backend_cleanup"].delay().get(timeout=PATIENCE)
    return str(result.state)


def without_hooks(library: ModuleType, stage: Stage) -> bool:
    class Quiet(library.Singleton):  # type: ignore[name-defined, misc]  # of whichever library
        abstract = True

        def on_success(self, *_: Any) -> None: ...

    task = stage.task(Quiet)
    result = task.delay(7)
    stage.run(result)
    return bool(task.delay(7).id != result.id)


def called(library: ModuleType, stage: Stage) -> list[object]:
    task = stage.task(library.Singleton)
    task.delay(7)
    return [task(7), task.apply((7,)).get()]


CASES = [
    Case("a duplicate of a queued call gets its result", duplicate, [True, 1]),
    Case("calls with other arguments are others", lambda *on: duplicate(*on, (7,), (8,)), [False, 2]),
    Case("a duplicate of a running call gets its result", while_running, True),
    Case("with raise_on_duplicate it raises", lambda *on: refused(*on, raise_on_duplicate=True),
         ["raised", True]),
    Case("so it does by the setting", refused, ["raised", True],
         settings={"singleton_raise_on_duplicate": True}),
    Case("a task wins over the setting", lambda *on: refused(*on, raise_on_duplicate=False),
         ["returned", True], settings={"singleton_raise_on_duplicate": True}),
    Case("unique_on names the arguments that count",
         lambda *on: duplicate(*on, (7, 1), (7, 2), unique_on=["a"]), [True, 1]),
    Case("unique_on may be one name", lambda *on: duplicate(*on, (7, 1), (7, 2), unique_on="a"), [True, 1]),
    Case("an empty unique_on means all", lambda *on: duplicate(*on, (7, 1), (7, 2), unique_on=[]),
         [False, 2]),
    Case("lock_expiry ends the lock of a queued call", lambda *on: expired(*on, lock_expiry=1), [True, 2]),
    Case("so does the setting", expired, [True, 2], settings={"singleton_lock_expiry": 1}),
    Case("a success frees it", again, [["SUCCESS"], True]),
    Case("a failure frees it", lambda *on: again(*on, fail), [["FAILURE"], True]),
    Case("a publish that fails frees it", unpublished, ["SerializerNotInstalled", "published"]),
    Case("clear_locks frees queued calls", cleared, 2),
    Case("calls in place take no lock", called, [7, 7]),
    # What differs.
    Case("clear_locks leaves a run its lock", cleared_while_running, False, here=True),
    Case("a keyword is the argument it names", by_keyword, 2, here=1),
    Case("a default is an argument", default_as_key, "KeyError", here="published"),
    Case("a retry is published", retried, "RETRY", here="SUCCESS"),
    Case("a class with hooks of its own frees its lock", without_hooks, False, here=True),
]  # fmt: skip

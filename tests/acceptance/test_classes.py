"""Tasks with another base class beside ``SingletonTask``, before it or behind it: both keep promises."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery.contrib.abortable import AbortableAsyncResult

from tests.acceptance.conftest import opening
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.paths import ELSEWHERE, FUSED
from tests.acceptance.terms import PATIENCE
from tests.acceptance.worker import Worker

pytest.importorskip("django")

from django.db import transaction

from tests.acceptance.classes import ORDERS, THEIRS, declare, send_for_tenant, tenant

pytestmark = pytest.mark.xdist_group("classes")

TaskOf = Callable[[str], Any]


@pytest.fixture(scope="module", params=[(FUSED, "prefork"), (ELSEWHERE, "threads")], ids="-".join)
def classes(request: pytest.FixtureRequest, open_on: Callable[..., Project]) -> Iterator[Project]:
    """The project with these tasks, with the locks beside the messages, and elsewhere."""
    path, pool = request.param
    with opening(open_on, []) as make:
        project = make(path=path)
        declare(project.app)
        project.workers.append(Worker(project.plan, pool, 2, (), app="tests.acceptance.classes"))
        project.workers[-1].wait_ready()
        yield project


@pytest.fixture(params=ORDERS)
def task_of(request: pytest.FixtureRequest, classes: Project) -> TaskOf:
    """Returns the task with this other base, in each order."""
    return lambda theirs: getattr(classes, f"{theirs}_{request.param}")


@pytest.mark.parametrize("theirs", sorted(THEIRS.keys() - {"at_commit"}))
def test_a_task_is_unique_and_what_the_other_base_makes_it(
    classes: Project, task_of: TaskOf, key: str, theirs: str
) -> None:
    """Its ``__call__`` is around the one body there is, under the lock, which is free with the result."""
    task = task_of(theirs)
    with classes.kept_on(key):
        first = task.delay(key)
        classes.wait_started(key)
        second = task.delay(key)

    assert (first.get(timeout=PATIENCE), task.lock_for(key).holder()) == (f"{key} done", None)
    assert [first.is_duplicate, second.is_duplicate] == [False, True]
    assert second.id == first.id
    (body,) = classes.bodies(key)
    assert body.token is not None
    assert classes.notes(f"around {key}") == [THEIRS[theirs][1]]


@pytest.mark.parametrize("theirs", ["abortable", "everything"])
def test_a_run_can_be_aborted(classes: Project, task_of: TaskOf, key: str, theirs: str) -> None:
    """By the result of the call, and by that of its duplicate; the next run is not."""
    task = task_of(theirs)
    for number in range(3):
        with classes.kept_on(key):
            results = [task.delay(key)]
            classes.wait_started(key, number + 1)
            results.append(task.delay(key))
            assert {isinstance(result, AbortableAsyncResult) for result in results} == {True}
            if number < 2:
                results[number].abort()
        classes.wait_ended(key, number + 1)
        wait_until(lambda: task.lock_for(key).holder() is None, PATIENCE, "the lock is free")

    assert classes.notes(f"aborted {key}") == [True, True, False]


def test_a_base_that_overrides_everything_has_its_say(classes: Project, task_of: TaskOf, key: str) -> None:
    """In the caller and in the worker's main process as well; it runs in place too."""
    task = task_of("everything")

    result = task.delay(key)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert classes.notes(f"received {result.id}") == ["everything"]
    assert task.apply((key,)).get() == f"{key} done"
    assert classes.notes(f"around {key}") == [["everything"]] * 2


def _publish(task: Any, theirs: str, key: str) -> None:
    publish = task.delay if theirs == "at_commit" else task.delay_on_commit
    assert publish(key) is None


@pytest.mark.parametrize("theirs", ["at_commit", "django", "tenant"])
def test_what_is_published_at_commit_is_unique_from_then_on(
    classes: Project, task_of: TaskOf, key: str, theirs: str
) -> None:
    """A rollback leaves nothing; what commits runs, once for as long as it is queued or runs, then again."""
    task = task_of(theirs)

    with suppress(ZeroDivisionError), transaction.atomic():
        _publish(task, theirs, key)
        raise ZeroDivisionError
    assert task.lock_for(key).holder() is None

    with classes.kept_on(key):
        with transaction.atomic():
            for _ in range(2):
                _publish(task, theirs, key)
            assert task.lock_for(key).holder() is None
        with transaction.atomic():
            _publish(task, theirs, key)
        classes.wait_started(key)
        with transaction.atomic():
            _publish(task, theirs, key)
    classes.wait_ended(key)
    wait_until(lambda: task.lock_for(key).holder() is None, PATIENCE, "the lock is free")
    with transaction.atomic():
        _publish(task, theirs, key)
    classes.wait_ended(key, 2)
    wait_until(lambda: classes.undelivered() == 0, PATIENCE, "nothing is queued")

    assert len(classes.bodies(key)) == 2
    assert {body.token is not None for body in classes.bodies(key)} == {True}
    assert task.lock_for(key).holder() is None


def test_a_body_runs_for_the_tenant_of_its_caller(
    classes: Project, task_of: TaskOf, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app's own ``send_task`` says for whom, also of a call that is published at commit."""
    task = task_of("tenant")
    monkeypatch.setattr(classes.app, "send_task", send_for_tenant(classes.app))
    reset = tenant.set("acme")
    try:
        first = task.delay(key)
        assert first.get(timeout=PATIENCE) == f"{key} done"
        with transaction.atomic():
            task.delay_on_commit(key)
    finally:
        tenant.reset(reset)
    classes.wait_ended(key, 2)

    assert classes.notes(f"tenant of {key}") == ["acme", "acme"]

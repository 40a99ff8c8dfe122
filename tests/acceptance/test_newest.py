"""``coalesce`` and ``lock_debounce``: of many calls of a key the newest runs, whatever becomes of others."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery.result import AsyncResult

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import DEAD, PATIENCE
from tests.facts import lives
from tests.tiers import slow

ProjectMaker = Callable[..., Project]
ProjectOn = Callable[..., Project]

pytestmark = pytest.mark.law(2)

#: Of every task of these projects that can have it.
NEWEST = {"redislock_on_conflict": "coalesce", "redislock_restore": 6.0, "worker_prefetch_multiplier": 4}
ON = [FUSED, ELSEWHERE, slow(RABBITMQ)]
CALLS = 25


@pytest.fixture
def project(project_on: ProjectOn, on: str) -> Project:
    """The project on one of the paths that these tests share, with a worker that they do not kill."""
    return project_on("prefork", on, concurrency=2, conf=NEWEST)


@pytest.fixture
def own_project(new_project: ProjectMaker, on: str) -> Project:
    """A project for one test, without a worker."""
    return new_project(path=on, conf=NEWEST)


def call(task: Any, key: str, number: int, **options: Any) -> Any:
    """Publish a call that returns its number."""
    return task.apply_async((key, 0.0, "tell", number), **options)


def ended(results: list[Any]) -> dict[str, Any]:
    """What became of these calls, by their ids, when all have ended: their state and value."""
    ids = {result.id: result for result in results}
    wait_until(lambda: all(each.ready() for each in ids.values()), DEAD + 2 * PATIENCE, "all have ended")
    return {task_id: (each.state, each.result) for task_id, each in ids.items()}


def values(results: list[Any]) -> list[Any]:
    """The numbers of those that ran, in no order."""
    return [value for state, value in ended(results).values() if state == "SUCCESS"]


def last_of(project: Project, key: str) -> AsyncResult:
    """The result of the body that began last."""
    found: AsyncResult = project.executed.AsyncResult(project.bodies(key)[-1].task_id)
    return found


@contextmanager
def first_is_on(project: Project, task: Any, key: str, ending: str = "tell", more: Any = -1) -> Iterator[Any]:
    """Publish a call whose body is on until the block ends."""
    with project.kept_on(key):
        first = task.apply_async((key, 0.0, ending, more))
        project.wait_started(key)
        yield first


@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("task", ["executed", "executed_acks_late", "until_executing"])
def test_of_calls_that_come_while_one_runs_the_newest_runs_once_after_it(
    project: Project, key: str, task: str
) -> None:
    """One run for all of them, with the last one's arguments; every id ends, whoever holds it."""
    publish = getattr(project, task)
    with first_is_on(project, publish, key) as first:
        # Where no run holds the key, the first of the others runs at once, and is kept on as well.
        results = [call(publish, key, number) for number in range(CALLS)]
        if task != "until_executing":
            wait_until(lambda: len(project.parked(key)) == 1, PATIENCE, "one waits")
    assert max(values(results)) == CALLS - 1
    assert first.get(timeout=PATIENCE) == -1
    assert last_of(project, key).get(timeout=PATIENCE) == CALLS - 1
    if task != "until_executing":
        assert len(project.bodies(key)) <= 3
        assert project.overlaps(key) == []
    project.wait_free(key)


@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("end", ["fail", "retry", "revoked", "child killed", slow("worker killed")])
def test_the_newest_runs_last_however_the_one_before_it_ends(
    request: pytest.FixtureRequest, on: str, key: str, end: str
) -> None:
    """A killed run of a message that comes back ends as the newest one's duplicate, or runs before it."""
    if end == "worker killed":  # on its path, as the other one
        project = request.getfixturevalue("own_project")
        worker = project.start_worker("prefork", concurrency=2)
    else:
        project = request.getfixturevalue("project")
    request.node._projects = [project]  # whose logs are shown
    task = project.executed_reject_on_worker_lost
    ending = end if end in {"fail", "retry"} else "tell"
    with first_is_on(
        project, task, key, ending, {"times": 1, "countdown": 1} if end == "retry" else -1
    ) as first:
        results = [call(task, key, number) for number in range(CALLS)]
        ids = {result.id: result for result in results}
        # Not while a message is on its way from the queue to the worker, where plain Celery loses it as well.
        given_way = len(ids) - 1
        wait_until(
            lambda: sum(each.ready() for each in ids.values()) == given_way and len(project.parked(key)) == 1,
            PATIENCE,
            "all but one have given way",
        )
        [body] = project.bodies(key)
        if end == "revoked":
            project.app.control.revoke(first.id, terminate=True, signal="SIGKILL")
        elif end == "child killed":
            os.kill(body.pid, signal.SIGKILL)
        elif end == "worker killed":
            worker.signal(signal.SIGKILL)
            worker.process.wait(10)
        if end in {"revoked", "child killed"}:
            wait_until(lambda: not lives(body.pid), PATIENCE, "the child is dead")
    if end == "worker killed":
        project.start_worker("prefork", concurrency=2)
    assert max(values(results)) == CALLS - 1
    wait_until(first.ready, DEAD + 2 * PATIENCE, "the first one has ended")
    project.wait_free(key)
    assert last_of(project, key).get(timeout=PATIENCE) == CALLS - 1
    assert project.overlaps(key, killed=end not in {"fail", "retry"}) == []


@pytest.mark.parametrize("on", [FUSED, slow(ELSEWHERE)])
def test_a_call_that_was_handed_its_lock_and_died_with_its_worker_runs(
    own_project: Project, key: str
) -> None:
    """With the arguments that it had; a call that was made meanwhile runs after it."""
    project = own_project
    worker = project.start_worker("prefork", concurrency=1)
    task = project.executed_reject_on_worker_lost
    with project.kept_on("second"):
        with first_is_on(project, task, key):
            waits = call(task, key, 0, task_id="second")
            project.wait_parked(key, 1)
        project.wait_started(key, 2)
        later = call(task, key, 1)
        project.wait_parked(key, 1)
        worker.signal(signal.SIGKILL)
        worker.process.wait(10)
    project.start_worker("prefork", concurrency=2)
    assert ended([waits, later])[later.id] == ("SUCCESS", 1)
    assert waits.id != later.id
    assert last_of(project, key).get(timeout=PATIENCE) == 1


@pytest.mark.slow
@pytest.mark.parametrize("on", [FUSED, ELSEWHERE])
def test_a_call_that_was_handed_its_lock_and_not_started_runs_when_its_worker_is_killed(
    own_project: Project, key: str
) -> None:
    """It was in the hands of a worker without a free process; a call that was made meanwhile runs last."""
    project = own_project
    worker = project.start_worker("prefork", concurrency=1)
    with project.kept_on("busy"):
        with first_is_on(project, project.executed, key):
            project.executed.apply_async((f"{key} of another",), task_id="busy")
            waits = call(project.executed, key, 0)
            project.wait_parked(key, 1)
            before = project.received()[waits.id]
        project.wait_received(waits.id, before + 1)
        later = call(project.executed, key, 1)
        project.wait_parked(key, 1)
        assert len(project.bodies(key)) == 1
        worker.signal(signal.SIGKILL)
        worker.process.wait(10)
    project.start_worker("prefork", concurrency=2)
    assert ended([waits, later]) == {waits.id: ("SUCCESS", 0), later.id: ("SUCCESS", 1)}
    assert last_of(project, key).get(timeout=PATIENCE) == 1
    assert project.overlaps(key) == []
    project.wait_free(key)


@pytest.mark.slow
@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("dies", ["child", "worker"])
def test_the_newest_runs_when_the_run_before_it_dies_with_a_message_that_was_acknowledged(
    own_project: Project, key: str, dies: str
) -> None:
    """As plain Celery does, it loses that run; and nothing of what waits."""
    project = own_project
    worker = project.start_worker("prefork", concurrency=2)
    with first_is_on(project, project.executed, key):
        results = [call(project.executed, key, number) for number in range(CALLS)]
        ids = {result.id: result for result in results}
        wait_until(
            lambda: sum(each.ready() for each in ids.values()) == len(ids) - 1 and project.parked(key),
            PATIENCE,
            "all but one have given way",
        )
        if dies == "worker":
            worker.signal(signal.SIGKILL)
            worker.process.wait(10)
            project.start_worker("prefork", concurrency=2)
        else:
            os.kill(project.bodies(key)[0].pid, signal.SIGKILL)
        # Before the first one's gate opens: nobody runs that body any more.
        project.wait_started(key, 2)
    assert values(results) == [CALLS - 1]
    assert len(project.bodies(key)) == 2
    project.wait_free(key)


@pytest.mark.slow
@pytest.mark.parametrize("on", [ELSEWHERE, RABBITMQ])
def test_a_call_that_is_put_off_outlives_the_worker_that_put_it_into_line(
    own_project: Project, key: str
) -> None:
    """It runs once, when it is due."""
    project = own_project
    worker = project.start_worker("prefork", concurrency=1)
    began = time.monotonic()
    result = call(project.executed, key, 7, lock_debounce=3.0)
    project.wait_parked(key, 1)
    worker.signal(signal.SIGKILL)
    worker.process.wait(10)
    assert project.bodies(key) == []
    project.start_worker("prefork", concurrency=1)
    assert result.get(timeout=PATIENCE) == 7
    [body] = project.wait_ended(key)
    assert body.start - began >= 2.95
    project.wait_free(key)


@pytest.mark.parametrize("on", ON)
def test_a_burst_is_one_run_when_the_calls_have_stopped(project: Project, key: str) -> None:
    """Not before the pause has passed since the last of them; and the next burst is put off again."""
    for burst in range(2):
        results = []
        for number in range(CALLS):
            results.append(call(project.executed, key, number, lock_debounce=1.0))
            last = time.monotonic()
            time.sleep(0.05)
        assert values(results) == [CALLS - 1]
        bodies = project.bodies(key)
        assert len(bodies) == burst + 1
        assert bodies[-1].start - last >= 0.95
        project.wait_free(key)


@pytest.mark.parametrize("on", [FUSED, ELSEWHERE])
def test_a_burst_that_a_worker_finds_in_its_queue_is_one_run(own_project: Project, key: str) -> None:
    """None of them starts at once, although each is received while the one before it is in hand."""
    project = own_project
    results = [call(project.executed, key, number, lock_debounce=1.0) for number in range(5)]
    project.start_worker("prefork", concurrency=2)
    assert values(results) == [4]
    assert len(project.bodies(key)) == 1


@pytest.mark.parametrize("on", [FUSED, slow(ELSEWHERE)])
def test_calls_that_keep_coming_do_not_put_the_run_off_for_longer_than_they_may(
    project: Project, key: str
) -> None:
    """``lock_debounce_max``, from the first call on."""
    began = time.monotonic()
    results = []
    while not project.bodies(key):
        results.append(call(project.executed, key, len(results), lock_debounce=2.0, lock_debounce_max=3.0))
        time.sleep(0.1)
        assert time.monotonic() - began < PATIENCE
    [body] = project.bodies(key)
    assert body.start - began >= 2.95
    assert max(values(results)) == len(results) - 1


@pytest.mark.parametrize("on", [FUSED])
def test_a_call_that_falls_due_while_no_worker_is_there_starts_with_the_next_one(
    own_project: Project, key: str
) -> None:
    """Its time is kept by the lock server."""
    project = own_project
    result = call(project.executed, key, 7, lock_debounce=1.0)
    wait_until(lambda: project.parked(key), PATIENCE, "it waits")
    time.sleep(1.5)
    project.start_worker("prefork", concurrency=1)
    assert result.get(timeout=PATIENCE) == 7


@pytest.mark.parametrize("on", [FUSED, ELSEWHERE])
def test_a_revoked_call_that_waits_swallows_no_later_one(project: Project, key: str) -> None:
    """It ends in its turn, and the later one runs."""
    with first_is_on(project, project.executed, key):
        waits = call(project.executed, key, 0)
        project.wait_parked(key, 1)
        project.app.control.revoke(waits.id)
        store = project.executed.lock_for(key)._store
        wait_until(
            lambda: not store.newest(f"work:{key}", "project.executed", "", None), PATIENCE, "it is heard of"
        )
        later = call(project.executed, key, 1)
    assert later.get(timeout=PATIENCE) == 1
    assert ended([waits])[waits.id][0] == "REVOKED"

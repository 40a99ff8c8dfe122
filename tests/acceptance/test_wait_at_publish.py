"""``wait`` at publish: calls of one key run in the order in which they were published, and none is lost."""

import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import DEAD, PATIENCE
from tests.tiers import slow

ProjectMaker = Callable[..., Project]
ProjectOn = Callable[..., Project]

pytestmark = pytest.mark.law(2)

#: Every task of these projects waits.
WAIT = {"redislock_on_conflict": "wait"}


def waiting(project: Project, key: str, task: str = "executed") -> list[str]:
    """The task ids in line, in order."""
    return [holder.owner for holder in getattr(project, task).lock_for(key).waiting()]


def wait_for_nobody(project: Project, key: str, task: str = "executed") -> None:
    """Return when nobody is in line."""
    wait_until(lambda: not waiting(project, key, task), PATIENCE, f"nobody waits for {key!r}")


def order(project: Project, key: str) -> list[str]:
    """The task ids in the order in which their bodies began."""
    return [body.task_id for body in project.bodies(key)]


def ids(results: Sequence[Any]) -> list[str]:
    """The task ids of results."""
    assert not any(result.is_duplicate for result in results)
    return [result.id for result in results]


@pytest.mark.parametrize(
    ("task", "concurrency"),
    [
        ("executed", 4),
        ("executed_acks_late", 4),
        # Bodies may overlap there, so that the order in which they begin is exact for one process only.
        ("until_executing", 1),
        ("until_and_while", 4),
        slow("until_executing_acks_late", 1),
        slow("until_and_while_acks_late", 4),
    ],
)
def test_calls_begin_in_the_order_in_which_they_were_published(
    project_on: ProjectOn, key: str, task: str, concurrency: int
) -> None:
    """Thirty calls of one process while one runs, for several processes; each has a result of its own."""
    conf = {**WAIT, "worker_prefetch_multiplier": 4}
    project = project_on("prefork", concurrency=concurrency, conf=conf)
    publish = getattr(project, task).delay
    with project.kept_on(key):
        results = [publish(key)]
        project.wait_started(key)
        results += [publish(key) for _ in range(30)]
        # One of them may be queued beside a run that holds no lock, or another one.
        assert len(waiting(project, key, task)) >= 29
    assert [result.get(timeout=PATIENCE) for result in results] == [f"{key} done"] * 31
    project.wait_ended(key, 31)

    assert order(project, key) == ids(results)
    assert task.startswith("until_executing") or project.overlaps(key) == []
    wait_for_nobody(project, key, task)
    project.wait_free(key)


@pytest.mark.parametrize(
    "task", ["executed_acks_late", slow("until_and_while_acks_late"), slow("until_executing_acks_late")]
)
def test_a_killed_worker_costs_no_call_and_no_order(new_project: ProjectMaker, key: str, task: str) -> None:
    """``kill -9`` in the middle: its body runs again, and so does what it had in hand; the others wait.

    Not while a message is on its way from the queue to the worker, where plain Celery loses it as well.
    """
    project = new_project(conf={**WAIT, "redislock_restore": 6.0, "worker_prefetch_multiplier": 4})
    worker = project.start_worker("prefork", concurrency=1)
    publish = getattr(project, task).delay
    with project.kept_on(key):
        results = [publish(key)]
        project.wait_started(key)
        results += [publish(key) for _ in range(10)]
        if task != "executed_acks_late":
            project.wait_received(results[1].id)
        worker.signal(signal.SIGKILL)
        worker.process.wait(10)
    project.start_workers(2, "prefork", concurrency=2)
    for result in results:
        result.get(timeout=DEAD + 2 * PATIENCE)
    wait_for_nobody(project, key, task)
    began = order(project, key)

    assert set(began) == set(ids(results))
    assert len(began) == len(results) + 1  # the body that was killed ran again
    if task == "executed_acks_late":
        assert [one for one in began if one != results[0].id] == ids(results[1:])
    if not task.startswith("until_executing"):
        assert project.overlaps(key, killed=1) == []


@pytest.mark.parametrize("how", ["revoked", "expires"])
def test_one_that_may_not_run_any_more_lets_the_next_one_run(
    project_on: ProjectOn, key: str, how: str
) -> None:
    """It keeps its place until its turn comes, and ends as any such message does."""
    project = project_on("prefork", conf=WAIT)
    with project.kept_on(key):
        project.executed.delay(key)
        project.wait_started(key)
        one = project.executed.apply_async((key,), **({"expires": 0.001} if how == "expires" else {}))
        last = project.executed.delay(key)
        assert waiting(project, key) == ids([one, last])
        if how == "revoked":
            project.app.control.revoke(one.id)
            project.wait_lines("revoked", one.id)
    last.get(timeout=PATIENCE)
    wait_until(lambda: one.state == "REVOKED", PATIENCE, "it is revoked")

    assert one.id not in order(project, key)
    project.wait_free(key)

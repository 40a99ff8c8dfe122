"""Several at a time: never more bodies of one key at once than its limit, and nobody waits for nothing."""

import signal
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from celery_redislock import LockOptionError
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.journal import Body
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import DEAD, LEASE, PATIENCE
from tests.tiers import slow

ProjectMaker = Callable[..., Project]

pytestmark = pytest.mark.law(1)


def most_at_once(bodies: list[Body]) -> int:
    """How many were at work at one time, each as long as its lease was valid."""
    held = [body.interval for body in bodies if body.interval.counts]
    moments = [(each.start, 1) for each in held] + [(each.counts_until, -1) for each in held]
    number = most = 0
    for _, change in sorted(moments):
        number += change
        most = max(most, number)
    return most


@pytest.mark.parametrize("path", [FUSED, slow(ELSEWHERE), slow(RABBITMQ)], indirect=True)
@pytest.mark.parametrize("pool", ["prefork", slow("threads"), slow("gevent")])
def test_twelve_processes_never_run_more_than_the_limit(
    new_project: ProjectMaker, key: str, pool: str
) -> None:
    """Sixty calls of three workers: each runs once, three at a time, and never four."""
    project = new_project()
    project.start_workers(3, pool, concurrency=4)
    results = [project.while_executing_by_3.delay(key, 0.1) for _ in range(60)]
    for result in results:
        result.get(timeout=2 * PATIENCE)
    bodies = project.wait_ended(key, 60)
    assert sorted(body.task_id for body in bodies) == sorted(result.id for result in results)
    assert most_at_once(bodies) == 3
    assert {body.fence for body in bodies} == {None}
    project.wait_free(key)


def test_the_permits_of_a_killed_worker_return_by_themselves(new_project: ProjectMaker, key: str) -> None:
    """It held three of three, and fifty wait. In Solid Queue the limit was stuck for a day."""
    project = new_project()
    worker = project.start_worker("prefork", concurrency=4)
    with project.kept_on(key):
        for _ in range(3):
            project.while_executing_by_3.delay(key)
        project.wait_started(key, 3)
        waiting = [project.while_executing_by_3.delay(key) for _ in range(50)]
        project.wait_parked(key, 50)
        worker.signal(signal.SIGKILL)
        worker.process.wait(PATIENCE)
        killed_at = time.time()
        project.start_worker("prefork", concurrency=4)
        fourth = project.wait_started(key, 4, timeout=LEASE + DEAD + PATIENCE)
        project.wait_started(key, 6)
    for result in waiting:
        result.get(timeout=PATIENCE)
    wait_until(lambda: len(project.bodies(key)) == 53, PATIENCE, "all have run")
    bodies = project.bodies(key)

    assert fourth.start - killed_at < LEASE + DEAD + 5.0
    assert most_at_once([body for body in bodies if body.ended_by is not None]) == 3


@pytest.mark.parametrize("path", [FUSED, slow(ELSEWHERE), slow(RABBITMQ)], indirect=True)
@pytest.mark.parametrize("task", ["while_executing_of_fleet", slow("executed_of_fleet")])
def test_in_a_deploy_nothing_runs_beside_a_worker_that_knows_no_limit(
    new_project: ProjectMaker, key: str, task: str
) -> None:
    """A message that was handed its place under 3, or accepted under 3, may come to it; nothing is lost."""
    project = new_project()
    project.start_worker("prefork", concurrency=4)
    (old,) = project.start_workers(1, "prefork", concurrency=4, limit=1)
    results = [getattr(project, task).delay(key, 0.1) for _ in range(24)]
    for result in results:
        result.get(timeout=2 * PATIENCE)
    bodies = project.wait_ended(key, 24)
    of_old = [body for body in bodies if body.worker == old.process.pid]
    assert sorted(body.task_id for body in bodies) == sorted(result.id for result in results)
    assert most_at_once(bodies) <= 3
    assert of_old
    for one in of_old:
        assert [b for b in bodies if b is not one and b.start < one.end and one.start < b.end] == []
    project.wait_free(key)


def test_a_callable_says_the_limit_of_each_call(prefork: Project, key: str) -> None:
    """It is asked where the call is made; its error is the caller's, and so is an answer that is none."""
    also = f"{key}-premium"
    with prefork.kept_on(key, also):
        free = [prefork.while_executing_as_said.delay(key) for _ in range(2)]
        prefork.wait_started(key)
        prefork.wait_parked(key, 1)
        premium = [prefork.while_executing_as_said.delay(also, more=2) for _ in range(3)]
        prefork.wait_started(also, 2)
        prefork.wait_parked(also, 1)
        assert len(prefork.bodies(key)) == 1
    for result in (*free, *premium):
        result.get(timeout=PATIENCE)
    for more, said in (("raise", "no such tier"), (-1, "whole number"), ("7", "whole number")):
        with pytest.raises(LockOptionError, match=said):
            prefork.while_executing_as_said.delay(key, more=more)

    assert most_at_once(prefork.bodies(key)) == 1
    assert most_at_once(prefork.bodies(also)) == 2


def test_a_callable_that_raises_on_the_worker_fails_the_task_visibly(prefork: Project, key: str) -> None:
    """The message was published by name only: it is not lost, and its result says why."""
    result = prefork.app.send_task("project.while_executing_as_said", (key,), {"more": "raise"})
    with pytest.raises(Exception, match="no such tier"):
        result.get(timeout=PATIENCE)
    assert result.state == "FAILURE"
    assert prefork.bodies(key) == []


def test_a_limit_is_changed_while_it_counts(prefork: Project, key: str) -> None:
    """Raised for a key, it lets those start that wait, without a deploy; lowered, it ends nobody."""
    lock = prefork.while_executing_as_said.lock_for(key)
    with prefork.kept_on(key):
        results = [prefork.while_executing_as_said.delay(key) for _ in range(4)]
        prefork.wait_started(key)
        prefork.wait_parked(key, 3)
        found = lock.limit(3, for_=timedelta(days=30), by="billing")
        assert (found.value, found.facts["by"]) == (3, "billing")
        prefork.wait_started(key, 3)
        lock.limit(1)
        assert len(lock.holders()) == 3
        assert len(prefork.parked(key)) == 1
    for result in results:
        result.get(timeout=PATIENCE)
    bodies = prefork.wait_ended(key, 4)

    assert most_at_once(bodies) == 3
    assert all(body.end <= bodies[3].start for body in bodies[:3])
    assert lock.limit(reset=True) is None
    with pytest.raises(LockOptionError, match="lock_limit=1"):
        prefork.while_executing.lock_for(key).limit(5)

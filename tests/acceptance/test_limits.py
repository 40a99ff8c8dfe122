"""Several at a time: never more bodies of one key at once than its limit, and nobody waits for nothing."""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from celery_redislock import LockOptionError
from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.journal import Body
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import DEAD, LEASE, LOST, PATIENCE, SHORT_LEASE
from tests.acceptance.worker import Worker
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


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_holder_that_stood_still_frees_no_permit_of_another(
    new_project: ProjectMaker, key: str, rounds: int
) -> None:
    """Its permit has expired, and another run has one; when it goes on it learns of that, and ends nobody's.

    In Solid Queue the slot was given away, and freed a second time by the old run.
    """
    project = new_project()
    stopped = project.start_worker("prefork", concurrency=1)
    for number in range(rounds):
        name = f"{key}-{number}"
        with project.kept_on(name):
            project.while_executing_by_2.delay(name)
            old = project.wait_started(name)
            os.killpg(stopped.process.pid, signal.SIGSTOP)
            other = project.start_worker("prefork", concurrency=3)
            for _ in range(3):
                project.while_executing_by_2.delay(name)
            project.wait_started(name, 3)
            wait_until(lambda name=name: len(holders(project, name)) == 2, PATIENCE, "two hold it")
            os.killpg(stopped.process.pid, signal.SIGCONT)
            learns = partial(has_learned, stopped, old.task_id)
            wait_until(learns, PATIENCE, "the old run learns of its loss")
            throughout(SHORT_LEASE, lambda name=name: holders_are_at_most(project, name, 2))
        project.wait_ended(name, 4)
        other.end()
        bodies = project.bodies(name)

        assert most_at_once(bodies) <= 2
        # Redis may have sent another one to the worker that stood still.
        assert [body.lost_at is not None for body in bodies if body.task_id == old.task_id] == [True]


def has_learned(worker: Worker, task_id: str) -> bool:
    """Whether a run in this worker has noticed that it lost its lock."""
    return any(LOST in line and task_id in line for line in worker.log.splitlines())


def holders(project: Project, key: str) -> list[Any]:
    """Who holds it."""
    return list(project.while_executing_by_2.lock_for(key).holders())


def holders_are_at_most(project: Project, key: str, number: int) -> None:
    assert len(holders(project, key)) <= number


@pytest.mark.parametrize("seconds", [4.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_fleets_that_know_different_limits_keep_the_smaller_one(
    new_project: ProjectMaker, key: str, seconds: float
) -> None:
    """One says three, the other one: never more than three, the one alone, and both have their turns.

    RQ's documentation says that different numbers for one key admit too many.
    """
    project = new_project()
    project.start_workers(2, "prefork", concurrency=4)
    until = time.monotonic() + seconds
    results = []
    while time.monotonic() < until:
        results += [project.while_executing_by_3.delay(key, 0.05) for _ in range(4)]
        results += [project.while_executing.delay(key, 0.05)]
        for result in results[-5:]:
            result.get(timeout=PATIENCE)
    bodies = project.wait_ended(key, len(results))
    alone = [body for body in bodies if body.name.endswith(".while_executing")]

    assert most_at_once(bodies) <= 3
    assert len(alone) * 5 == len(bodies)
    for one in alone:
        beside = [b for b in bodies if b is not one and b.start < one.end and one.start < b.end]
        assert beside == []


@pytest.mark.parametrize("path", [FUSED, ELSEWHERE, slow(RABBITMQ)], indirect=True)
@pytest.mark.parametrize("task", ["while_executing_of_fleet", "executed_of_fleet"])
def test_in_a_deploy_nothing_runs_beside_a_worker_that_knows_no_limit(
    new_project: ProjectMaker, key: str, task: str
) -> None:
    """A message that was handed its place under 3, or accepted under 3, may come to it; nothing is lost."""
    project = new_project()
    project.start_worker("prefork", concurrency=4)
    (old,) = project.start_workers(1, "prefork", concurrency=4, limit=1)
    results = [getattr(project, task).delay(key, 0.1) for _ in range(40)]
    for result in results:
        result.get(timeout=2 * PATIENCE)
    bodies = project.wait_ended(key, 40)
    of_old = [body for body in bodies if body.worker == old.process.pid]

    assert sorted(body.task_id for body in bodies) == sorted(result.id for result in results)
    assert most_at_once(bodies) <= 3
    assert of_old
    for one in of_old:
        assert [b for b in bodies if b is not one and b.start < one.end and one.start < b.end] == []
    project.wait_free(key)


def test_a_call_that_was_accepted_takes_one_of_the_places(project: Project, key: str) -> None:
    """With until_executed the fourth call is the duplicate; each end of one accepts another."""
    with project.kept_on(key):
        results = [project.executed_by_3.delay(key) for _ in range(5)]
        assert [result.is_duplicate for result in results] == [False, False, False, True, True]
        accepted = [result.id for result in results[:3]]
        assert {result.id for result in results[3:]} <= set(accepted)
        held_by = project.executed_by_3.lock_for(key).holders()
        assert {holder.owner for holder in held_by} == set(accepted)
    for result in results[:3]:
        result.get(timeout=PATIENCE)
    again = project.executed_by_3.delay(key)

    assert not again.is_duplicate
    again.get(timeout=PATIENCE)
    project.wait_free(key)


@pytest.mark.parametrize("path", [FUSED, slow(ELSEWHERE), slow(RABBITMQ)], indirect=True)
def test_calls_that_were_accepted_under_another_limit_run_once(
    project: Project, key: str, monkeypatch: Any
) -> None:
    """A deploy reaches the publishers first, whose workers know of no limit yet."""
    monkeypatch.setattr(project.executed, "lock_limit", 3, raising=False)
    results = [project.executed.apply_async((key,), on_conflict="wait") for _ in range(6)]
    for result in results:
        result.get(timeout=PATIENCE)
    bodies = project.wait_ended(key, 6)

    assert sorted(body.task_id for body in bodies) == sorted(result.id for result in results)
    assert most_at_once(bodies) <= 3
    # Each once, and once more where it was put into the line; again where it was handed a place before its
    # worker, which had given that up, has parked it.
    assert all(project.received()[result.id] <= 4 for result in results)
    project.wait_free(key)


def test_calls_that_wait_at_publish_have_the_places_in_turn(prefork: Project, key: str) -> None:
    """They are in line in the order of publishing, before a worker has heard of them."""
    with prefork.kept_on(key):
        results = [prefork.executed_by_3.apply_async((key,), on_conflict="wait") for _ in range(9)]
        assert prefork.parked(key) == [result.id for result in results[3:]]
        prefork.wait_started(key, 3)
    for result in results:
        result.get(timeout=PATIENCE)
    bodies = prefork.wait_ended(key, 9)

    assert not any(result.is_duplicate for result in results)
    assert sorted(body.task_id for body in bodies) == sorted(result.id for result in results)
    assert most_at_once(bodies) == 3
    prefork.wait_free(key)


def test_a_revoked_claim_gives_its_place_back(prefork: Project, key: str) -> None:
    results = [prefork.executed_by_3.apply_async((key,), countdown=600) for _ in range(3)]
    assert prefork.executed_by_3.apply_async((key,), countdown=600).is_duplicate
    results[1].revoke()
    lock = prefork.executed_by_3.lock_for(key)
    wait_until(lambda: len(lock.holders()) == 2, PATIENCE, "its place is free")

    assert not prefork.executed_by_3.delay(key).is_duplicate
    for result in (results[0], results[2]):
        result.revoke()
    prefork.wait_free(key)


def test_a_retry_keeps_its_permit(prefork: Project, key: str) -> None:
    """Law 7: others find its place taken during the countdown."""
    retried = prefork.executed_by_3.delay(key, 0.0, "retry", {"countdown": 1.5})
    wait_until(lambda: retried.state == "RETRY", PATIENCE, "it waits")
    with prefork.kept_on(f"{key} retried"):
        others = [prefork.executed_by_3.apply_async((key,), countdown=600) for _ in range(3)]
    assert [other.is_duplicate for other in others] == [False, False, True]
    assert retried.get(timeout=PATIENCE) == f"{key} done"
    for other in others[:2]:
        other.revoke()
    prefork.wait_free(key)


def test_one_task_id_never_has_two_permits(prefork: Project, key: str) -> None:
    """Published twice, it waits for itself; whoever is behind it in line finds room."""
    with prefork.running(prefork.while_executing_by_3, key) as first:
        prefork.while_executing_by_3.apply_async((key,), task_id=first.id)
        prefork.wait_parked(key, 1)
        prefork.while_executing_by_3.delay(key).get(timeout=PATIENCE)
        assert len([body for body in prefork.bodies(key) if body.task_id == first.id]) == 1
    bodies = prefork.wait_ended(key, 3)

    of_it = [body for body in bodies if body.task_id == first.id]
    assert len(of_it) == 2
    assert of_it[0].end <= of_it[1].start


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

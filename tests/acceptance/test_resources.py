"""Tasks that run alone on several resources: never beside one that has one of them, and none starves."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from celery_redislock import LockBusy, LockOptionError, Resources
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.journal import Body, overlaps_of
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import DEAD, PATIENCE
from tests.tiers import slow

ProjectMaker = Callable[..., Project]

pytestmark = pytest.mark.law(1)


def two(project: Project, key: str, other: str, seconds: float = 0.0, *, late: bool = False) -> Any:
    """Call the task that locks both; the body is noted under the first."""
    task = project.while_executing_two_acks_late if late else project.while_executing_two
    return task.delay(key, seconds, None, other)


def waiting(project: Project, key: str) -> list[str]:
    return [waiter.owner for waiter in project.executed.lock_for(key).waiting()]


@pytest.mark.parametrize("path", [FUSED, ELSEWHERE, slow(RABBITMQ)], indirect=True)
@pytest.mark.parametrize(("pool", "late"), [("prefork", False), slow("threads", True), slow("gevent", False)])
def test_calls_of_any_two_resources_exclude_each_other_and_all_run_once(
    new_project: ProjectMaker, key: str, pool: str, late: bool
) -> None:
    """Sixty calls of one or two of four resources, in any order, on two workers."""
    names = [f"{key}-{number}" for number in range(4)]
    chance = random.Random(7)  # noqa: S311  to play the same again
    project = new_project()
    project.start_workers(2, pool, concurrency=4)
    taken: dict[str, list[str]] = {}
    results = []
    for number in range(60):
        first, other = chance.sample(names, 2)
        alone = number % 3 == 0
        result = project.while_executing.delay(first, 0.02) if alone else two(
            project, first, other, 0.02, late=late
        )  # fmt: skip
        taken[result.id] = [first] if alone else [first, other]
        results.append(result)
    for result in results:
        result.get(timeout=2 * PATIENCE)

    def bodies_now() -> list[Body]:
        return [body for name in names for body in project.bodies(name)]

    wait_until(
        lambda: len([body for body in bodies_now() if body.ended_by == ""]) == 60, PATIENCE, "60 ended"
    )
    bodies = bodies_now()
    assert sorted(body.task_id for body in bodies) == sorted(taken)
    for name in names:
        assert overlaps_of([body for body in bodies if name in taken[body.task_id]]) == []
        project.wait_free(name)


def test_one_that_waits_for_two_holds_none_and_is_not_overtaken(new_project: ProjectMaker, key: str) -> None:
    """A call of the resource that is free waits behind it."""
    other = f"{key}-other"
    project = new_project()
    project.start_worker("prefork", concurrency=4)
    with project.running(project.while_executing, key):
        both = two(project, other, key)
        wait_until(lambda: waiting(project, other) == [both.id], PATIENCE, "it waits for both")
        assert project.holder(other) is None
        behind = project.while_executing.delay(other)
        wait_until(lambda: waiting(project, other) == [both.id, behind.id], PATIENCE, "it waits behind")
    both.get(timeout=PATIENCE)
    behind.get(timeout=PATIENCE)

    assert [body.task_id for body in project.wait_ended(other, 2)] == [both.id, behind.id]


@pytest.mark.parametrize("path", [FUSED, slow(ELSEWHERE), slow(RABBITMQ)], indirect=True)
def test_both_resources_of_a_killed_worker_are_free_again(new_project: ProjectMaker, key: str) -> None:
    """Whoever waits for one of them goes on, and those that wait for both."""
    other = f"{key}-other"
    project = new_project()
    worker = project.start_worker("prefork", concurrency=1)
    with project.kept_on(key):
        two(project, key, other)
        project.wait_started(key)
        worker.end()
    project.start_worker("prefork", concurrency=2)

    alone = project.while_executing.delay(other)
    both = two(project, other, key)
    alone.get(timeout=DEAD + PATIENCE)
    both.get(timeout=DEAD + PATIENCE)
    assert project.overlaps(other) == []
    project.wait_free(key)
    project.wait_free(other)


@pytest.mark.parametrize("ending", ["fail", "retry_lingering", "reject"])
def test_both_are_free_however_it_ends(new_project: ProjectMaker, key: str, ending: str) -> None:
    """A retry hands both on to its message."""
    other = f"{key}-other"
    runs = 2 if ending == "retry_lingering" else 1
    project = new_project()
    project.start_worker("prefork", concurrency=2)
    project.while_executing_two.delay(key, 0.0, ending, other).get(timeout=PATIENCE, propagate=False)

    assert len(project.wait_ended(key, runs)) == runs
    project.wait_free(key)
    project.wait_free(other)


def test_a_retry_that_leaves_both_to_others_runs_again_and_frees_both(
    new_project: ProjectMaker, key: str
) -> None:
    """``lock_on_retry="release"``: it goes through the lines of both."""
    other = f"{key}-other"
    project = new_project()
    project.start_worker("prefork", concurrency=2)
    call = key, 0.0, "retry_lingering", other
    project.while_executing_two.apply_async(call, lock_on_retry="release").get(timeout=PATIENCE)

    assert len(project.wait_ended(key, 2)) == 2
    project.wait_free(key)
    project.wait_free(other)


@pytest.mark.parametrize("path", [FUSED, slow(RABBITMQ)], indirect=True)
@pytest.mark.parametrize("how", ["waits too long", "revoked"])
def test_who_leaves_the_lines_of_both_is_in_nobodys_way(
    new_project: ProjectMaker, key: str, how: str
) -> None:
    """One that waits behind it for the resource that is free runs, while the other one is held."""
    other = f"{key}-other"
    project = new_project()
    project.start_worker("prefork", concurrency=2)
    with project.running(project.while_executing, key):
        options = {"lock_wait_timeout": 1.0} if how == "waits too long" else {}
        both = project.while_executing_two.apply_async((other, 0.0, None, key), **options)
        wait_until(lambda: waiting(project, other) == [both.id], PATIENCE, "it waits for both")
        behind = project.while_executing.delay(other)
        wait_until(lambda: behind.id in waiting(project, other), PATIENCE, "it waits behind")
        if how == "revoked":
            project.app.control.revoke(both.id)
            project.wait_lines("revoked", both.id)
        else:
            with pytest.raises(LockBusy):
                both.get(timeout=PATIENCE)
            behind.get(timeout=PATIENCE)
    behind.get(timeout=PATIENCE)

    wait_until(lambda: both.state in {"REVOKED", "FAILURE"}, PATIENCE, "it is over")
    assert [body.task_id for body in project.wait_ended(other, 1)] == [behind.id]
    project.wait_free(key)
    project.wait_free(other)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"lock": "until_executed"}, "lock='until_executed'"),
        ({"lock": "while_executing", "lock_limit": 2}, "lock_limit"),
        ({"lock": "while_executing", "lock_period": 5.0}, "lock_period"),
    ],
)
def test_what_does_not_go_with_several_is_refused_when_the_task_is_bound(
    new_project: ProjectMaker, options: dict[str, Any], word: str
) -> None:
    def wrong(x: str, y: str) -> None:
        pass

    task = new_project().app.task(
        name="project.wrong", shared=False, lock_key=Resources("a:{x}", "b:{y}"), **options
    )(wrong)
    with pytest.raises(LockOptionError, match=word):
        task.lock_for(1, 2)

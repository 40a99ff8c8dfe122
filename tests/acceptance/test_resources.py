"""Tasks that run alone on several resources: never beside one that has one of them, and none starves."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from celery_redislock import LockOptionError, Resources
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


@pytest.mark.parametrize("path", [FUSED, slow(ELSEWHERE), slow(RABBITMQ)], indirect=True)
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


@pytest.mark.parametrize(
    ("ending", "runs", "options"),
    [
        ("fail", 1, {}),
        ("retry_lingering", 2, {}),
        ("retry_lingering", 2, {"lock_on_retry": "release"}),
        ("reject", 1, {}),
    ],
)
def test_both_are_free_however_it_ends(
    prefork: Project, key: str, ending: str, runs: int, options: dict[str, Any]
) -> None:
    """A retry hands both on to its message, or goes through the lines of both."""
    other = f"{key}-other"
    project = prefork
    call = project.while_executing_two.apply_async((key, 0.0, ending, other), **options)
    call.get(timeout=PATIENCE, propagate=False)
    assert len(project.wait_ended(key, runs)) == runs
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

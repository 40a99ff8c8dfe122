"""The combinations of docs/flow.md that need no option of their own: each does what its row says."""

from collections.abc import Callable

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE

pytestmark = [pytest.mark.law(2), pytest.mark.slow]

ProjectMaker = Callable[..., Project]


def test_what_was_written_down_before_a_call_is_collected_by_a_run(
    new_project: ProjectMaker, key: str
) -> None:
    """Collect: each once, also what comes while a run is on, and in few runs."""
    project = new_project()
    project.start_worker("prefork", concurrency=2)
    results = []
    for number in range(60):
        project.app.journal.note(key, number)
        results.append(project.executed.apply_async((key, 0.05, "drain"), on_conflict="coalesce"))
    ids = {result.id: result for result in results}
    found = [each for result in ids.values() for each in result.get(timeout=PATIENCE)]
    assert sorted(found) == list(range(60))
    assert len(project.bodies(key)) == len(ids) < 60


def test_the_newest_call_ends_the_run_that_is_on(new_project: ProjectMaker, key: str) -> None:
    """Cancel: the callable revokes the holder and waits; nobody runs beside it."""
    project = new_project()
    project.start_worker("prefork", concurrency=2)
    with project.running(project.executed_newest_now, key) as first:
        newest = project.executed_newest_now.delay(key)
        assert newest.get(timeout=PATIENCE) == f"{key} done"
        wait_until(lambda: first.state == "REVOKED", PATIENCE, "the first one is revoked")
    assert [body.task_id for body in project.bodies(key)] == [first.id, newest.id]
    assert project.overlaps(key, killed=1) == []


def test_the_many_calls_of_one_tenant_do_not_hold_up_the_few_of_another(
    new_project: ProjectMaker, key: str
) -> None:
    """Fair shares: a limit for each tenant, and calls that wait."""
    project = new_project(conf={"worker_prefetch_multiplier": 4})
    project.start_worker("prefork", concurrency=3)
    shares = {"on_conflict": "wait", "lock_limit": 2}
    many = [project.executed.apply_async((key, 0.1), **shares) for _ in range(60)]
    few = [project.executed.apply_async((f"{key} another", 0.1), **shares) for _ in range(3)]
    for result in few:
        result.get(timeout=PATIENCE)
    assert len(project.bodies(key)) < 40
    for result in many:
        result.get(timeout=2 * PATIENCE)

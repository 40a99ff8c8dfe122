"""What happens to a duplicate, on both sides, and how it is told."""

import pytest
from celery.exceptions import TaskRevokedError

from celery_redislock import DuplicateTask
from tests.acceptance.harness import Project
from tests.acceptance.terms import LEASE, PATIENCE


def test_retry_at_publish_runs_after_the_holder(project: Project, key: str) -> None:
    """Client ``retry``: published without a claim, and put off by the worker."""
    with project.running(project.executed_or_retry, key) as first:
        second = project.executed_or_retry.delay(key)
        project.wait_received(second.id, 2)

    assert second.id != first.id
    assert second.get(timeout=PATIENCE) == f"{key} done"
    assert [body.task_id for body in project.bodies(key)] == [first.id, second.id]
    assert project.overlaps(key) == []


@pytest.mark.timing
@pytest.mark.law(10)
def test_a_short_run_is_not_waited_for_long(project: Project, key: str) -> None:
    """A waiting run backs off from 0.1 s, by how long the holder has held; not by ``lock_retry_delay``."""
    delay = 4 * LEASE
    calls = [project.while_executing.apply_async((key, 0.2), lock_retry_delay=delay) for _ in range(2)]
    for call in calls:
        call.get(timeout=PATIENCE)
    first, second = project.bodies(key)

    assert second.start - first.end < delay / 4
    assert project.overlaps(key) == []


def test_skip_at_start_ends_as_a_revoked_duplicate(project: Project, key: str) -> None:
    """Server ``skip``: a ready state that says why, instead of a ``get()`` that hangs."""
    with project.running(project.while_executing, key) as first:
        second = project.while_executing_or_skip.delay(key)
        with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
            second.get(timeout=PATIENCE)

    assert second.state == "REVOKED"
    assert len(project.bodies(key)) == 1
    (line,) = project.lines("skipped project.while_executing_or_skip", second.id)
    assert "INFO" in line
    assert first.id in line


def test_raise_at_start_fails_in_one_line(project: Project, key: str) -> None:
    """Server ``raise``: expected, so one INFO line and no traceback."""
    with project.running(project.while_executing, key) as first:
        second = project.while_executing_or_raise.delay(key)
        with pytest.raises(DuplicateTask) as refused:
            second.get(timeout=PATIENCE)
    (line,) = project.wait_lines("raised expected", second.id)
    following = project.log.partition(line)[2].lstrip()

    assert refused.value.task_id == first.id
    assert "INFO" in line
    assert not following.startswith("Traceback")

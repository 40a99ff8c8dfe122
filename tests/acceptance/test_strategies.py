"""How a duplicate that is refused when it starts is told in the worker's log."""

import pytest

from celery_redislock import DuplicateTask
from tests.acceptance.harness import Project
from tests.acceptance.terms import PATIENCE


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

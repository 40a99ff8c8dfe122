"""What a run that lost its lock learns of it, and what a run knows of its lease."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import (
    PATIENCE,
)


@pytest.mark.parametrize("ending", ["spin", "doze"])
def test_a_run_that_lost_its_lock_can_be_ended(prefork: Project, key: str, ending: str) -> None:
    """``on_lock_lost="terminate"``: ``LockLost`` with its facts inside the body, out of a sleep too."""
    result = prefork.executed_terminate.delay(key, 0.0, ending, 2 * PATIENCE)
    prefork.wait_started(key)
    prefork.executed.lock_for(key).release(reason="a test")
    error = result.get(timeout=PATIENCE, propagate=False)

    assert _ended_after_notice(prefork, key, result.id) < 1.0
    assert (type(error).__name__, error.key) == ("LockLost", f"work:{key}")
    if ending == "spin":
        ((_, name, reason),) = prefork.notes(f"lost {key}")
        assert (name, bool(reason)) == (f"work:{key}", True)
    prefork.wait_free(key)
    assert prefork.executed_terminate.delay(key).get(timeout=PATIENCE) == f"{key} done"


@pytest.mark.timing
def test_a_run_whose_worker_was_stopped_is_ended_when_it_goes_on(
    new_project: Callable[..., Project], key: str
) -> None:
    """``on_lock_lost="terminate"``: its lease expired meanwhile."""
    project = new_project()
    worker = project.start_worker("prefork")
    result = project.executed_terminate.delay(key, 0.0, "doze", 2 * PATIENCE)
    project.wait_started(key)
    os.killpg(worker.process.pid, signal.SIGSTOP)
    try:
        project.wait_free(key)
    finally:
        os.killpg(worker.process.pid, signal.SIGCONT)

    assert _ended_after_notice(project, key, result.id) < 1.0
    assert type(result.get(timeout=PATIENCE, propagate=False)).__name__ == "LockLost"
    assert len(project.bodies(key)) == 1


def _ended_after_notice(project: Project, key: str, task_id: str) -> float:
    """Return how long after its loss was noticed the body ended."""
    wait_until(lambda: project.notes(f"noticed {task_id}"), PATIENCE, "the loss is noticed")
    (body,) = project.wait_ended(key)
    assert body.ended_by == "LockLost"
    noticed: float = project.notes(f"noticed {task_id}")[0]
    assert noticed <= time.monotonic()
    return body.end - noticed

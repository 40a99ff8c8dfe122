"""``lock_period``: at most one per period, whoever asks; and a failed job can be run again at once."""

import importlib.util
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskRevokedError

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import FREED, PATIENCE

#: A task that holds nothing while it runs, and one that does.
TASKS = ("until_expired", "executed_period")

pytestmark = pytest.mark.parametrize("task", TASKS)


def accepted(unique: Any, key: str) -> Any:
    """Publish a call, which must be accepted."""
    result = unique.delay(key)
    assert not result.is_duplicate
    return result


def wait_accepted(project: Project, unique: Any, key: str) -> Any:
    """Return the next call's result once it is accepted, within the time a worker needs to see a death."""
    wait_until(lambda: project.holder(key) is None, FREED, "the period is over")
    return accepted(unique, key)


@pytest.mark.law(4, 5)
@pytest.mark.parametrize("how", ["killed", "hard limit", "revoked"])
def test_the_period_ends_with_a_killed_child(prefork: Project, key: str, task: str, how: str) -> None:
    """Its message is not delivered again."""
    unique, limit = getattr(prefork, task), {"time_limit": 1} if how == "hard limit" else {}
    with prefork.kept_on(key):
        result = unique.apply_async((key,), **limit)
        body = prefork.wait_started(key)
        if how == "killed":
            os.kill(body.pid, signal.SIGKILL)
        elif how == "revoked":
            prefork.app.control.revoke(result.id, terminate=True, signal="SIGKILL")
        with pytest.raises((WorkerLostError, TimeLimitExceeded, TaskRevokedError)):
            result.get(timeout=PATIENCE)

    again = wait_accepted(prefork, unique, key)
    assert again.get(timeout=PATIENCE) == f"{key} done"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed")
def test_the_period_ends_with_a_revoked_greenlet(
    project_on: Callable[[str], Project], key: str, task: str
) -> None:
    """There no child dies: the body sees its end."""
    project = project_on("gevent")
    unique = getattr(project, task)
    with project.kept_on(key):
        result = unique.delay(key)
        project.wait_started(key)
        project.app.control.revoke(result.id, terminate=True)
        (body,) = project.wait_ended(key)

    assert body.ended_by == "GreenletExit"
    assert wait_accepted(project, unique, key).get(timeout=PATIENCE) == f"{key} done"


@pytest.mark.law(4)
def test_the_period_ends_with_a_message_that_is_revoked_while_it_waits(
    project: Project, key: str, task: str
) -> None:
    unique = getattr(project, task)
    result = unique.apply_async((key,), countdown=1.0)
    project.wait_received(result.id)
    project.app.control.revoke(result.id)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)

    assert wait_accepted(project, unique, key).get(timeout=PATIENCE) == f"{key} done"
    assert len(project.bodies(key)) == 1

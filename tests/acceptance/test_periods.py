"""``lock_period``: at most one per period, whoever asks; and a failed job can be run again at once."""

import importlib.util
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskRevokedError

from celery_redislock import DuplicateTask
from tests.acceptance.brokers import wait_late_copy
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.messages import captured, deliver
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


@pytest.mark.law(5)
def test_a_failed_job_runs_again_within_its_period(project: Project, key: str, task: str) -> None:
    """Whoever has seen the failure can publish it again."""
    unique = getattr(project, task)
    failed = unique.delay(key, 0.0, "fail")
    with pytest.raises(ValueError, match="failed"):
        failed.get(timeout=PATIENCE)

    assert accepted(unique, key).get(timeout=PATIENCE) == f"{key} done"
    assert [body.ended_by for body in project.bodies(key)] == ["ValueError", ""]


def test_a_success_keeps_the_period_and_its_duplicates_have_its_value(
    project: Project, key: str, task: str
) -> None:
    """At most once per period, like a cache."""
    unique = getattr(project, task)
    first = unique.delay(key)
    first.get(timeout=PATIENCE)
    again = unique.delay(key, 0.0, "fail")

    assert (again.id, again.is_duplicate, again.get(timeout=PATIENCE)) == (first.id, True, f"{key} done")
    assert repr(again) == f"<LockResult: {first.id} (duplicate, by period)>"
    assert len(project.bodies(key)) == 1


def test_a_kept_period_refuses_after_a_failure_and_says_so(project: Project, key: str, task: str) -> None:
    """``keep``. What ``get()`` raises is no news of a run, and has the old error as its cause."""
    unique = getattr(project, task)
    first = unique.apply_async((key, 0.0, "fail"), lock_period_on_failure="keep")
    with pytest.raises(ValueError, match="failed"):
        first.get(timeout=PATIENCE)
    again = unique.delay(key)

    with pytest.raises(DuplicateTask, match=f"{first.id}, which ended with FAILURE at 20") as raised:
        again.get(timeout=PATIENCE)
    assert (raised.value.task_id, raised.value.state, again.is_duplicate) == (first.id, "FAILURE", True)
    assert 500 < (raised.value.retry_after or 0) <= 600
    assert isinstance(raised.value.__cause__, ValueError)
    assert len(project.bodies(key)) == 1


@pytest.mark.law(7)
def test_a_job_that_is_retried_keeps_its_period_until_its_last_run_has_failed(
    project: Project, key: str, task: str
) -> None:
    """It is not over while it waits."""
    unique = getattr(project, task)
    failed = unique.delay(key, 0.0, "exhaust")
    project.wait_ended(key)
    assert unique.delay(key).is_duplicate
    with pytest.raises(ValueError, match="failed"):
        failed.get(timeout=PATIENCE)

    assert accepted(unique, key).get(timeout=PATIENCE) == f"{key} done"
    assert [body.retries for body in project.bodies(key)] == [0, 1, 0]


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


@pytest.mark.law(7)
def test_the_period_of_a_killed_child_goes_on_where_its_message_comes_again(
    prefork: Project, key: str, task: str
) -> None:
    """``reject_on_worker_lost``: the second run succeeds, and stands for it."""
    unique = prefork.executed_reject_on_worker_lost
    options = {"lock": "until_expired" if task == "until_expired" else "until_executed", "lock_period": 600.0}
    with prefork.kept_on(key):
        first = unique.apply_async((key,), **options)
        os.kill(prefork.wait_started(key).pid, signal.SIGKILL)
        prefork.wait_started(key, 2)
        assert unique.apply_async((key,), **options).id == first.id

    assert first.get(timeout=PATIENCE) == f"{key} done"
    assert unique.apply_async((key,), **options).id == first.id
    assert [body.ended_by for body in prefork.bodies(key)] == [None, ""]


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


@pytest.mark.law(3, 8)
@pytest.mark.parametrize("then", [None, "fail"])
def test_a_late_copy_ends_nobodys_period(project: Project, key: str, task: str, then: str | None) -> None:
    """Its message has run: it stands for its own period, or the next job for the next one."""
    unique = project.executed_acks_late if task == "executed_period" else project.until_expired_acks_late
    unique.apply_async((key, 0.0, then), queue=project.aside, lock_period=600.0)
    message = captured(project)
    result = project.app.AsyncResult(message["headers"]["id"])
    deliver(project, message)
    wait_until(result.ready, PATIENCE, "it has run")
    holder = result
    if then is not None:
        holder = unique.apply_async((key,), lock_period=600.0)
        assert (holder.is_duplicate, holder.get(timeout=PATIENCE)) == (False, f"{key} done")
    bodies = len(project.bodies(key))

    deliver(project, message, again=True)
    wait_late_copy(project, result.id)

    assert len(project.bodies(key)) == bodies
    assert unique.apply_async((key,), lock_period=600.0).id == holder.id

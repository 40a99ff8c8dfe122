"""The ways in which a run ends, or does not begin, each brought about once: returns the id of its message."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_redislock.locks import Lock
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE

#: Plays an end in a project, with this key, by the task whose name ends so, which is its acknowledgement.
Play = Callable[[Project, str, str], str]


def _body(then: str | None = None, more: Any = None, seconds: float = 0.0, **options: Any) -> Play:
    """Publish a task, and let it end by itself."""

    def play(project: Project, key: str, late: str) -> str:
        return _publish(project, key, f"executed{late}", then, more, seconds, **options)

    return play


def _publish(
    project: Project,
    key: str,
    task: str,
    then: str | None = None,
    more: Any = None,
    seconds: float = 0.0,
    **options: Any,
) -> str:
    args = (key, seconds, then, more)
    return str(getattr(project, task).apply_async(args, **options).id)


def _retried(project: Project, key: str, late: str) -> str:
    """Its retry goes to a queue that no worker looks into."""
    return _publish(project, key, f"executed{late}", "retry", {"queue": project.aside})


@contextmanager
def _held(project: Project, key: str) -> Iterator[None]:
    """Hold the lock from outside of the worker, which knows of no message before this one."""
    handle = project.while_executing.lock_for(key)
    with Lock(handle._store, handle.key):
        yield


def _skipped(project: Project, key: str, late: str) -> str:
    with _held(project, key):
        task_id = _publish(project, key, f"while_executing{late}", on_conflict="skip")
        wait_until(lambda: project.lines(task_id, "skipped"), PATIENCE, "it is skipped")
    return task_id


def _parked(project: Project, key: str, late: str) -> str:
    with _held(project, key):
        task_id = _publish(project, key, f"while_executing{late}")
        project.wait_waiting(task_id)
    return task_id


def _revoked(project: Project, key: str, late: str) -> str:
    task_id = _publish(project, key, f"executed{late}", countdown=0.5)
    project.wait_received(task_id)
    project.app.control.revoke(task_id)
    return task_id


def _terminated(project: Project, key: str, late: str) -> str:
    with project.kept_on(key):
        task_id = _publish(project, key, f"executed{late}")
        project.wait_started(key)
        project.app.control.revoke(task_id, terminate=True)
        project.wait_ended(key)
    return task_id


def _killed(project: Project, key: str, late: str) -> str:
    with project.kept_on(key):
        task_id = _publish(project, key, f"executed{late}")
        os.kill(project.wait_started(key).pid, signal.SIGKILL)
    return task_id


def _expired(project: Project, key: str, late: str) -> str:
    return _publish(project, key, f"executed{late}", countdown=0.6, expires=0.3)


PLAYS = {
    "success": _body(),
    "failure": _body("fail"),
    "retry": _retried,
    "Ignore": _body("ignore"),
    "Reject": _body("reject"),
    "SystemExit": _body("exit"),
    "skipped": _skipped,
    "parked": _parked,
    "revoked": _revoked,
    "terminated": _terminated,
    "expired": _expired,
    "soft limit": _body(seconds=20.0, soft_time_limit=1),
    "hard limit": _body(seconds=20.0, time_limit=1),
    "child killed": _killed,
}

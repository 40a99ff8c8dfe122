"""What a result backend keeps of a task, and for whom."""

import time
from datetime import datetime, timezone
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend
from celery.utils.time import maybe_iso8601

from celery_redislock.locks.store import QUEUED, Hold
from celery_redislock.locks.tasklock import TaskLock

__all__ = [
    "DUPLICATE_OF",
    "is_readable",
    "release_if_revoked",
    "state_of",
]

#: Begins the reason under which a skipped duplicate is revoked.
DUPLICATE_OF = "duplicate of"

#: Seconds a claim is left alone: something just published is rarely revoked, and a look is a round trip.
YOUNG = 2.0

#: Seconds two hosts' clocks may differ when a revocation is dated.
CLOCKS_DIFFER = 60.0


def is_readable(backend: Any) -> bool:
    """Whether this process can read the results of others.

    Not without a backend, and not with ``rpc://``, which keeps them on the caller's own queue.
    """
    return not isinstance(backend, DisabledBackend) and backend.as_uri() != "rpc://"


def state_of(task: Any, task_id: str) -> str | None:
    """Return the state recorded for a task id, PENDING for an unknown one; ``None``: it cannot be asked."""
    meta = _meta(task, task_id)
    return None if meta is None else str(meta.get("status"))


def release_if_revoked(task: Any, lock: TaskLock, hold: Hold) -> bool:
    """Release a hold that is the claim of a revoked message; whether it was, so that asking again pays.

    No hook of Celery fires for a revoked message until a worker receives it; only its state is written, by
    whatever worker heard of the revocation (celery 5.7.0, ``worker/control.py``; 5.5 writes none, so there
    the claim stands until the message is delivered). The release is compared by token: should the message
    have been started all the same, its run keeps the lock. A run, and a period, end by themselves.
    """
    since = hold.since
    if hold.is_window or hold.state != QUEUED or since is None or time.time() - since < YOUNG:
        return False
    meta = _meta(task, hold.owner) if is_readable(task.backend) else None
    if meta is None or meta.get("status") != states.REVOKED:
        return False
    if str(meta.get("result")).startswith(DUPLICATE_OF):
        return False  # skipped as a duplicate, which is the same state
    if _is_before(meta.get("date_done"), since - CLOCKS_DIFFER):
        return False  # of an earlier job with this id
    lock.release(hold.token, ran=False)
    return True


def _is_before(moment: Any, when: float) -> bool:
    """Whether a result backend's date is earlier; one without a zone is taken for UTC."""
    date = maybe_iso8601(moment)
    if not isinstance(date, datetime):
        return False
    return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp() < when


def _meta(task: Any, task_id: str) -> dict[str, Any] | None:
    try:
        meta: dict[str, Any] = task.backend.get_task_meta(task_id, cache=False)
    except Exception:  # noqa: BLE001  every backend has errors of its own, and each means: unknown
        return None
    return meta

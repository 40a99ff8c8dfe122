"""Taking a message out of a line for good: an operator's act.

It ends as a revoked one does: its claim is released, REVOKED is stored, and its chord hears of it. Of a
revoked one Celery tells nobody else. Here its errbacks and the rest of its chain hear of it, too.
"""

from contextlib import suppress
from typing import Any

from celery.exceptions import TaskRevokedError
from celery.states import REVOKED
from celery.worker.request import Request

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.log import logger
from celery_redislock.publishing.handle import Holder
from celery_redislock.publishing.promote import message_of
from celery_redislock.running.leavings import mark_ttl, release_dropped
from celery_redislock.store.store import LockStore


def drop(task: Any, store: LockStore, waiter: Holder, reason: str) -> bool:
    """Drop a message that waits, and return whether it did, or else its turn had come.

    Errbacks that take the request of the failed task are called in this process, as a worker does it.

    Args:
        task: of the message.
        store: of the line.
        waiter: the message.
        reason: why, for the log and for the ``TaskRevokedError`` that is its result.

    Raises:
        LockUnavailable: the lock server cannot be reached.
        Exception: what a result backend raises, or a broker. The message has left the line by then.
    """
    name = waiter.key
    task_id = waiter.owner
    word, entry, _ = store.leave(name, waiter.token, unless_held=True)
    if word != "left":
        return False
    with suppress(LockUnavailable):
        # Where it was parked and not acknowledged, a copy of it comes: it does nothing.
        store.mark_done(name, waiter.token, mark_ttl(task.app))
    error = TaskRevokedError(f"dropped from the line of {name}: {reason}")
    try:
        message = message_of(task.app, entry.split(b"\0", 4)[4])
        release_dropped(task.app, message.headers)
        request = Request(message, app=task.app, task=task)
        is_stored = request.store_errors
        context = request._context
        task.backend.mark_as_failure(task_id, error, request=context, store_result=is_stored, state=REVOKED)
    except Exception as problem:  # noqa: BLE001  of serializers, of what is not accepted here, of errbacks
        line = (
            "not all who wait for %s can be told that it was dropped: %r; "
            "run this where its task and its errbacks are imported"
        )
        logger.warning(line, task_id, problem)
        task.backend.store_result(task_id, error, REVOKED)
    return True

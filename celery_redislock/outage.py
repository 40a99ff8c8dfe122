"""A worker that cannot reach the lock server: how long it asks, and what it does then."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from celery.exceptions import Ignore

from celery_redislock.conflict import jittered
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.lock import keep_trying
from celery_redislock.redeliver import put_off

if TYPE_CHECKING:
    from celery_redislock.run import Run

__all__ = ["NEEDS_NO_SERVER", "ask_patiently"]

T = TypeVar("T")

#: Said where a task runs in place, which is mostly in somebody's tests.
NEEDS_NO_SERVER = "a test needs no server: celery_redislock.testing.memory_locks(app)"

logger = logging.getLogger("celery_redislock")


def ask_patiently(run: "Run", attempt: Callable[[], T]) -> T | None:
    """Ask until the lock server answers; ``None``: run without a lock, as ``on_lock_error`` says."""
    if run.options.on_lock_error == "run":
        try:
            return attempt()
        except LockUnavailable as error:
            logger.warning(
                "running %s without its lock, so another one may run at the same time: %s", run.work, error
            )
            return None
    try:
        return keep_trying(attempt, for_seconds=run.settings.start_timeout)
    except LockUnavailable as error:
        if run.request.is_eager:
            raise error.with_remark(NEEDS_NO_SERVER) from error
        logger.warning("%s cannot start yet, and is put off: %s", run.work, error)
        instead = put_off(run, jittered(run.options.lock_retry_delay))
        # With the broker gone as well the task fails visibly, and its error names the lock server.
        raise (instead if isinstance(instead, Ignore) or run.task.acks_late else error) from error

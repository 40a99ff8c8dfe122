"""What the worker does with a run that was refused its lock."""

import logging
from typing import TYPE_CHECKING

from celery.exceptions import Ignore

from celery_redislock.conflict import Conflict, choose, duplicate_error, jittered, log_skip, put_off_delay
from celery_redislock.header import Header, HolderSeen
from celery_redislock.locks.store import Hold
from celery_redislock.redeliver import put_off
from celery_redislock.results import Skipped

if TYPE_CHECKING:
    from celery_redislock.run import Run

__all__ = ["resolve"]

logger = logging.getLogger("celery_redislock")


def resolve(run: "Run", hold: Hold) -> None:
    """End a run that was refused; always raises.

    A second copy of a message whose first run lives is no duplicate: it waits,
    whatever the strategy. A retry or a redelivery that finds somebody else at
    its key (its own hold was lost) waits as well: only a fresh publish may be
    dropped.

    Raises:
        Ignore: skipped, or published again for later.
        DuplicateTask: strategy ``raise``.
    """
    if hold.owner == run.work.task_id:
        logger.info("%s[%s] runs already: this one waits", run.work.task, run.work.task_id)
        # Another message of the same id is a new job, not a copy, and runs whatever the first came to.
        is_copy = hold.about.get("message") == run.message
        raise put_off(run, jittered(run.options.lock_retry_delay), is_copy=is_copy)
    strategy = choose(run.options.server or "skip", _conflict(run, hold), hold)
    is_kept = bool(run.request.retries or run.is_redelivered) and not run.request.is_eager
    if (strategy == "raise" and not is_kept) or (run.request.is_eager and strategy != "skip"):
        # In eager mode nobody would deliver it again, and waiting would block the caller on its own thread.
        raise duplicate_error(hold)
    if run.request.is_eager:
        raise _skip(run, hold)
    if strategy == "retry" or is_kept:
        logger.info(
            "%s[%s] comes back later: %r is held by %s",
            run.work.task,
            run.work.task_id,
            run.work.key,
            hold.owner,
        )
        raise put_off(run, jittered(run.options.lock_retry_delay))
    if _is_awaited(run):
        raise _wait_for(run, hold)
    raise _skip(run, hold)


def _conflict(run: "Run", hold: Hold) -> Conflict:
    return Conflict(
        task=run.task,
        args=tuple(run.args),
        kwargs=dict(run.kwargs),
        task_id=run.work.task_id,
        key=run.work.key,
        holder=hold.owner,
        expires_in=hold.expires_in,
        side="server",
    )


def _is_awaited(run: "Run") -> bool:
    """Part of a workflow, which would hang or break without it."""
    if run.header is not None and run.header.is_workflow_member:
        return True
    request = run.request
    return bool(request.group or request.chord or request.chain or request.callbacks or request.errbacks)


def _wait_for(run: "Run", hold: Hold) -> Exception:
    header = run.header or Header(run.work.key, run.work.task_id, fingerprint=run.work.arguments)
    seen = HolderSeen(hold.owner, is_same_work=hold.about.get("args") == run.work.arguments)
    delay = put_off_delay(header.put_off, longest=run.options.lock_retry_delay)
    logger.info(
        "%s[%s] is part of a workflow and waits for %s, which holds %r",
        run.work.task,
        run.work.task_id,
        hold.owner,
        run.work.key,
    )
    return put_off(run, delay, header=header.put_off_for(seen))


def _skip(run: "Run", hold: Hold) -> Ignore:
    log_skip(run.work, hold, side="server")
    run.request.redislock_skipped = True
    if run.request.is_eager:
        return Skipped(f"duplicate of {hold.owner}")
    ignored = run.request.__dict__.get("ignore_result")
    run.task.backend.mark_as_revoked(
        run.work.task_id,
        f"duplicate of {hold.owner}",
        request=run.request,
        store_result=not (run.task.ignore_result if ignored is None else ignored),
    )
    return Ignore(f"duplicate of {hold.owner}")

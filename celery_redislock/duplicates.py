"""What the worker does with a run that was refused its lock."""

import logging
from typing import TYPE_CHECKING

from celery.exceptions import Ignore

from celery_redislock.backends import ignores_result
from celery_redislock.conflict import (
    Conflict,
    announce,
    choose,
    duplicate_error,
    jittered,
    log_skip,
    put_off_delay,
)
from celery_redislock.copies import DUPLICATE_OF, is_same_message, outcome_recorded
from celery_redislock.delay import is_broadcast
from celery_redislock.header import HolderSeen
from celery_redislock.locks.store import Hold
from celery_redislock.redeliver import next_header, put_off
from celery_redislock.results import Skipped
from celery_redislock.work import ACCEPTED, QUEUED, RUNNING, state_of_holder

if TYPE_CHECKING:
    from celery_redislock.run import Run

__all__ = ["is_awaited", "late_copy", "resolve"]

logger = logging.getLogger("celery_redislock")

#: What a run's own id does that holds its key, by the state it wrote.
_DOING: dict[str | None, str] = {
    RUNNING: "runs already",
    QUEUED: "is queued already",
    ACCEPTED: "was accepted already, and its window has not passed",
}


def resolve(run: "Run", hold: Hold) -> None:
    """End a run that was refused; always raises.

    A second copy of a message whose first run lives is no duplicate: it waits,
    whatever the strategy. A retry or a redelivery that finds somebody else at
    its key (its own hold was lost) waits as well, and so does a message that
    was accepted, lost its claim, and would do other work than the holder: only
    a fresh publish may be dropped, and only where somebody stands for it.

    Raises:
        Ignore: skipped, or published again for later.
        DuplicateTask: strategy ``raise``.
    """
    if hold.owner == run.work.task_id and not run.request.is_eager:
        raise _wait_for_itself(run, hold)
    conflict = _conflict(run, hold)
    strategy = choose(run.options.server or "skip", conflict)
    what_happens = _what_happens(run, hold, strategy)
    if what_happens != "retry" and run.may_have_run and outcome_recorded(run.task, run.request, run.header):
        raise late_copy(run)  # dropped, it would write over what its other delivery came to
    announce(conflict, hold, what_happens=what_happens)
    if what_happens == "raise":
        raise duplicate_error(hold)
    if what_happens == "skip":
        raise _skip(run, hold)
    if strategy == "retry" or _is_kept(run, hold):
        logger.info("%s comes back later: %r is held by %s", run.work, run.work.key, hold.owner)
        raise put_off(run, jittered(run.options.lock_retry_delay))
    raise _wait_for(run, hold)


def is_awaited(run: "Run") -> bool:
    """Whether the run is part of a workflow, which would hang or break without it."""
    if run.header is not None and run.header.is_workflow_member:
        return True
    request = run.request
    return bool(request.group or request.chord or request.chain or request.callbacks or request.errbacks)


def late_copy(run: "Run") -> Ignore:
    """Return what ends a message of which another delivery has run."""
    logger.info("%s was delivered again after its outcome was recorded: nothing to do", run.work)
    return Ignore("a copy of this message has run already")


def _what_happens(run: "Run", hold: Hold, strategy: str) -> str:
    """Return ``skip``, ``raise`` or ``retry``: it comes back later, perhaps although it was not to."""
    if run.request.is_eager:
        # Nobody would deliver it again, and waiting would block the caller on its own thread.
        return "skip" if strategy == "skip" else "raise"
    if _is_kept(run, hold) or (strategy == "skip" and is_awaited(run)):
        return "retry"
    return strategy


def _is_kept(run: "Run", hold: Hold) -> bool:
    does_other_work = hold.about.get("args") != run.work.arguments
    return bool(run.request.retries or run.is_redelivered or (run.has_claim and does_other_work))


def _wait_for_itself(run: "Run", hold: Hold) -> Exception:
    is_same = is_same_message(run, hold)
    # Without a header a copy cannot be told from another message of its id; where all are copied it is one.
    may_be_same = (is_same or run.header is None) and not run.is_redelivered
    if may_be_same and is_broadcast(run.task.app, run.raw):
        logger.info("%s %s, as every worker was sent it: nothing to do", run.work, _doing(hold))
        ignored: Exception = Ignore("it was broadcast, and another worker has it")
        return ignored
    logger.info("%s %s: this one waits", run.work, _doing(hold))
    # Another message of the same id is a new job, not a copy, and runs whatever the first came to.
    return put_off(run, jittered(run.options.lock_retry_delay), is_copy=is_same)


def _doing(hold: Hold) -> str:
    return _DOING.get(state_of_holder(hold), f"holds {hold.name!r} already")


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


def _wait_for(run: "Run", hold: Hold) -> Exception:
    header = next_header(run)
    # A window's owner is over: who waits for the window to pass is to run then.
    is_same_work = hold.about.get("args") == run.work.arguments and not hold.is_window
    seen = HolderSeen(hold.owner, is_same_work=is_same_work)
    delay = put_off_delay(header.put_off, longest=run.options.lock_retry_delay)
    logger.info(
        "%s is part of a workflow and waits for %s, which holds %r",
        run.work,
        hold.owner,
        run.work.key,
    )
    return put_off(run, delay, header=header.put_off_for(seen))


def _skip(run: "Run", hold: Hold) -> Ignore:
    log_skip(run.work, hold, side="server")
    run.request.redislock_skipped = True
    if run.request.is_eager:
        return Skipped(f"{DUPLICATE_OF} {hold.owner}")
    run.task.backend.mark_as_revoked(
        run.work.task_id,
        f"{DUPLICATE_OF} {hold.owner}",
        request=run.request,
        store_result=not ignores_result(run.task, run.request),
    )
    return Ignore(f"{DUPLICATE_OF} {hold.owner}")

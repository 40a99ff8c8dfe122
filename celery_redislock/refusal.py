"""What becomes of a call whose key is held by somebody else when it is published."""

import logging
from typing import Any

from celery import states

from celery_redislock.active import active_run
from celery_redislock.backends import is_readable
from celery_redislock.conflict import Conflict, announce, choose, duplicate_error, log_skip
from celery_redislock.copies import DUPLICATE_OF, UNPUBLISHED, state_of
from celery_redislock.header import HolderSeen
from celery_redislock.locks.store import Hold
from celery_redislock.publication import Publication
from celery_redislock.results import LockEagerResult

__all__ = ["refuse"]

logger = logging.getLogger("celery_redislock")


def refuse(publication: Publication, hold: Hold) -> Any:
    """Skip, publish without a claim or raise, as the strategy says.

    Returns:
        Celery's result; for a skipped duplicate the holder's, marked ``is_duplicate``; in eager mode, and
        where another program holds the lock, one that is revoked, under the holder's id.

    Raises:
        DuplicateTask: strategy ``raise``; ``retry`` in eager mode, where nothing could come back.
    """
    conflict, is_eager = _conflict(publication, hold), publication.declaration.always_eager
    if publication.is_awaited:
        if not is_eager:  # there the run follows at once, and says what happens
            announce(conflict, hold, what_happens="retry")
        # A member of a workflow that is not published leaves the others waiting for ever.
        return publication.publish(claimed=False, waits_for=_awaited_holder(publication, hold))
    strategy = choose(publication.lock.client or "skip", conflict)
    what_happens = "raise" if strategy == "retry" and is_eager else strategy
    announce(conflict, hold, what_happens=what_happens)
    if what_happens == "raise":
        raise duplicate_error(hold)
    if what_happens == "retry":
        return publication.publish(claimed=False)
    return _skip(publication, hold)


def _awaited_holder(publication: Publication, hold: Hold) -> HolderSeen | None:
    """Whose outcome the worker may take, even if it finds the lock free when it gets to the message."""
    if hold.is_window or not publication.is_workflow_member or publication.lock.client != "skip":
        return None  # whoever does not skip wants every one of them to run
    return HolderSeen(hold.owner, is_same_work=hold.about.get("args") == publication.work.arguments)


def _conflict(publication: Publication, hold: Hold) -> Conflict:
    return Conflict(
        task=publication.declaration.task,
        args=tuple(publication.args or ()),
        kwargs=dict(publication.kwargs or {}),
        task_id=publication.work.task_id,
        key=publication.work.key,
        holder=hold.owner,
        expires_in=hold.expires_in,
        side="client",
    )


def _skip(publication: Publication, hold: Hold) -> Any:
    task, work = publication.declaration.task, publication.work
    log_skip(work, hold, side="client")
    if active_run(hold.owner) is not None:
        logger.warning(
            "%s published itself from inside its own run %s and was skipped as a duplicate of it; "
            "to queue another run from inside the task, declare it with lock='until_executing'",
            work.task,
            hold.owner,
        )
    why, is_eager = f"{DUPLICATE_OF} {hold.owner}", publication.declaration.always_eager
    is_told = publication.has_fixed_id and work.task_id != hold.owner and not publication.ignores_result
    if is_told and not is_eager:
        _tell_waiting(task, work.task_id, f"{why}{UNPUBLISHED}")
    if is_eager or not hold.about.get("task"):
        # There is no result of the holder's to wait for: it ran in place, or is no task (a Lock of this
        # package's, another program's lock).
        return LockEagerResult.duplicate(hold.owner, work.task, why)
    result = task.AsyncResult(hold.owner)
    result.is_duplicate = True
    # Where results are ignored, get() returns at once instead of waiting for what nobody stores. The holder
    # may do so although this call does not: by its own call, or as another task with the same key.
    result.ignored = publication.ignores_result or bool(hold.about.get("ignored"))
    return result


def _tell_waiting(task: Any, task_id: str, why: str) -> None:
    """Let nobody wait for ever for the id the caller chose.

    Under another key a job of that very id may be under way, or over: what it
    has recorded stays. One that is still queued has recorded nothing, and
    cannot be told from an id nobody has used; its own states come later.
    """
    if not is_readable(task.backend):
        return  # rpc:// would have to be told who waits
    state = state_of(task, task_id)
    if state == states.PENDING:
        task.backend.mark_as_revoked(task_id, why)
    elif state is None:
        logger.warning(
            "%r is a %s; whoever waits for that id cannot be told: the result backend does not answer",
            task_id,
            why,
        )

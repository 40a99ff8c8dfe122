"""The running side of a unique task: start, run the body under a lease, finish before anybody sees the end.

``Task.__call__`` is the one place in a pool child from which the end of a
body is seen before its follow-ups are published and its result is stored
(celery 5.7.0, ``app/trace.py``): a lock given back in ``on_success``,
``after_return`` or ``task_postrun`` is still held when the caller's ``get()``
returns and when the next link of a chain is published.

All of this runs in the process and thread that runs the body.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_redislock.conflict import jittered, put_off_delay
from celery_redislock.copies import Outcome, may_still_come, outcome_of, outcome_recorded
from celery_redislock.declaration import declaration_of
from celery_redislock.duplicates import resolve
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.guard import Started
from celery_redislock.header import Header
from celery_redislock.interrupt import interruptible
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.patience import keep_trying
from celery_redislock.locks.store import Hold, Recorded, Refusal
from celery_redislock.options import from_header
from celery_redislock.run import Run
from celery_redislock.signals import lock_acquired
from celery_redislock.work import ACCEPTED, QUEUED

__all__ = ["run_unique"]

logger = logging.getLogger("celery_redislock")


def run_unique(task: Any, body: Callable[[], Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run the body of a task's current request under its lock, where it has one.

    Args:
        task: the bound task, its request pushed by Celery's tracer.
        body: runs the task.
        args: of the body.
        kwargs: of the body.

    Returns:
        What the body returned; for a workflow's duplicate the holder's outcome.

    Raises:
        Ignore: the message is done with, or was published again to run later.
        DuplicateTask: strategy ``raise``.
        LockUnavailable: the lock server stayed away, and the broker as well.
        Exception: what the body raised.
    """
    task.request.redislock_skipped = False
    run = _prepare(task, args, kwargs)
    if run is None:
        return body()
    task.request.redislock_run = run
    match run.options.lock:
        case "until_executing":
            _leave_queue(run)
            return body()
        case "until_expired":
            _accept(run)
            return body()
    outcome = _holders_outcome(run)
    if outcome is not None:
        return outcome.value()
    _take(run)
    return _run_body(run, body)


def _prepare(task: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Run | None:
    request = task.request
    declaration = declaration_of(task)
    if not declaration.settings.enabled or (request.is_eager and not declaration.settings.eager):
        return None
    header = Header.of(request.headers, request.id)
    if header is not None and header.key is None:
        return None
    options = from_header(declaration.options, header.options) if header else declaration.options
    try:
        if options.lock is not None:
            return Run(task, declaration, options, header, args, kwargs)
    except BaseException:
        _give_claim_back(declaration, header)
        raise
    _give_claim_back(declaration, header)
    return None


def _give_claim_back(declaration: Any, header: Header | None) -> None:
    """The message will not enter its lock: that was switched off meanwhile, or its arguments do not fit."""
    if header is not None and header.claimed and header.key is not None:
        declaration.guard.give_back(header.key, header.token, ttl=declaration.options.lock_queue_ttl)


def _leave_queue(run: Run) -> None:
    """Scope ``until_executing``: give the claim back; a message without a header yields to a queued one."""
    if run.header is not None:
        if run.has_claim:
            run.guard.give_back(run.work.key, run.header.token, ttl=run.options.lock_queue_ttl)
        return
    hold = _patiently(run, lambda: run.guard.store.inspect(run.work.key))
    if hold is None:
        return
    if hold.owner == run.work.task_id:
        run.guard.give_back(run.work.key, hold.token, ttl=run.options.lock_queue_ttl)
    else:
        resolve(run, hold)


def _accept(run: Run) -> None:
    """Scope ``until_expired``: what was accepted at publish runs, the rest is decided here."""
    if run.has_claim or run.request.retries:
        return
    period = run.options.lock_period or 0.0
    with run.guard.owing(run.work.key, run.token, ttl=period, undo=True):
        answer = _patiently(run, lambda: run.guard.claim(run.work, run.token, ttl=period, state=ACCEPTED))
    if answer is None:
        run.guard.give_back_later(run.work.key, run.token, ttl=period, undo=True)
    if isinstance(answer, Refusal) and answer.hold.owner != run.work.task_id:
        resolve(run, answer.hold)


def _holders_outcome(run: Run) -> Outcome | None:
    """Return the outcome of the holder a workflow's duplicate was put off for, if it did the same work."""
    if run.header is None or run.header.waits_for is None or not run.header.waits_for.is_same_work:
        return None
    seen = run.header.waits_for
    outcome = outcome_of(run.task, seen.task_id, since=run.header.published_at)
    if outcome is not None:
        run.request.redislock_skipped = True
        logger.info(
            "%s[%s] takes the outcome of %s, which did the same work",
            run.work.task,
            run.work.task_id,
            seen.task_id,
        )
    return outcome


def _take(run: Run) -> None:
    """Turn the claim into a lease, or acquire; raises what ends the message where neither is possible."""
    claim = run.header.token if run.header is not None else None
    with run.guard.owing(run.work.key, run.token, ttl=run.options.lock_ttl):
        answer = _patiently(run, lambda: _start(run, claim))
        if isinstance(answer, Refusal) and _is_own_claim(run, answer.hold):
            own_claim = answer.hold.token
            answer = _patiently(run, lambda: _start(run, own_claim))
        if isinstance(answer, Started):
            run.lease = answer.lease
    if answer is None:
        run.guard.give_back_later(run.work.key, run.token, ttl=run.options.lock_ttl)
    match answer:
        case Started(lease, from_claim):
            _begin(run, lease, from_claim=from_claim)
        case Recorded():
            raise _late_copy(run)
        case Refusal(hold):
            resolve(run, hold)


def _start(run: Run, claim: str | None) -> Started | Refusal | Recorded:
    return run.guard.start(
        run.work,
        run.token,
        ttl=run.options.lock_ttl,
        message=run.message,
        claim=claim,
        max_hold=_max_hold(run),
        period=None if run.has_claim else run.options.lock_period,
        on_lost=run.announce_loss,
    )


def _is_own_claim(run: Run, hold: Hold) -> bool:
    """Whether a message without a header (task protocol 1 has none) meets its publisher's claim."""
    return run.header is None and hold.about.get("state") == QUEUED and hold.owner == run.work.task_id


def _begin(run: Run, lease: Lease, *, from_claim: bool) -> None:
    """The lock is ours. If it was free although a claim should have been there, find out why."""
    if not from_claim and (run.has_claim or run.is_redelivered):
        if outcome_recorded(run.task, run.request, run.header):
            run.finish(None)
            raise _late_copy(run)
        if run.has_claim and not run.is_redelivered:
            logger.warning(
                "the claim of %s[%s] on %r was gone when it started: it had expired while queued "
                "(raise lock_queue_ttl), or was released by force",
                run.work.task,
                run.work.task_id,
                run.work.key,
            )
    if not from_claim and _is_just_gone(run):
        raise _look_again(run)
    lock_acquired.send(sender=run.task, key=run.work.key, task_id=run.work.task_id, lease=lease)


def _is_just_gone(run: Run) -> bool:
    """Whether the holder a workflow's duplicate waited for may be between its release and its record.

    Timeline: the holder releases; this copy is delivered, finds no outcome and a free lock; the holder's
    result is stored. Without another look the same work would be done twice.
    """
    seen = run.header.waits_for if run.header is not None else None
    if run.header is None or seen is None or not seen.is_same_work or seen.is_gone:
        return False
    return may_still_come(run.task, seen.task_id, since=run.header.published_at)


def _look_again(run: Run) -> Exception:
    assert run.header is not None  # noqa: S101  it says whom this run waits for
    assert run.header.waits_for is not None  # noqa: S101  the same
    run.finish(None)
    header = run.header.put_off_for(run.header.waits_for._replace(is_gone=True))
    return run.put_off(put_off_delay(0, longest=run.options.lock_retry_delay), header=header)


def _run_body(run: Run, body: Callable[[], Any]) -> Any:
    run.in_body = True
    try:
        if run.lease is not None and run.options.on_lock_lost == "terminate":
            with interruptible(run.lease) as run.interrupt:
                if run.lease.lost:
                    run.lease.check()  # lost before there was a body to interrupt
                value = body()
        else:
            value = body()
    except BaseException as error:
        run.in_body = False
        run.finish(error)
        _give_unused_claim_back(run, error)
        raise
    run.in_body = False
    run.finish(None)
    _give_unused_claim_back(run, None)
    return value


def _give_unused_claim_back(run: Run, error: BaseException | None) -> None:
    """A run that had to start without its lock leaves a claim nobody would turn into a lease any more."""
    goes_on = isinstance(error, Retry) or (isinstance(error, Reject) and error.requeue)
    if run.lease is None and run.has_claim and run.header is not None and not goes_on:
        run.guard.give_back(run.work.key, run.header.token, ttl=run.options.lock_queue_ttl)


def _late_copy(run: Run) -> Ignore:
    logger.info(
        "%s[%s] was delivered again after its outcome was recorded: nothing to do",
        run.work.task,
        run.work.task_id,
    )
    return Ignore("a copy of this message has run already")


def _patiently(run: Run, attempt: Callable[[], Any]) -> Any:
    """Ask until the lock server answers; ``None``: run without a lock, as ``on_lock_error`` says."""
    if run.options.on_lock_error == "run":
        try:
            return attempt()
        except LockUnavailable as error:
            logger.warning("running %s[%s] WITHOUT its lock: %s", run.work.task, run.work.task_id, error)
            return None
    try:
        return keep_trying(attempt, for_seconds=run.settings.start_timeout)
    except LockUnavailable as error:
        if run.request.is_eager:
            raise
        logger.warning("%s[%s] cannot start: %s", run.work.task, run.work.task_id, error)
        instead = run.put_off(jittered(run.options.lock_retry_delay))
        # With the broker gone as well the task fails visibly, and its error names the lock server.
        raise (instead if isinstance(instead, Ignore) or run.task.acks_late else error) from error


def _max_hold(run: Run) -> float | None:
    limit = (run.request.timelimit or (None, None))[0] or run.task.time_limit
    return run.options.max_hold(limit)

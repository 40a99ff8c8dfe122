"""The running side of a unique task: start, run the body under a lease, finish before anybody sees the end.

``Task.__call__`` is the one place in a pool child from which the end of a
body is seen before its follow-ups are published and its result is stored
(celery 5.7.0, ``app/trace.py``): a lock given back in ``on_success``,
``after_return`` or ``task_postrun`` is still held when the caller's ``get()``
returns and when the next link of a chain is published.

All of this runs in the process and thread that runs the body.
"""

from collections.abc import Callable, Sequence
from typing import Any

from celery.exceptions import Ignore

from celery_redislock.copies import Outcome
from celery_redislock.declaring.call_options import from_header
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.entering import enter, holders_outcome
from celery_redislock.exceptions import DuplicateTask, LockKeyError, LockOptionError
from celery_redislock.exits import comes_again
from celery_redislock.header import Header
from celery_redislock.interrupt import run_interruptible
from celery_redislock.lifecycle import give_claim_back
from celery_redislock.queued import accept, leave_queue
from celery_redislock.run import Run

__all__ = ["run_unique"]


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
            leave_queue(run)
            return _run_unlocked(run, body)
        case "until_expired":
            accept(run)
            return body()
    outcome = _enter(run)
    return _run_body(run, body) if outcome is None else outcome.value()


def _prepare(task: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Run | None:
    request = task.request
    header = Header.of(request.headers, request.id)
    try:
        declaration = declaration_of(task)
    except LockOptionError:
        # Wrong on this worker only: the publisher took a claim, and the message ends here.
        give_claim_back(task.app, header)
        raise
    if not declaration.settings.enabled or (request.is_eager and not declaration.settings.eager):
        return None
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


def _enter(run: Run) -> Outcome | None:
    try:
        outcome = holders_outcome(run)
        return enter(run) if outcome is None else outcome
    except (Ignore, DuplicateTask, LockKeyError):
        raise  # it was published again with its claim, or somebody else's hold was found in place of that
    except BaseException as error:
        _owe_claim(run, error)
        raise


def _owe_claim(run: Run, error: BaseException) -> None:
    """Ended before it had a lease, and not to come again, it leaves a claim nobody would turn into one."""
    if run.lease is None and run.header is not None and run.may_have_claim and not comes_again(run, error):
        # With its window, unless another delivery of it may have run under that.
        ttl, undo = run.options.lock_queue_ttl, not run.may_have_run
        run.guard.give_back_later(run.work.key, run.header.token, ttl=ttl, undo=undo)


def _run_body(run: Run, body: Callable[[], Any]) -> Any:
    run.in_body = True
    try:
        value = _run_to_its_end(run, body)
    except BaseException as error:
        run.in_body = False
        run.finish(error)
        _give_unused_claim_back(run, error)
        raise
    run.in_body = False
    run.finish(None)
    _give_unused_claim_back(run, None)
    return value


def _run_unlocked(run: Run, body: Callable[[], Any]) -> Any:
    run.in_body = True
    try:
        return body()
    finally:
        run.in_body = False


def _run_to_its_end(run: Run, body: Callable[[], Any]) -> Any:
    if run.lease is None or run.options.on_lock_lost != "terminate":
        return body()

    def offer(interrupt: Callable[[], None]) -> None:
        run.interrupt = interrupt

    return run_interruptible(run.lease, body, offer)


def _give_unused_claim_back(run: Run, error: BaseException | None) -> None:
    """A run that had to start without its lock leaves a claim nobody would turn into a lease any more."""
    goes_on = run.has_passed_claim_on or comes_again(run, error)
    if run.lease is None and run.may_have_claim and run.header is not None and not goes_on:
        run.guard.give_back(run.work.key, run.header.token, ttl=run.options.lock_queue_ttl)

"""How a run ends: its lock is released, or handed on, before anybody sees its outcome.

Celery publishes what follows a run and stores its result after ``Task.__call__`` has returned, and calls
``on_success``, ``after_return`` and ``task_postrun`` after both (5.7.0, ``app/trace.py``). A lock released in
one of these is still held when the caller's ``get()`` returns and when the next link of a chain is published.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from celery.exceptions import Ignore, Reject, Retry
from celery.states import FAILURE

from celery_redislock.locks.lease import Lease, new_token
from celery_redislock.running.leavings import Fate
from celery_redislock.running.life import (
    BREAK_OFF,
    CONCLUDE,
    DONE,
    END,
    ENDED,
    REQUEUE,
    REQUEUED,
    STORE_NEXT,
    State,
)
from celery_redislock.running.run import Run
from celery_redislock.running.transition import Transition
from celery_redislock.store.store import LockStore


def finish(run: Run, error: BaseException | None) -> None:
    """Release the lock when the body has unwound, turn it into a claim, or leave it to the result's store.

    ``error`` has ended the body; ``None`` if it returned. Never raises an ``Exception``.
    """
    if error is None:
        run.state = END[run.state]
    else:
        run.state = _ends_by(run.task, error)[run.state]
        if run.state is REQUEUED:
            token = run.identity or new_token(run.lock.owner)
            run.note_follow_up(token, lambda: run.options.lock_queue_ttl)
        if not _job_continues(run, error):
            run.failed_period = run.opened_by
            if run.failed_period is not None and run.locks.claim is not run.locks.running:
                run.end_period(run.failed_period)  # else it ends with the lease, which keeps it
    lease = run.lease
    if lease is None:
        # It had to start without its lock, and has its claim yet; or its publisher does not know of one.
        if run.message is not None and run.locks.running is not None and run.state is not REQUEUED:
            run.leave(Fate.FAILED if run.failed_period else Fate.SUCCEEDED)
    elif run.followed_by and run.locks.running is not None:
        _hand_on(run, lease)
    elif _is_stored_beside(run, error):
        run.state = STORE_NEXT[run.state]  # and renewed until then
    else:
        run.release(lease)


def conclude(run: Run, state: str) -> None:
    """Note that the message is done, if it is: its result is stored, and what follows is published.

    Called by ``task_postrun``, in the process and thread of the body. A run whose end was interrupted, or
    whose result was not stored, is released here.

    Celery sends that signal from a ``finally`` (5.7.0, ``app/trace.py``): with an exception on its way, as
    when a worker stops its child, the result may not be stored, and the message has to run again.
    """
    if run.lease is not None and not run.lease.ended:
        run.release(run.lease)
    returned = run.state in DONE and not (run.failed_period or run.followed_by)
    if state == FAILURE and returned and (opened_by := run.opened_by) is not None:
        run.end_period(opened_by)  # what it returned could not be stored
    if (mark := run.mark()) is not None and sys.exc_info()[1] is None:
        run.state = CONCLUDE[run.state]
        run.locks.copies.mark_done(mark.message, run.done_ttl)


def is_requeued(task: Any, error: BaseException) -> bool:
    """Whether a message goes back to its queue for the error that ended its run: acknowledged late only."""
    return isinstance(error, Reject) and bool(error.requeue) and bool(task.acks_late)


def _ends_by(task: Any, error: BaseException) -> Transition[State]:
    """Return what an error that has ended the body makes of a run."""
    if is_requeued(task, error):
        return REQUEUE
    return END if isinstance(error, Exception) else BREAK_OFF


def _job_continues(run: Run, error: BaseException) -> bool:
    """Whether a job may continue after its run: in another message, as another task, in the next child."""
    if isinstance(error, Exception):
        is_replaced = isinstance(error, Ignore) and str(error).startswith("Replaced by")  # Task.replace
        return bool(run.followed_by or is_replaced or isinstance(error, Retry))
    return type(error).__name__ != "GreenletExit"  # by that gevent ends what is revoked


def _hand_on(run: Run, lease: Lease) -> None:
    """Turn the lease into the claim of the message that continues the job: a new one, or its own."""
    token, claim_ttl = run.followed_by[0]
    if claim_ttl is None:
        run.release(lease)
    elif not run.locks.copies.hand_on(lease, token, ttl=claim_ttl(), mark=run.mark()):
        run.warn_of_loss(lease)


def _is_stored_beside(run: Run, error: BaseException | None) -> bool:
    """Whether Celery stores a result next, beside the lock, and nothing else follows."""
    if run.lock.is_ignored and (error is None or not run.task.store_errors_even_if_ignored):
        return False
    join = _joining(run.task, run.lock.store)
    if join is None or run.state is not ENDED or isinstance(error, Ignore | Reject | Retry):
        return False
    if run.request.is_eager or run.is_in_workflow:
        return False
    return join(run.task.backend, run.lock.store)


@lru_cache(maxsize=1024)
def _joining(task: Any, store: LockStore) -> Callable[[Any, LockStore], bool] | None:
    """Return what lets a thread's backend release locks; ``None`` where results were elsewhere at first."""
    if type(task.backend).__module__ != "celery.backends.redis":
        return None
    from celery_redislock.running.result import join  # noqa: PLC0415  imports Celery's backend

    return join if join(task.backend, store) else None

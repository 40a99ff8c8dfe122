"""How a run ends: its lock is released, or handed on, before anybody sees its outcome.

Celery publishes what follows a run and stores its result after ``Task.__call__`` has returned, and calls
``on_success``, ``after_return`` and ``task_postrun`` after both (5.7.0, ``app/trace.py``). A lock released in
one of these is still held when the caller's ``get()`` returns and when the next link of a chain is published.
"""

import logging
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from celery.exceptions import Ignore, Reject, Retry
from celery.states import FAILURE

from celery_redislock.locks.lease import Lease
from celery_redislock.locks.store import LockStore, Mark, Release, new_token
from celery_redislock.publishing.signals import lock_released
from celery_redislock.running.run import Run, mark_ttl

__all__ = ["conclude", "is_requeued", "settle"]

logger = logging.getLogger("celery_redislock")


def settle(run: Run, error: BaseException | None) -> None:
    """Release the lock when the body has unwound, turn it into a claim, or leave it to the result's store.

    ``error`` has ended the body; ``None`` if it returned. Never raises an ``Exception``.
    """
    run.in_body = requeued = False
    run.has_ended = True
    if error is not None:
        requeued = is_requeued(run.task, error)
        # SystemExit and KeyboardInterrupt end the child: only the main process knows whether the message is
        # delivered again.
        run.has_ended = isinstance(error, Exception) and not requeued
        if not _goes_on(run, error, requeued=requeued) and (period_of := run.accepted_as) is not None:
            run.period_of = period_of
            if not run.scope.holds_while_running:
                run.lock.release(period_of, period_of=period_of)
    lease = run.lease
    if lease is None:
        message = run.message  # its claim is there yet, if it had to start without its lock
        if message is not None and message.claimed and run.scope.holds_while_running and not requeued:
            run.lock.release(message.token, period_of=run.period_of)
    elif (run.followed_by or requeued) and run.scope.holds_while_running:
        if run.followed_by:
            token, claim_ttl = run.followed_by[0]
            ttl = claim_ttl()
        else:
            token, ttl = run.identity or new_token(run.lock.owner), run.options.lock_queue_ttl
        if not run.running_lock.hand_on(lease, token, ttl=ttl, mark=_mark(run)):
            _warn(run, lease)
    elif _is_left_to_result(run, error):
        run.release = release  # and renewed until then
    else:
        release(run, lease)


def release(run: Run, lease: Lease, now: Callable[[Mark | None], Release] | None = None) -> None:
    """Release the lock of a run whose body has ended; never raises an ``Exception``.

    ``now`` asks for the release and something else in one step, with this mark.
    """
    mark = _mark(run) if run.can_come_again else None
    if not run.running_lock.finish(lease, period_of=run.period_of, mark=mark, now=now and partial(now, mark)):
        _warn(run, lease)
    elif lock_released.receivers and run.scope.holds_while_running:
        lock_released.send(sender=run.task, key=lease.key, task_id=run.lock.owner, lease=lease)


def conclude(run: Run, state: str) -> None:
    """Note that the message is done, if it is: its result is stored, and what follows is published.

    Called by ``task_postrun``, in the process and thread of the body. A run whose end was interrupted, or
    whose result was not stored, is released here.

    Celery sends that signal from a ``finally`` (5.7.0, ``app/trace.py``): with an exception on its way, as
    when a worker stops its child, the result may not be stored, and the message has to run again.
    """
    if run.lease is not None and not run.lease.ended:
        release(run, run.lease)
    returned = run.has_ended and not (run.period_of or run.followed_by)
    if state == FAILURE and returned and (period_of := run.accepted_as) is not None:
        run.lock.release(period_of, period_of=period_of)  # what it returned could not be stored
    if (mark := _mark(run)) is not None and sys.exc_info()[1] is None:
        run.has_ended = False
        run.running_lock.mark_done(mark.message, mark_ttl(run.task.app))


def is_requeued(task: Any, error: BaseException) -> bool:
    """Whether a message goes back to its queue for the error that ended its run: acknowledged late only."""
    return isinstance(error, Reject) and bool(error.requeue) and bool(task.acks_late)


def _goes_on(run: Run, error: BaseException, *, requeued: bool) -> bool:
    """Whether a job may go on after its run: in another message, as another task, in the next child."""
    if isinstance(error, Exception):
        is_replaced = isinstance(error, Ignore) and str(error).startswith("Replaced by")  # Task.replace
        return bool(requeued or run.followed_by or is_replaced or isinstance(error, Retry))
    return type(error).__name__ != "GreenletExit"  # by that gevent ends what is revoked


def _is_left_to_result(run: Run, error: BaseException | None) -> bool:
    """Whether Celery stores a result next, beside the lock, and nothing else follows."""
    if run.lock.is_ignored and (error is None or not run.task.store_errors_even_if_ignored):
        return False
    join = joining(run.task, run.lock.store)
    if join is None or not run.has_ended or isinstance(error, Ignore | Reject | Retry):
        return False
    if run.request.is_eager or run.is_in_workflow:
        return False
    return join(run.task.backend, run.lock.store)


@lru_cache(maxsize=1024)
def joining(task: Any, store: LockStore) -> Callable[[Any, LockStore], bool] | None:
    """Return what lets a thread's backend release locks; ``None`` where results were elsewhere at first."""
    if type(task.backend).__module__ != "celery.backends.redis":
        return None
    from celery_redislock.running.result import join  # noqa: PLC0415  imports Celery's backend

    return join if join(task.backend, store) else None


def _mark(run: Run) -> Mark | None:
    """Return what a run's end leaves for the copies of its message."""
    if run.identity is None or not run.can_come_again or not run.has_ended:
        return None
    return Mark(run.identity, run.running_lock.ttl)


def _warn(run: Run, lease: Lease) -> None:
    if not lease.lost:  # a loss that was noticed has been announced as such
        logger.warning(
            "%s no longer held %r when it ended: it had expired, or was released by force; another run may "
            "have held it meanwhile. If nobody released it, lock_ttl is shorter than what this process, or "
            "the lock server, stands still",
            run.lock,
            lease.key,
        )

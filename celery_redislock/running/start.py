"""How a run enters its lock: claim to lease, or a fresh lease, or why it must not run now.

What a scope does when its run starts::

    holds while it runs      the claim becomes a lease on the key, or a fresh lease is acquired
    ends at the start        the claim is released; a message without one yields to a queued one
    ends with its period     nothing; a message that was not accepted at publish is accepted here

Where the scope holds nothing while it runs, and the broker may deliver the message once more, the run holds
a lease on the message itself, so that its copies exclude each other.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from celery.exceptions import Ignore, Reject

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.exceptions import DuplicateTask, LockKeyError, LockUnavailable, RedisLockError
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.retrying import keep_trying
from celery_redislock.locks.store import ACCEPTED, QUEUED, Hold, Mark, Marked, Refusal
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.publishing.publish import NEEDS_NO_SERVER
from celery_redislock.publishing.signals import lock_acquired
from celery_redislock.running.duplicate import at_start
from celery_redislock.running.redelivery import jittered, late_copy, put_off, wait_for
from celery_redislock.running.run import Run, mark_ttl

__all__ = ["enter"]

T = TypeVar("T")

logger = logging.getLogger("celery_redislock")


def enter(run: Run) -> None:
    """Take what the run's scope asks for; ``run.lease`` is there afterwards if it holds anything.

    Raises ``Ignore`` where the message was skipped, is done, or was published again to run later.
    """
    try:
        if run.scope.holds_while_running:
            _take(run, run.lock)
            return
        if run.can_come_again:
            _take(run, run.running_lock)
        if run.scope.ends == "start":
            _leave_queue(run)
        elif not run.is_accepted:
            _accept(run)
    except BaseException as error:
        _leave(run, error)
        raise


def _take(run: Run, lock: TaskLock) -> None:
    """Hold a lock while the body runs: the key's, or that of the message itself."""
    options, limit = run.options, (run.request.timelimit or (None,))[0] or run.task.time_limit
    attempt = partial(
        lock.start,
        run.token,
        claim=run.identity,
        message=run.identity,
        may_be_done=run.may_be_done,
        accepted=lock.period is None or run.is_accepted,
        max_hold=options.max_hold(limit) if limit else options.lock_max_hold,
        on_lost=run.announce_loss,
    )
    try:
        answer: Lease | Refusal | Marked | None = attempt()
    except LockUnavailable as error:
        answer = _ask_again(run, lock, attempt, error)
    if not isinstance(answer, Lease) and (answer := _take_over(run, attempt, answer)) is None:
        return  # on_lock_error says: without a lock
    run.lease = answer
    if lock is run.lock:
        message = run.message if answer.is_new else None
        # A retry's claim exists only when its first run has ended, and a copy's went with that copy.
        if message is not None and message.claimed and not (message.must_run or run.was_delivered):
            logger.warning(
                "the claim of %s on %r was gone when it started: it had expired while queued "
                "(raise lock_queue_ttl), was released by force, or its message was published twice",
                lock,
                lock.key,
            )
        if lock_acquired.receivers:
            lock_acquired.send(sender=run.task, key=lock.key, task_id=lock.owner, lease=answer)


def _take_over(
    run: Run, attempt: Callable[..., Lease | Refusal | Marked], answer: Lease | Refusal | Marked | None
) -> Lease | None:
    """Ask once more where the holder is the run's own claim or period; otherwise raise what ends the run."""
    if isinstance(answer, Refusal) and (more := _own_claim(run, answer.hold)):
        answer = _ask(run, run.running_lock, partial(attempt, **more))
    if isinstance(answer, Refusal):
        raise at_start(run, answer.hold)
    if isinstance(answer, Marked):
        if answer.is_done and run.message is not None and run.message.is_tick and run.scope.ends != "period":
            # Sent twice, and claimed again when it had run.
            run.lock.release(run.message.token)
        pause = run.running_lock.ttl - answer.expires_in
        raise late_copy(run) if answer.is_done else wait_for(run, None, pause, is_copy=True)
    return answer


def _own_claim(run: Run, hold: Hold) -> dict[str, Any]:
    """Return what to ask with, beside the rest, where the run itself is what refuses it; else nothing.

    This very message was accepted when a period of its own began. A message without a header, or a retry,
    meets a claim that another publish of this id took: by the publisher of a message that lost its header, by
    another retry of the same body. A message that was delivered before may have had that claim already.
    """
    if hold.owner != run.lock.owner:
        return {}
    if hold.is_period:
        return {"accepted": True} if run.is_of_this_message(hold) else {}
    takes_over = run.message is None or (run.request.retries and not run.was_delivered)
    return {"claim": hold.token} if takes_over and hold.state == QUEUED else {}


def _leave_queue(run: Run) -> None:
    """Release the claim; a message that has none yields to a queued one, unless it has to run anyway."""
    lock, message = run.lock, run.message
    if message is not None and (run.is_accepted or (run.must_wait and lock.period is None)):
        # Without a claim as well: its publisher may not have learned that it was granted.
        lock.release(message.token)
        return
    hold = _queued_before(run)
    if hold is not None and lock.release_if_dead(hold):
        hold = _queued_before(run)
    if hold is None:
        return
    # A claim of its own token: its publisher did not learn that it was granted.
    is_own = hold.is_period or message is None or hold.token == message.token
    if hold.owner != lock.owner or not is_own:
        raise at_start(run, hold)
    lock.release(hold.token)


def _queued_before(run: Run) -> Hold | None:
    """Return what stands in the way; where nothing does and there is a period to begin, begin it."""
    lock = run.lock
    if lock.period is None:
        return _ask(run, lock, partial(lock.store.inspect, lock.key, to_decide=True))
    answer = _ask(run, lock, partial(lock.accept, run.token, lock.ttl, message=run.identity or lock.owner))
    if answer is not None and not isinstance(answer, Refusal):
        lock.release(run.token)
    return answer.hold if isinstance(answer, Refusal) else None


def _accept(run: Run) -> None:
    """Accept a message that its publisher did not: its claim stands for the period from now on."""
    lock, identity, period = run.lock, run.identity or run.lock.owner, run.options.lock_period or 0.0
    answer = _ask(run, lock, partial(lock.accept, run.token, period, ACCEPTED, message=identity))
    if isinstance(answer, Refusal) and not run.is_of_this_message(answer.hold):
        raise at_start(run, answer.hold)


def _ask(run: Run, lock: TaskLock, attempt: Callable[[], T]) -> T | None:
    """Ask until the lock server answers; as :func:`_ask_again`."""
    try:
        return attempt()
    except LockUnavailable as error:
        return _ask_again(run, lock, attempt, error)


def _ask_again(run: Run, lock: TaskLock, attempt: Callable[[], T], error: LockUnavailable) -> T | None:
    """Ask until the lock server answers; ``None``: run without a lock, as ``on_lock_error`` says.

    What an unanswered request may have taken under the run's token is released as soon as the server answers.

    Raises:
        Ignore: the server did not answer for ``redislock_start_timeout``: the message was published again.
        LockUnavailable: and the broker did not take it.
    """
    if run.options.on_lock_error == "run":
        lock.release_later(run.token, period_of=run.token)
        logger.warning(
            "running %s without its lock, so another one may run at the same time: %s", run.lock, error
        )
        return None
    try:
        return keep_trying(attempt, for_seconds=declaration_of(run.task).settings.start_timeout)
    except LockUnavailable as last:
        lock.release_later(run.token, period_of=run.token)
        if run.request.is_eager:
            raise last.with_remark(NEEDS_NO_SERVER) from last
        logger.warning("%s cannot start yet, and is published again for later: %s", run.lock, last)
        instead = put_off(run, jittered(run.options.lock_retry_delay), "the lock server does not answer")
        # With the broker gone as well the task fails visibly, and its error names the lock server.
        raise (instead if isinstance(instead, Ignore) or run.task.acks_late else last) from last


def _leave(run: Run, error: BaseException) -> None:
    """Release what a run has taken, or may have, that does not start."""
    maybe_held = {run.lock, run.running_lock}
    if run.lease is not None:
        run.running_lock.finish(run.lease)
        run.lease = None
        maybe_held.remove(run.running_lock)
    if not isinstance(error, Ignore | Reject | RedisLockError):
        # A signal, or a soft time limit: the server may have granted a lease, which may be renewed already.
        for lock in maybe_held:
            lock.release_later(run.token, period_of=run.token)
    if isinstance(error, Ignore | Reject | DuplicateTask | LockKeyError):
        return  # its message is delivered again and brings its claim, or there is none
    message = run.message
    if message is None or (run.scope.ends == "period" and run.was_delivered):
        return
    token, period_of = message.held_as, None if run.was_delivered else message.first or message.token
    if isinstance(error, Exception):
        mark = Mark(message.token, mark_ttl(run.task.app), is_done=True) if message.must_run else None
        run.lock.release(token, period_of=period_of, mark=mark)
    elif not run.task.acks_late:  # acknowledged late, it is delivered again
        run.lock.release_later(token, period_of=period_of)

"""How a run starts: its claim becomes a lease, or it acquires a fresh one, or why it must not run now.

What a scope does when its run starts::

    lease                      the claim becomes a lease on the key, or a fresh lease is acquired
    claim until the start      the claim is released; a message without one yields to a queued one
    both                       the lease is acquired; then the claim, which is kept beside it, is released
    claim for the period       nothing; a message that was not accepted at publish is accepted here

A deploy may have changed the scope since the message was published. The claim is where the header says: a
lease under that key takes it over; else it is released once the lease is granted. A period stays.

Where the scope has no lease, and the broker may deliver the message once more, the run holds a lease on the
message itself, so that its copies exclude each other.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from celery.exceptions import Ignore, Reject

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.exceptions import DuplicateTask, LockKeyError, LockUnavailable, RedisLockError
from celery_redislock.locks.keylock import KeyLock
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.log import is_news, logger
from celery_redislock.publishing.publish import NEEDS_NO_SERVER
from celery_redislock.publishing.signals import lock_acquired
from celery_redislock.running.duplicate import at_start, may_not_be_published, yield_to
from celery_redislock.running.leavings import Fate
from celery_redislock.running.redelivery import (
    PutOff,
    ToBeParked,
    jittered,
    late_copy,
    put_off,
    wait_for,
    wait_until_due,
)
from celery_redislock.running.run import Run
from celery_redislock.store.store import ACCEPTED, QUEUED, Hold, Marked, Refusal
from celery_redislock.wire.retrying import keep_trying

T = TypeVar("T")


def start(run: Run) -> None:
    """Acquire what the run's scope asks for; ``run.lease`` is there afterwards if it holds anything.

    Raises ``Ignore`` where the message was skipped, is done, or was published again to run later.
    """
    if run.is_put_off:
        raise wait_until_due(run)
    try:
        if run.scope.lease or run.again:
            _acquire(run)
        if run.locks.claim is not run.locks.running:  # else it has become the lease
            _end_claim(run)
        if run.may_be_outdated and not (run.lease and run.locks.running and run.lease.taken_over):
            _yield_to_newer(run)
    except BaseException as error:
        _leave(run, error)
        raise


def _acquire(run: Run) -> None:
    """Hold a lock while the body runs: the key's, or that of the message itself."""
    message = run.message
    lock = run.locks.copies
    limit = (run.request.timelimit or (None,))[0] or run.task.time_limit
    attempt = partial(
        lock.start,
        run.token,
        claim=run.identity,
        message=run.identity,
        may_be_done=run.earlier is not None,
        accepted=lock.period is None or run.is_accepted,
        max_hold=run.options.max_hold(limit) if limit else run.options.lock_max_hold,
        waits=message is not None and (message.claimed or message.must_run),
        on_lost=run.announce_loss,
    )
    try:
        answer: Lease | Refusal | Marked | None = attempt()
    except LockUnavailable as error:
        answer = _try_again(run, lock, attempt, error)
    if not isinstance(answer, Lease) and (answer := _take_over(run, attempt, answer)) is None:
        return  # on_lock_error says: without a lock
    run.lease = answer
    if answer.taken_over:
        if answer.sent_again and not run.task.acks_late and run.identity is not None:
            # Acknowledged, it runs once at most: its copy does nothing, also where this run is killed.
            run.locks.copies.mark_done(run.identity, run.done_ttl)
    elif not answer.repeated and run.locks.claim is run.locks.running:
        _warn_of_lost_claim(run)
    if lock_acquired.receivers and run.locks.running is not None:
        lock_acquired.send(sender=run.task, key=lock.key, task_id=lock.owner, lease=answer)


def _warn_of_lost_claim(run: Run) -> None:
    message = run.message
    # A retry's claim exists only when its first run has ended, and a copy's went with that copy.
    if message is None or not message.claimed or message.must_run or run.was_delivered:
        return
    if message.parked_at is not None:
        return  # its turn may have ended before it came
    if run.locks.running is not None:
        why = "it had expired while queued (raise lock_queue_ttl), was released by force, or its message was "
        why += "published twice; or its publisher has another redislock_prefix, or maybe another lock server"
        store = run.lock.store
        if is_news("a claim is looked for under other prefixes"):
            with suppress(RedisLockError):  # a user who may not look
                for prefix in store.other_prefixes(run.lock.key, message.token):
                    why = f"its publisher has the prefix {prefix!r}, and this worker {store.prefix!r}"
                    why += "; give all processes one redislock_prefix"
        logger.warning("the claim of %s on %r was gone when it started: %s", run.lock, run.lock.key, why)


def _take_over(
    run: Run, attempt: Callable[..., Lease | Refusal | Marked], answer: Lease | Refusal | Marked | None
) -> Lease | None:
    """Ask once more where the holder is the run's own claim or period; otherwise raise what ends the run."""
    if isinstance(answer, Refusal) and (more := _own_claim(run, answer.hold)):
        answer = _ask(run, run.locks.copies, partial(attempt, **more))
    if isinstance(answer, Refusal):
        is_settled = answer.hold.owner != run.lock.owner and not may_not_be_published(answer.hold)
        if run.may_be_outdated and is_settled:
            _yield_to_newer(run)
        raise at_start(run, answer.hold)
    if isinstance(answer, Marked):
        message = run.message
        if answer.is_done and message is not None and message.is_tick and run.scope.claim != "period":
            # Sent twice, and claimed again when it had run.
            run.locks.claim.release(message.token)
        raise late_copy(run) if answer.is_done else wait_for(run, answer)
    return answer


def _yield_to_newer(run: Run) -> None:
    """End a run whose task was called later, which has the last word."""
    lock = run.lock
    if run.identity is None:
        return
    with suppress(RedisLockError):  # then both run, as with any other strategy
        if newer := lock.store.newest(lock.key, lock.task, run.identity, run.header.number):
            raise yield_to(run, newer)


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


def _end_claim(run: Run) -> None:
    """Release the claim, unless it stands for the period; accept a message that was not."""
    scope = run.scope
    if scope.claim == "start":
        _leave_queue(run)
        return
    if scope.claim == "period" and not run.is_accepted:
        _accept(run)
    run.leave(Fate.STARTS)


def _leave_queue(run: Run) -> None:
    """Release the claim; a message that has none yields to a queued one, unless it has to run anyway."""
    message = run.message
    lock = run.queue
    # Where its lease lets it run, a call that is queued runs after it.
    runs_anyway = lock.period is None and (run.scope.lease or (message is not None and run.must_wait))
    if message is not None and run.waited_in_vain is not None and not run.scope.lease:
        # It may have left the line without its claim.
        refusal = _look(run, run.locks.claim, message.token)
        if refusal is not None:
            raise at_start(run, refusal.hold)
    if message is not None and runs_anyway and not (run.is_accepted or run.scope.lease):
        refusal = _look(run, run.locks.claim, message.token)
        if refusal is not None and refusal.hold.is_operators:
            raise at_start(run, refusal.hold)
    if message is not None and (run.is_accepted or runs_anyway):
        run.leave(Fate.STARTS)
        return
    if runs_anyway:
        return
    hold = _queued_before(run, lock)
    if hold is not None and lock.release_if_dead(hold):
        hold = _queued_before(run, lock)
    if hold is not None:
        # A claim of its own token: its publisher did not learn that it was granted.
        is_own = hold.is_period or message is None or hold.token == message.token
        if hold.owner != lock.owner or not is_own:
            raise at_start(run, hold)
        lock.release(hold.token)
    if message is not None and message.claimed_beside != run.scope.claims_beside:
        run.leave(Fate.STARTS)  # it was published under another scope


def _queued_before(run: Run, lock: TaskLock) -> Hold | None:
    """Return what stands in the way; where nothing does and there is a period to begin, begin it."""
    if lock.limit is not None and lock.period is None:
        token = run.token if run.message is None else run.message.token
        refusal = _look(run, lock, token)
        if refusal is None:
            lock.release(token)
            return None
        return next((hold for hold in refusal.holds if hold.owner == lock.owner), refusal.hold)
    if lock.period is None:
        return _ask(run, lock, partial(lock.store.inspect, lock.key, to_decide=True))
    identity = run.identity or lock.owner
    accept = partial(lock.accept, run.token, lock.ttl, message=identity, claim=run.parked_as)
    answer = _ask(run, lock, accept)
    if answer is not None and not isinstance(answer, Refusal):
        lock.release(run.token)
    return answer.hold if isinstance(answer, Refusal) else None


def _look(run: Run, lock: TaskLock, token: str) -> Refusal | None:
    """Return who would refuse a claim under this token."""
    return _ask(run, lock, partial(lock.store.look, lock.key, token, limit=lock.limit))


def _accept(run: Run) -> None:
    """Accept a message that its publisher did not: its claim stands for the period from now on."""
    lock = run.lock
    if run.message is not None and run.message.has_own_key:
        # A claim would have told of them.
        told = declaration_of(run.task).told(run.request.args, run.request.kwargs, of_all=True)
        lock = run.lock = lock._replace(told=told)
    identity = run.identity or lock.owner
    period = run.options.lock_period or 0.0
    accept = partial(lock.accept, run.token, period, ACCEPTED, message=identity, claim=run.parked_as)
    answer = _ask(run, lock, accept)
    if isinstance(answer, Refusal) and not run.is_of_this_message(answer.hold):
        raise at_start(run, answer.hold)


def _ask(run: Run, lock: TaskLock, attempt: Callable[[], T]) -> T | None:
    """Ask until the lock server answers; as :func:`_try_again`."""
    try:
        return attempt()
    except LockUnavailable as error:
        return _try_again(run, lock, attempt, error)


def _try_again(run: Run, lock: TaskLock, attempt: Callable[[], T], error: LockUnavailable) -> T | None:
    """Ask until the lock server answers; ``None``: run without a lock, as ``on_lock_error`` says.

    What an unanswered request may have taken under the run's token is released as soon as the server answers.

    Raises:
        Ignore: the server did not answer for ``redislock_start_timeout``: the message was published again.
        LockUnavailable: and the broker did not take it.
    """
    if run.options.on_lock_error == "run":
        if error.was_sent:
            lock.release_later(run.token, opened_by=run.token)
        if run.parked_as is not None:
            lock.release_later(run.parked_as)  # it has started, though without what it was handed
        logger.warning(
            "running %s without its lock, so another one may run at the same time: %s", run.lock, error
        )
        return None
    try:
        return keep_trying(attempt, for_seconds=declaration_of(run.task).settings.start_timeout)
    except LockUnavailable as last:
        lock.release_later(run.token, opened_by=run.token)
        if run.request.is_eager:
            raise last.with_remark(NEEDS_NO_SERVER) from last
        logger.warning("%s cannot start yet, and is published again for later: %s", run.lock, last)
        instead = put_off(run, jittered(run.options.lock_retry_delay), "the lock server does not answer")
        # With the broker gone as well the task fails visibly, and its error names the lock server.
        raise (instead if isinstance(instead, Ignore) or run.task.acks_late else last) from last


def _leave(run: Run, error: BaseException) -> None:
    """Release what a run has taken, or may have, that does not start."""
    locks = run.locks
    may_be_held = {lock.key: lock for lock in (run.queue, locks.copies)}
    if run.lease is not None:
        locks.copies.finish(run.lease)
        run.lease = None
        del may_be_held[locks.copies.key]
    # A signal, as of a cold shutdown.
    is_cut_off = not isinstance(error, Exception)
    # Acknowledged early it is delivered no more. What it was handed ends by itself, and it is sent again.
    is_sent_again = is_cut_off and run.parked_as is not None and not run.task.acks_late
    # Put off in a scope that claims at publish, it keeps its place, as any message with a claim does.
    keeps_turn = is_sent_again or (isinstance(error, PutOff) and run.scope.claim is not None)
    if run.parked_as is not None and not isinstance(error, ToBeParked) and not keeps_turn:
        for lock in {lock.key: lock for lock in (run.lock, locks.copies)}.values():
            lock.release(run.parked_as)  # its turn is over
    if not isinstance(error, Ignore | Reject | RedisLockError):
        # A signal, or a soft time limit: the server may have granted a lease, which may be renewed already.
        for lock in may_be_held.values():
            lock.release_later(run.token, opened_by=run.token)
    if isinstance(error, Ignore | Reject | DuplicateTask | LockKeyError):
        return  # its message is delivered again and brings its claim, or there is none
    if not is_cut_off:
        run.leave(Fate.UNRUN)
    elif not (run.task.acks_late or is_sent_again):  # acknowledged late, it is delivered again
        run.leave(Fate.UNRUN, KeyLock.release_later)  # the watchdog asks, and not this thread

"""The publishing side of a unique task: claim and publish, in one step where that can be.

``SingletonTask.apply_async`` calls it, in the process and thread that publish: a caller's, a worker's main
process (``retry_on_worker_lost``), or a pool child that publishes retries and links.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.log import logger
from celery_redislock.publishing import duplicate, kombu, spans
from celery_redislock.publishing.call import Call, PublishingRun, Send
from celery_redislock.publishing.claim import MERGED, PUBLISHED, Claim
from celery_redislock.publishing.conflict import announce
from celery_redislock.publishing.message import Message
from celery_redislock.publishing.signals import lock_acquired
from celery_redislock.store.store import QUEUED

#: A remark for tasks that run in place, which is mostly in somebody's tests.
NEEDS_NO_SERVER = "a test needs no server: celery_redislock.testing.memory_locks(app)"


# When this is imported, by the first publish or a worker's start, a program's instrumentation is there.
spans.connect()


def publish(  # noqa: PLR0911, PLR0912  one for each kind of publish
    task: Any,
    send: Send,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    task_id: str | None,
    options: dict[str, Any],
) -> Any:
    """Publish a call of a unique task, unless it is a duplicate.

    ``task_id`` is as the caller fixed it, or ``None``; ``options`` are Celery's and this package's. Returns
    and raises what ``SingletonTask.apply_async`` says.
    """
    call = Call(task, send, args, kwargs, task_id, options)
    if not call.is_locked:
        return call.send_unlocked()
    if call.is_eager:
        return _publish_in_place(call)
    if call.has_fixed_id:
        run = call.own_run()
        followed = call.inherited
        if run is not None:
            if run.in_body and run.lock.key == call.lock.key:
                return _publish_what_follows(call, run)
        elif followed is not None:
            if followed.key == call.lock.key:
                return _publish_again(call, followed)
        else:
            call.take_tick()
    if call.scope.claim is None:
        return call.noted(call.send(claimed=False))
    with Claim(call, call.claim_ttl()) as claim:
        result = kombu.publish_with_claim(claim)
    if claim.refused_by is not None:
        if claim.state is MERGED:
            return duplicate.merge(call, claim.refused_by, claim.merged)
        if result is None:
            return duplicate.at_publish(call, claim.refused_by)
        announce(task, call.lock, claim.refused_by, "client", what_happens="wait")
        return call.noted(result)
    if lock_acquired.receivers and claim.state is PUBLISHED:
        lock_acquired.send(sender=task, key=call.lock.key, task_id=call.task_id, lease=None)
    return call.noted(result) if call.scope.claims_beside else result


def _publish_again(call: Call, message: Message) -> Any:
    """Publish what the worker's main process or before_start does: it keeps its identity and its claim."""
    call.token = message.token
    call.must_run = True
    call.says = {
        **call.says,
        "opened_by": message.opened_by,
        "claimed_beside": message.claimed_beside,
        "stands_for_period": message.claimed and message.stands_for_period,
    }
    return call.send(claimed=message.claimed)


def _publish_what_follows(call: Call, run: PublishingRun) -> Any:
    """Publish a run's own retry or replacement with its key, at once and under a token of its own.

    Published only when the body has unwound, it would be lost with a child that is killed before. The
    message may start earlier than the body ends: it is refused by the run's lease, and waits.
    """
    lock = call.claim_lock = call.lock
    call.must_run = True
    call.says = {**call.says, "opened_by": run.opened_by, "claimed_beside": False}
    is_to_release = call.lock_options.lock_on_retry == "release" and call.options.get("retries")
    if is_to_release and run.holds(lock.key) and (delay := call.starts_in()):
        # Refused when it is due, it goes before those that wait: as one whose turn was over before it came.
        call.says = {**call.says, "parked_at": time.time() + delay}
        result = call.send(claimed=False)
        run.note_follow_up(call.token, None)
        return result
    if run.holds(lock.key) or call.scope.claim in {None, "period"}:
        result = call.send(claimed=True)
    else:
        # The run was accepted: no period refuses its message, or begins with it.
        call.claim_lock = call.lock = lock._replace(period=None).that_waits()
        with Claim(call, call.claim_ttl()) as claim:
            result = kombu.publish_with_claim(claim)
        if claim.refused_by is not None:
            result = call.send(claimed=False)
    # After the publish, never before: a claim without a message would stay for an hour.
    run.note_follow_up(call.token, call.claim_ttl)
    return result


def _publish_in_place(call: Call) -> Any:
    """Eager mode with ``redislock_eager``: no claim, because the run follows in this very thread."""
    lock = call.claim_lock
    options = call.lock_options
    hold = None
    try:
        if options.client and lock.limit is None:
            hold = lock.store.inspect(lock.key, to_decide=True)
        elif options.client:
            terms: Any = {"period": lock.period, "limit": lock.limit, "facts": lock.facts(QUEUED)}
            refusal = lock.store.look(lock.key, call.token, **terms)
            hold = None if refusal is None else refusal.hold
    except LockUnavailable as error:
        if options.on_lock_error == "raise":
            raise error.with_remark(NEEDS_NO_SERVER) from error
        logger.warning("could not ask who holds %r, so %s runs as if nobody did: %s", lock.key, lock, error)
    # With the header, so that the run goes by this call's key and options.
    return call.send(claimed=False) if hold is None else duplicate.at_publish(call, hold)

"""What is done for a child that has died, or is about to: its hold is released, or handed on.

In the worker's main process, before Celery stores the outcome, or publishes the message again.
"""

from typing import Any

from billiard.exceptions import WorkerLostError
from celery import Task
from celery.worker.request import Request

from celery_redislock.exceptions import RedisLockError
from celery_redislock.locks.lease import new_token
from celery_redislock.log import logger
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.receiving.hand import CONCLUDE, HAND_BACK, State
from celery_redislock.receiving.renewal import stop_renewing
from celery_redislock.running.leavings import Fate
from celery_redislock.running.transition import Transition
from celery_redislock.store.store import Term

#: Seconds a lease is left after a hard time limit: the child gets SIGTERM, and SIGKILL 0.1 s later
#: (billiard 4.3.2, pool.py), and is reaped within a few seconds.
DYING_TTL = 5.0

#: Since 5.7 Request.on_failure takes a child that exited by itself for lost. Before, it acknowledges the
#: message of such a child as it does a failed one.
_EXIT_IS_LOSS = hasattr(Request, "_worker_lost_info")


def release(request: Any, error: BaseException) -> None:
    """Release what a child held that has ended with this error, or hand it on to what comes again."""
    if (delivery := request.delivery) is None:
        return
    # Since 5.7 Celery acknowledges a lost run where SUCCESS is stored for its id, maybe another run's: of
    # a body that continued after retry(throw=False), or of an earlier job with this id.
    has_succeeded = _EXIT_IS_LOSS and _is_loss(request, error) and request._success_was_stored()
    again = None if has_succeeded else _comes_again(request, error, delivery.message)
    if again is not None and delivery.locks.running is not None:
        token, delay = again
        ttl = delivery.options.lock_queue_ttl + delay
        answer = delivery.locks.running.convert(delivery.token, token, ttl=ttl)
        message = delivery.message
        if answer is not None and answer.released and message is not None:
            # What Celery publishes for this id (``retry_on_worker_lost``) carries this claim. A message that
            # is put back into its queue keeps its header, and the claim is its own.
            opened_by = delivery.opened_by
            again_with = message._replace(
                token=token, claimed=True, claimed_beside=False, opened_by=opened_by
            )
            text = again_with.dumps()
            for headers in (request._request_dict, request._context.headers or {}):
                headers[HEADER] = text
    else:
        answer = delivery.locks.copies.release(delivery.token)
        if again is None:
            had_started = answer is not None and answer.released
            died = Fate.FAILED if had_started else Fate.DIED_EARLY
            delivery.leave(Fate.SUCCEEDED if has_succeeded else died)
    stop_renewing(request)


def _is_loss(request: Any, error: BaseException) -> bool:
    """Whether Celery takes the child for lost: killed, or since 5.7 ended by itself."""
    was_ended_by_worker = request._already_cancelled or request._already_revoked
    is_exit = isinstance(error, SystemExit | KeyboardInterrupt)
    return isinstance(error, WorkerLostError) or (is_exit and _EXIT_IS_LOSS and not was_ended_by_worker)


def _comes_again(request: Any, error: BaseException, message: Message | None) -> tuple[str, float] | None:
    """Return the token and countdown of the message that runs this task id again, ``None`` if none does.

    Repeats decisions of ``Request.on_failure`` (celery 5.5.0 to 5.7.0), because a dead child's hold is
    released or handed on before the outcome is stored, or the message published again.
    """
    is_loss = _is_loss(request, error)
    # Where Celery does not know the name, a task that sets it fails; it does since 5.7.
    may_be_retried = is_loss and hasattr(Task, "retry_on_worker_lost") and request.task.retry_on_worker_lost
    most = request.task.max_retries
    task_id = str(request.id)
    if may_be_retried and (most is None or request._request_dict.get("retries", 0) < most):
        return new_token(task_id), float(request.task.default_retry_delay)
    is_exit = isinstance(error, SystemExit | KeyboardInterrupt)
    if not request.task.acks_late or request.acknowledged or (is_exit and not _EXIT_IS_LOSS):
        return None
    if may_be_retried or not (request.task.reject_on_worker_lost if is_loss else request._already_cancelled):
        return None  # after its last retry it is not requeued either
    return (new_token(task_id) if message is None else message.token), 0.0


def let_die(request: Any) -> Transition[State]:
    """Shorten the lease of a body that met its hard time limit: its child dies within seconds.

    Return how it ends if there is no child, and its body has ended.
    """
    if (delivery := request.delivery) is None:
        return HAND_BACK
    stop_renewing(request)
    lock = delivery.locks.copies
    fate = Fate.DIED_EARLY
    try:
        if lock.store.renew([Term(lock.key, delivery.token, DYING_TTL)]).renewed[0] is True:
            fate = Fate.FAILED
    except RedisLockError as error:
        what = (
            "could not shorten the lease on %r after a hard time limit; it expires %g s after its last "
            "renewal: %s"
        )
        logger.warning(what, lock.key, lock.ttl, error)
    # Whether Celery requeues it (5.5.0 to 5.7.0, on_timeout): since 5.7 by a name beside the older one.
    acks = getattr(request.task, "acks_on_timeout", None)
    if not request.task.acks_late or (request.task.acks_on_failure_or_timeout if acks is None else acks):
        delivery.leave(fate)
        return CONCLUDE
    return HAND_BACK

"""A message that must run later than now, and a copy of a message that has run.

What waits for a holder, or for a period to pass, is parked in the line of that lock, as it was received, by
the worker's main process (``receiving/parking.py``). What waits for another time is published again by
Celery's own machinery, as ``Task.retry`` does it: with the same id, and ``retries`` unchanged. Neither holds
a worker slot, or spends a retry.
"""

import random

from celery.exceptions import Ignore, Reject

from celery_redislock.log import logger
from celery_redislock.publishing.conflict import log_wait, why_held
from celery_redislock.running.delivery import Delivery
from celery_redislock.running.run import Run
from celery_redislock.store.store import ACCEPTED, Hold, Marked


class PutOff(Ignore):  # type: ignore[misc]  # celery-types has it untyped
    """Ends a delivery whose message was published again, unless a run of that message is still there."""


class ToBeParked(Ignore):  # type: ignore[misc]  # celery-types has it untyped
    """Ends a delivery that was refused a lock: the main process, which has its message, parks that.

    Its arguments are the reason, the lock's name, and whether the holder is a run of this very message.
    """


def late_copy(run: Run) -> Ignore:
    """Return the error that ends a message of which another delivery has run."""
    logger.info("%s was delivered again after it was done: nothing to do", run.lock)
    return Ignore("a copy of this message has run already")


def wait_for(run: Run, hold: Hold | Marked) -> Exception:
    """Let a run's message wait for its lock; return what to raise.

    In line for a holder, or for a period to pass; for what is left of a claim that stands for one, or of the
    mark that a copy of this message is ending. By the clock where no main process has the message.
    """
    is_copy = isinstance(hold, Marked) or run.is_of_this_message(hold)
    if is_copy:
        run.earlier = "running"
    if isinstance(hold, Marked):
        why = "a copy of it is ending"
    else:
        why = f"{hold.name!r} is held by another delivery of this message" if is_copy else why_held(hold)
    log_wait(run.lock, why, was_told=run.header.was_told)
    run.message = run.header._replace(was_told=True)
    is_timed = isinstance(hold, Marked) or hold.state == ACCEPTED
    if isinstance(hold, Hold) and (hold.is_period or not is_timed) and run.received_at is not None:
        return ToBeParked(why, hold.name, is_copy)
    return put_off(run, hold.expires_in if is_timed else jittered(run.options.lock_retry_delay), why)


def wait_until_due(run: Run) -> Exception:
    """Let a call wait for others of its task before it starts; return what to raise."""
    why = f"it was called less than {run.options.lock_debounce:g} s ago (lock_debounce)"
    log_wait(run.lock, why, was_told=run.header.was_told)
    run.message = run.header._replace(was_told=True)
    return ToBeParked(why, run.lock.key, False)


def put_off(delivery: Delivery, delay: float, why: str) -> Exception:
    """Publish a message again, to run no sooner than ``delay`` seconds from now; return what to raise.

    ``Ignore`` and never ``Retry``, which would write a state for an id that may be running.

    Returns:
        ``PutOff``, or ``Ignore`` for a copy, whose run is still there; where the broker cannot take the
        message, ``Reject`` with requeue (``acks_late``), or the broker's error: the task fails visibly.
    """
    try:
        delivery.publish_again(delay)
    except Exception as error:  # noqa: BLE001  every broker has errors of its own, and none may lose it
        what_follows = (
            "its message is requeued" if delivery.task.acks_late else "it fails, and has to be called again"
        )
        line = "could not publish %s again (%r): see that the broker takes messages; %s"
        logger.warning(line, delivery.lock, error, what_follows)
        if not delivery.task.acks_late:
            return error
        rejected: Exception = Reject(error, requeue=True)
        return rejected
    ended: type[Exception] = Ignore if delivery.earlier == "running" else PutOff
    return ended(f"published again, to run in {delay:.1f} s at the earliest: {why}")


def jittered(delay: float) -> float:
    """Shorten a delay by up to a fifth, so that many waiting runs do not look all at once."""
    return delay * random.uniform(0.8, 1.0)  # noqa: S311  not for secrets

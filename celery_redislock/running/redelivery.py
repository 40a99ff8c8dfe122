"""A message that must run later than now, and a copy of a message that has run.

What waits is published again by Celery's own machinery, as ``Task.retry`` does it: with the same id, and
``retries`` unchanged. It holds no worker slot meanwhile, and spends no retry.
"""

import random
import time

from celery.exceptions import Ignore, Reject

from celery_redislock.locks.store import Hold
from celery_redislock.log import logger
from celery_redislock.running.delivery import Delivery
from celery_redislock.running.run import Run

__all__ = ["PutOff", "held_for", "jittered", "late_copy", "put_off", "wait_for"]

#: Seconds after which a waiting run looks again at first.
FIRST_PAUSE = 0.1


class PutOff(Ignore):  # type: ignore[misc]  # celery-types has it untyped
    """Ends a delivery whose message was published again, unless a run of that message is still there."""


def late_copy(run: Run) -> Ignore:
    """Return the error that ends a message of which another delivery has run."""
    logger.info("%s was delivered again after it was done: nothing to do", run.lock)
    return Ignore("a copy of this message has run already")


def wait_for(run: Run, hold: Hold | None, held_for: float, *, is_copy: bool = False) -> Exception:
    """Publish a run's message again, to look then whether the lock is free; return what to raise.

    The pause is as long as the lock has been held so far: a hold of milliseconds is looked at again soon,
    and one of hours seldom. At least 0.1 s, at most ``lock_retry_delay``, jittered. No
    ``hold``: a copy of this message is ending; ``is_copy``: the holder is a run of this very message.
    """
    why = "a copy of it is ending" if hold is None else f"{hold.name!r} is held by {hold.owner}"
    logger.info("%s waits: %s", run.lock, why)
    # Below zero where the holder's clock is ahead.
    pause = min(max(abs(held_for), FIRST_PAUSE), run.options.lock_retry_delay)
    return put_off(run, jittered(pause), why, is_copy=is_copy)


def put_off(delivery: Delivery, delay: float, why: str, *, is_copy: bool = False) -> Exception:
    """Publish a message again, to run no sooner than ``delay`` seconds from now; return what to raise.

    ``Ignore`` and never ``Retry``, which would write a state for an id that may be running. ``is_copy``: the
    holder is a run of this very message.

    Returns:
        ``PutOff``, or ``Ignore`` for a copy, whose run is still there; where the broker cannot take the
        message, ``Reject`` with requeue (``acks_late``), or the broker's error: the task fails visibly.
    """
    try:
        delivery.publish_again(delay, is_copy=is_copy)
    except Exception as error:  # noqa: BLE001  every broker has errors of its own, and none may lose it
        what_follows = "its message is requeued" if delivery.task.acks_late else "it fails"
        logger.warning("could not publish %s again, so %s: %r", delivery.lock, what_follows, error)
        if not delivery.task.acks_late:
            return error
        rejected: Exception = Reject(error, requeue=True)
        return rejected
    ended: type[Exception] = Ignore if is_copy else PutOff
    return ended(f"published again, to run in {delay:.1f} s at the earliest: {why}")


def jittered(delay: float) -> float:
    """Shorten a delay by up to a fifth, so that many waiting runs do not look all at once."""
    return delay * random.uniform(0.8, 1.0)  # noqa: S311  not for secrets


def held_for(hold: Hold) -> float:
    """Return the seconds a hold has lasted; ``inf`` for another program's, which does not say."""
    return float("inf") if hold.since is None else time.time() - hold.since

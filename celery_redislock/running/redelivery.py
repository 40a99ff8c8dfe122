"""A message that must run later than now, and a copy of a message that has run.

What waits is published again by Celery's own machinery, as ``Task.retry`` does it: with the same id, and
``retries`` unchanged. It holds no worker slot meanwhile, and spends no retry.
"""

import logging
import random
import re
import time
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject
from celery.utils.quorum_queues import detect_quorum_queues

from celery_redislock.locks.store import Hold, new_token
from celery_redislock.publishing.message import Message
from celery_redislock.running.run import Run, visibility_timeout

__all__ = ["PutOff", "held_for", "jittered", "late_copy", "put_off", "wait_for"]

logger = logging.getLogger("celery_redislock")

#: What RabbitMQ notes on a message that was dead-lettered or delivered again. Published with it, a message
#: that waits twice in delayed queues is taken for one that goes in circles, and is dropped.
BY_BROKER = re.compile(r"x-(death|first-death-.+|last-death-.+|delivery-count)\Z")

#: Seconds after which a waiting run looks again at first.
FIRST_PAUSE = 0.1


class PutOff(Ignore):  # type: ignore[misc]  # celery-types has it untyped
    """Ends a delivery whose message was published again, unless a run of that message goes on."""


def late_copy(run: Run) -> Ignore:
    """Return what ends a message of which another delivery has run."""
    logger.info("%s was delivered again after it was done: nothing to do", run.lock)
    return Ignore("a copy of this message has run already")


def wait_for(run: Run, hold: Hold | None, held_for: float, *, is_copy: bool = False) -> Exception:
    """Publish a run's message again, to look then whether the lock is free; return what to raise.

    The pause is as long as the lock has been held so far: what is held for milliseconds is looked at soon
    again, and what is held for hours seldom. At least 0.1 s, at most ``lock_retry_delay``, jittered. No
    ``hold``: a copy of this message is ending; ``is_copy``: the holder is a run of this very message.
    """
    why = "a copy of it is ending" if hold is None else f"{hold.name!r} is held by {hold.owner}"
    logger.info("%s waits: %s", run.lock, why)
    # Below zero where the holder's clock is ahead.
    pause = min(max(abs(held_for), FIRST_PAUSE), run.options.lock_retry_delay)
    return put_off(run, jittered(pause), why, is_copy=is_copy)


def put_off(run: Run, delay: float, why: str, *, is_copy: bool = False) -> Exception:
    """Publish a run's message again, to run no sooner than ``delay`` seconds from now; return what to raise.

    ``Ignore`` and never ``Retry``, which would write a state for an id that may be running. The delay is at
    most the broker's visibility timeout, after which Redis would deliver what a worker holds for its ETA a
    second time.

    Returns:
        ``PutOff``, or ``Ignore`` for a copy, whose run goes on; where the broker cannot take the message,
        ``Reject`` with requeue (``acks_late``) or the broker's error, so that the task fails visibly.
    """
    message = run.message
    if message is None:  # its identity travels from now on
        message = Message(run.lock.key, run.identity or new_token(run.lock.owner))
    again = message._replace(was_delivered=is_copy or run.was_delivered)
    try:
        _publish_again(run, again, min(delay, visibility_timeout(run.task.app)))
    except Exception as error:  # noqa: BLE001  whatever keeps the broker from taking it, it must not be lost
        what_follows = "its message is requeued" if run.task.acks_late else "it fails"
        logger.warning("could not publish %s again, so %s: %r", run.lock, what_follows, error)
        if not run.task.acks_late:
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


def _publish_again(run: Run, message: Message, delay: float) -> None:
    task, request = run.task, run.request
    driver = task.app.producer_pool.connections.connection.transport.driver_type
    if detect_quorum_queues(task.app, driver)[0]:
        # There the broker keeps the message, by whole seconds; less is an error (kombu 5.7.0,
        # transport/native_delayed_delivery.py).
        delay = max(1.0, delay)
    headers = {name: value for name, value in (request.headers or {}).items() if not BY_BROKER.match(name)}
    # Celery's own retry leaves these out (5.7.0; the last one only 5.5.0). A message may lack each of them.
    names = ("argsrepr", "kwargsrepr", "ignore_result")
    more: dict[str, Any] = {name: request.__dict__.get(name) for name in names}
    more["serializer"] = run.serializer
    again = task.signature_from_request(
        request,
        countdown=delay,
        headers=message.added_to(headers),
        add_to_parent=False,
        **{name: value for name, value in more.items() if value is not None},
    )
    # Celery's own, and not the task's: the message was accepted or refused when it was first published.
    Task.apply_async(task, again.args, again.kwargs, **again.options)

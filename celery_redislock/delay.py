"""Where a message waits that must run later: in a worker, or in the broker itself.

A worker that receives a message with an ETA keeps it until then, and takes
one more from its queue in its place. From RabbitMQ's quorum queues it can
take no more (a consumer's prefetch is fixed there), so for these Celery lets
the broker keep the message, in a ladder of queues ``celery_delayed_N`` whose
messages expire after 2^N seconds (celery 5.5 to 5.7, ``Celery.send_task``;
kombu, ``transport/native_delayed_delivery.py``). What is published again
here goes the same way.
"""

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from celery.utils.quorum_queues import detect_quorum_queues
from kombu.transport.native_delayed_delivery import (
    MAX_NUMBER_OF_BITS_TO_USE,
    calculate_routing_key,
    level_name,
)

__all__ = ["WRITTEN_BY_BROKER", "is_broadcast", "later", "queue_for_one"]

logger = logging.getLogger("celery_redislock")

#: What RabbitMQ notes on a message that was dead-lettered or delivered again. Published with it, a message
#: is taken for one that goes in circles when it comes to a rung of the ladder again, and is dropped.
WRITTEN_BY_BROKER = re.compile(r"x-(death|first-death-.+|last-death-.+|delivery-count)\Z")

_LADDER = "celery_delayed_"
#: kombu before 5.7 puts a second prefix in front of the first one's.
_PREFIX = re.compile(rf"\A(?:[01]\.){{{MAX_NUMBER_OF_BITS_TO_USE}}}")


def later(app: Any, raw: Mapping[str, Any], delay: float) -> tuple[str, str]:
    """Return the exchange and routing key that bring this message to its queue when the time has come.

    Those it came with, where a worker can keep it without being held up, or where nobody else can: Celery's
    ladder serves no direct exchange. The ladder counts in whole seconds, one at least; never less than
    ``delay``.

    Args:
        app: whose queues and broker are meant.
        raw: the message, as of :func:`~celery_redislock.redeliver.raw_message`.
        delay: seconds from now.
    """
    exchange, routing_key = raw["exchange"], raw["routing_key"]
    if not _is_held_up(app) or not _serves(app, exchange):
        return exchange, routing_key
    seconds = max(1, math.ceil(delay))
    return level_name(MAX_NUMBER_OF_BITS_TO_USE - 1), calculate_routing_key(
        seconds, _PREFIX.sub("", routing_key)
    )


def is_broadcast(app: Any, raw: Mapping[str, Any]) -> bool:
    """Whether every worker gets this message: its exchange is a fanout (``kombu.common.Broadcast``)."""
    return bool(raw) and any(
        queue.exchange is not None
        and queue.exchange.name == raw["exchange"]
        and queue.exchange.type == "fanout"
        for queue in app.amqp.queues.values()
    )


def queue_for_one(app: Any, raw: Mapping[str, Any]) -> Any | None:
    """Return where a broadcast message waits; ``None`` for others, and where the app has no such queue.

    Published again as it came, every worker would get it from each of the others, every time it is put off.
    The app's default queue, if that is one of its queues, else the first of them that is no broadcast.
    """
    if not is_broadcast(app, raw):
        return None
    # Not all of app.amqp.queues: whoever publishes to a name adds a queue that nobody need consume.
    given = [each if isinstance(each, str) else each.name for each in app.conf.task_queues or ()]
    names = sorted(given, key=lambda name: name != app.conf.task_default_queue)
    for queue in (app.amqp.queues[name] for name in names):
        if queue.exchange is not None and queue.exchange.type != "fanout":
            return queue
    logger.warning(
        "a task that was broadcast to %r has to wait for its lock, and is broadcast again: none of the app's "
        "queues is there for one worker each; list one in task_queues, or let the task take no lock",
        raw["exchange"],
    )
    return None


def _is_held_up(app: Any) -> bool:
    """Whether a worker of this app takes no message in the place of one it keeps."""
    driver = app.producer_pool.connections.connection.transport.driver_type
    return bool(detect_quorum_queues(app, driver)[0])


def _serves(app: Any, exchange: str) -> bool:
    """Whether the ladder leads to where this exchange leads."""
    if exchange.startswith(_LADDER):
        return True
    return any(
        queue.exchange.name == exchange and queue.exchange.type != "direct"
        for queue in app.amqp.queues.values()
        if queue.exchange is not None
    )

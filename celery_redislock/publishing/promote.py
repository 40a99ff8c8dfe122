"""Publishing what was promoted, where the lock server is not the broker.

There the script that ends a hold cannot push the next message into its queue. It answers with its text, and
the process that ended the hold publishes it, as it was received, and settles it then. A process that dies in
between leaves it in line: its claim runs out, and a sweep promotes it again.
"""

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kombu.common import maybe_declare
from kombu.compression import compress
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.utils.json import dumps, loads

from celery_redislock.exceptions import RedisLockError
from celery_redislock.log import logger
from celery_redislock.publishing.kombu import leads_to
from celery_redislock.store.store import LockStore, Promotion
from celery_redislock.wire.thread import tell

#: Properties that a worker writes into a message it has in hand (``receiving/in_hand.py``).
OF_A_WORKER = ("redislock_in_hand_of", "redislock_in_hand_since")


#: Seconds a message that was promoted may take until a worker has received it, and renews its claim.
HAND_OFF = 60.0

#: Seconds a message that was promoted may take until it is published.
PUBLISHING = 10.0


#: Properties that are of one delivery, or are given apart.
_OF_A_DELIVERY = (
    "application_headers", "content_type", "content_encoding", "delivery_info", "delivery_tag",
    *OF_A_WORKER,
)  # fmt: skip


def install(app: Any, store: LockStore) -> None:
    """Let this process, and its children, publish what they promote; sends nothing."""
    connection = app.connection_for_write()
    if leads_to(connection, store):
        return  # the scripts push
    host = f"{connection.hostname}:{connection.port}/{connection.virtual_host}"
    store.home = f"{connection.transport_cls}:{host}"
    store.on_promoted = partial(_publish_all, app, store)


def text_of(message: Any, headers: Mapping[str, Any], queue: str | None = None) -> str:
    """Return a message of kombu's as text, with these headers; the rest is as it was received.

    ``queue``: where it goes, ``None`` for the queue it came from.
    """
    body = message.body
    if headers.get("compression"):
        body, _ = compress(body, headers["compression"])  # kombu has decompressed it
    info = message.delivery_info or {}
    properties = dict(message.properties)
    for name in _OF_A_DELIVERY:
        properties.pop(name, None)
    return dumps(  # type: ignore[no-any-return]  # kombu has no types
        {
            "body": base64.b64encode(body if isinstance(body, bytes) else body.encode()).decode(),
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "headers": headers,
            "properties": properties,
            "exchange": "" if queue else info.get("exchange") or "",
            "routing_key": queue or info.get("routing_key") or "",
            "queue": queue,
        }
    )


def message_of(app: Any, text: bytes) -> Message:
    """Return the message of a parked text, kombu's own of a queue or :func:`text_of`'s, as if received."""
    said = {name.replace("-", "_"): part for name, part in loads(text.decode()).items()}
    if "exchange" in said or said["properties"].get("body_encoding") == "base64":
        said["body"] = base64.b64decode(said["body"])
    return Message(**said, accept=prepare_accept_content(app.conf.accept_content))


def _publish_all(app: Any, store: LockStore, promoted: Sequence[Promotion]) -> None:
    for each in promoted:
        tell(publish_promoted, app, store, each)


def publish_promoted(app: Any, store: LockStore, promotion: Promotion) -> bool:
    """Publish and settle; return whether it was published. Never raises an ``Exception``."""
    try:
        _publish(app, promotion.text)
    except Exception as error:  # noqa: BLE001  every broker has errors of its own; a sweep tries again
        line = (
            "could not publish the next in line of %r; it is tried again in %g s: "
            "see that the broker takes messages (%r)"
        )
        logger.warning(line, promotion.name, PUBLISHING, error)
        return False
    try:
        store.settle(promotion.name, promotion.id, HAND_OFF)
    except RedisLockError as error:
        line = "could not settle the next in line of %r, which its start does: %s"
        logger.debug(line, promotion.name, error)
    return True


def _publish(app: Any, text: bytes) -> None:
    """Publish a message again as it was received; the broker confirms it where it can."""
    said = loads(text.decode())
    # RabbitMQ drops what is for a queue that is not there. Declared as Celery does for its own publishes.
    queue = app.amqp.queues[said["queue"]] if said.get("queue") else None
    with app.producer_pool.acquire(block=True) as producer:
        # One at rest may have lost its connection.
        again = producer.connection.ensure(producer, _put, max_retries=3, interval_start=0, interval_step=0.1)
        again(producer, said, queue)


def _put(producer: Any, said: Mapping[str, Any], queue: Any) -> None:
    channel = producer.channel
    if queue is not None:
        maybe_declare(queue, channel)
    properties = dict(said["properties"])
    message = channel.prepare_message(
        base64.b64decode(said["body"]),
        properties.pop("priority", None),
        said["content_type"],
        said["content_encoding"],
        said["headers"],
        properties,
    )
    # RabbitMQ's basic_publish says nothing, whatever the app's confirm_publish is.
    publish = getattr(channel, "basic_publish_confirm", channel.basic_publish)
    publish(message, exchange=said["exchange"], routing_key=said["routing_key"])

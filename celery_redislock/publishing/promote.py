"""Publishing what was promoted, where the lock server is not the broker.

There the script that ends a hold cannot push the next message into its queue. It answers with its text, and
the process that ended the hold publishes it, as it was received, and settles it then. A process that dies in
between leaves it in line: its claim runs out, and a sweep promotes it again.

One that was published and has not started when its hand-off ends is promoted again as well. Then its
publisher looks first whether it is there yet.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from shlex import quote
from typing import Any

from kombu.compression import compress
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.utils.json import dumps, loads

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.options import LockOptions
from celery_redislock.declaring.server import settings_of
from celery_redislock.exceptions import RedisLockError
from celery_redislock.log import command, is_news, logger
from celery_redislock.publishing.kombu import leads_to
from celery_redislock.publishing.turn import hand_off
from celery_redislock.store.store import LockStore, Promotion, owner_name, owner_of
from celery_redislock.wire.thread import tell

#: Properties that a worker writes into a message it has in hand (``receiving/in_hand.py``).
OF_A_WORKER = ("redislock_in_hand_of", "redislock_in_hand_since")

#: Seconds a message that was promoted may take until it is published.
PUBLISHING = 10.0

#: Times that a claim is extended because its message may be in its queue yet, from which on that is told;
#: sends without a start after which the script puts it to the end of its line.
LIES = 3
OFTEN = 3

#: Tells whether a message that was published before may be in its queue, or in the hands of a worker.
MayBeThere = Callable[[Any, Promotion], bool]


#: Properties that are of one delivery, or are given apart.
_OF_A_DELIVERY = (
    "application_headers", "content_type", "content_encoding", "delivery_info", "delivery_tag",
    *OF_A_WORKER,
)  # fmt: skip


def install(app: Any, store: LockStore, may_be_there: MayBeThere | None = None) -> None:
    """Let this process, and its children, publish what they promote; sends nothing.

    ``may_be_there``: asks the broker. Without it what was published before counts as there.
    """
    connection = app.connection_for_write()
    if leads_to(connection, store):
        return  # the scripts push
    host = f"{connection.hostname}:{connection.port}/{connection.virtual_host}"
    prefix = (connection.transport_options or {}).get("global_keyprefix", "")
    store.home = f"{connection.transport_cls}:{host}{prefix and f' {prefix}'}"
    store.on_promoted = partial(_publish_all, app, store, may_be_there)


def text_of(message: Any, headers: Mapping[str, Any]) -> str:
    """Return a message of kombu's as text, with these headers; the rest is as it was received."""
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
            "exchange": info.get("exchange") or "",
            "routing_key": info.get("routing_key") or "",
        }
    )


def message_of(app: Any, text: bytes) -> Message:
    """Return the message of a parked text, kombu's own of a queue or :func:`text_of`'s, as if received."""
    said = {name.replace("-", "_"): part for name, part in loads(text.decode()).items()}
    if "exchange" in said or said["properties"].get("body_encoding") == "base64":
        said["body"] = base64.b64decode(said["body"])
    return Message(**said, accept=prepare_accept_content(app.conf.accept_content))


def _publish_all(
    app: Any, store: LockStore, may_be_there: MayBeThere | None, promoted: Sequence[Promotion]
) -> None:
    for each in promoted:
        tell(publish_promoted, app, store, each, may_be_there)


def publish_promoted(
    app: Any, store: LockStore, promotion: Promotion, may_be_there: MayBeThere | None = None
) -> bool:
    """Publish and settle; return whether it was published. Never raises an ``Exception``."""
    settings = settings_of(app)
    lives_for = hand_off(settings)
    is_there = False
    try:
        if promotion.sends and promotion.kept * lives_for < _queue_ttl(app, promotion):
            is_there = may_be_there is None or may_be_there(app, promotion)
        if is_there and promotion.kept + 1 >= LIES:
            tell_of_lying(promotion.name, promotion.id, "its queue", promotion.kept + 1)
        if not is_there and promotion.sends >= OFTEN and promotion.sends % OFTEN == 0:
            tell_of_loss(promotion.name, promotion.id, "its queue", promotion.sends)
        if not is_there:
            _publish(app, promotion.text)
    except Exception as error:  # noqa: BLE001  every broker has errors of its own; a sweep tries again
        line = (
            "could not publish the next in line of %r; it is tried again in %g s: "
            "see that the broker takes messages (%r)"
        )
        logger.warning(line, promotion.name, PUBLISHING, error)
        return False
    try:
        store.settle(promotion.name, promotion.id, lives_for, sent=not is_there)
    except RedisLockError as error:
        line = "could not settle the next in line of %r, which its start does: %s"
        logger.debug(line, promotion.name, error)
    return not is_there


def _queue_ttl(app: Any, promotion: Promotion) -> float:
    """Return for how long its message may lie in its queue, as far as this process knows its task."""
    with suppress(RedisLockError, LookupError, ValueError):
        options = declaration_of(app.tasks[loads(promotion.text.decode())["headers"]["task"]]).options
        return options.lock_queue_ttl
    return LockOptions().lock_queue_ttl


def tell_of_lying(name: str, id: str, queue: str, times: int) -> None:  # noqa: A002
    """Say that a message was handed its lock, and lies in its queue; once a minute."""
    if not is_news(f"{name} lies"):
        return
    line = (
        "%s was handed %r, and lies in %s since then (looked at %d times): see that a worker consumes that "
        "queue; nobody else may have the lock, unless you drop that message: %s"
    )
    drop = command(f"redislock waiting {quote(name)} --drop {quote(owner_name(owner_of(id)))} --reason TEXT")
    tell(logger.warning, line, owner_of(id), name, queue, times, drop)


def tell_of_loss(name: str, id: str, queue: str, times: int) -> None:  # noqa: A002
    """Say that a message was sent often, and has never started."""
    line = (
        "%s was handed %r and sent to %s %d times, and has not started: it went to the end of its line; see "
        "whether it kills the workers that receive it, or is taken by one that does not know this package"
    )
    tell(logger.warning, line, owner_of(id), name, queue, times)


def _publish(app: Any, text: bytes) -> None:
    """Publish a message again as it was received; the broker confirms it where it can."""
    said = loads(text.decode())
    with app.producer_pool.acquire(block=True) as producer:
        # One at rest may have lost its connection.
        again = producer.connection.ensure(producer, _put, max_retries=3, interval_start=0, interval_step=0.1)
        again(producer, said)


def _put(producer: Any, said: Mapping[str, Any]) -> None:
    channel = producer.channel
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

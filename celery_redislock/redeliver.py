"""Publishing a received message once more, to be delivered later.

Used for whatever must run later than now: a second copy whose first run
lives, a duplicate inside a workflow, the strategy ``retry``. The message
itself is published again, byte for byte, and not one rebuilt from the
request: rebuilding masks nothing that ``argsrepr`` masked and drops
compression and properties (celery 5.7.0, ``Task.signature_from_request``).
"""

import logging
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject

from celery_redislock.delay import WRITTEN_BY_BROKER, later, queue_for_one
from celery_redislock.header import HEADER, Header

if TYPE_CHECKING:
    from celery_redislock.run import Run

__all__ = ["RAW", "next_header", "put_off", "raw_message", "redeliver", "visibility_timeout"]

logger = logging.getLogger("celery_redislock")

#: Where the main process leaves what the child needs: in a copy of the request's message properties,
#: which nothing propagates (a top-level entry would leak into the headers of a retry's message).
RAW = "redislock"

#: Properties that belong to one delivery, or that ``Producer.publish`` is given by name: py-amqp keeps the
#: content type and the headers among them (kombu 5.7.0, virtual/base.py, pyamqp.py).
_NOT_SENT_ON = frozenset(
    {
        "delivery_tag",
        "delivery_info",
        "body_encoding",
        "content_type",
        "content_encoding",
        "application_headers",
        RAW,
    }
)


#: Seconds after which Redis delivers an unacknowledged message again (kombu 5.7.0, transport/redis.py).
DEFAULT_VISIBILITY_TIMEOUT = 3600.0


def visibility_timeout(app: Any) -> float:
    """Return the seconds after which the broker delivers an unacknowledged message again."""
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout") or DEFAULT_VISIBILITY_TIMEOUT)


def put_off(
    run: "Run", delay: float, *, header: Header | None = None, is_copy: bool | None = None
) -> Exception:
    """Publish the message again for later; return what to raise.

    ``Ignore`` and never ``Retry``, which would write a state for an id that may be running.

    Args:
        run: of this delivery.
        delay: seconds; at most the broker's visibility timeout, after which Redis would deliver
            what a worker holds for its ETA a second time.
        header: for the next delivery, where it differs from this one's.
        is_copy: whether another message that lives with this one's id is its first copy, so that the next
            delivery must look for its outcome. ``False``: it is another job, whose outcome is not this
            one's. ``None``: nobody of this id was met.

    Returns:
        ``Ignore``; where the broker cannot take the message, ``Reject`` with requeue
        (``acks_late``) or the broker's error, so that the task fails visibly.
    """
    again = header or next_header(run)
    if header is None and is_copy is None:
        again = again._replace(put_off=again.put_off + 1)
    if is_copy or run.is_redelivered:
        again = again.as_copy()
    app = run.task.app
    try:
        redeliver(app, run.raw, again, delay=min(delay, visibility_timeout(app)))
    except Exception as error:  # noqa: BLE001  whatever keeps the broker from taking it, it must not be lost
        what_follows = "its message goes back to the broker" if run.task.acks_late else "it fails"
        logger.warning("could not put off %s, so %s: %r", run.work, what_follows, error)
        if not run.task.acks_late:
            return error
        rejected: Exception = Reject(error, requeue=True)
        return rejected
    ignored: Exception = Ignore(f"put off for {delay:.1f} s: {run.work.key!r} is held")
    return ignored


def next_header(run: "Run") -> Header:
    """Return the header the next delivery of a message carries: its own, or one for a message without.

    Without one its identity is the task id, and stays so. When it was published is not known: now at the
    latest, so that an outcome from before is an earlier job's of its id. One that was delivered before may
    have left an outcome itself.
    """
    if run.header is not None:
        return run.header
    work, published_at = run.work, 0.0 if run.is_redelivered else time.time()
    return Header(work.key, work.task_id, published_at=published_at, fingerprint=work.arguments)


def raw_message(message: Any) -> dict[str, Any]:
    """Return what is needed to publish a kombu message again; the same objects, so pickle sends them once."""
    info = message.delivery_info or {}
    return {
        "body": message.body,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": message.headers,
        "properties": message.properties,
        "exchange": info.get("exchange") or "",
        "routing_key": info.get("routing_key") or "",
    }


def redeliver(app: Any, raw: Mapping[str, Any], header: Header, *, delay: float) -> None:
    """Publish the message again, to run no sooner than ``delay`` seconds from now.

    It keeps its id, retries, links, stamps, priority and expiry; only the ETA
    and the lock's header are new. The caller acknowledges the old one after.

    Raises:
        kombu.exceptions.OperationalError: the broker cannot be reached
            (retried as ``task_publish_retry_policy`` says).
    """
    headers = {k: v for k, v in raw["headers"].items() if not WRITTEN_BY_BROKER.match(k)}
    headers[HEADER] = header.dumps()
    headers["eta"] = (datetime.now(timezone.utc) + timedelta(seconds=delay)).isoformat()
    properties = {k: v for k, v in raw["properties"].items() if k not in _NOT_SENT_ON and v is not None}
    if "expiration" in properties:
        # Milliseconds as text on the wire, seconds as a number in Producer.publish (kombu 5.7.0).
        properties["expiration"] = float(properties["expiration"]) / 1000
    # kombu has decompressed the body and left the header: asked for again, it compresses again.
    compression = headers.pop("compression", None)
    queue = queue_for_one(app, raw)
    if queue is not None:
        raw = {**raw, "exchange": queue.exchange.name, "routing_key": queue.routing_key}
    exchange, routing_key = later(app, raw, delay)
    with app.producer_or_acquire() as producer:
        producer.publish(
            raw["body"],
            exchange=exchange,
            routing_key=routing_key,
            content_type=raw["content_type"],
            content_encoding=raw["content_encoding"],
            headers=headers,
            compression=compression,
            declare=[queue] if queue is not None else [],
            retry=bool(app.conf.task_publish_retry),
            retry_policy=app.conf.task_publish_retry_policy,
            **properties,
        )

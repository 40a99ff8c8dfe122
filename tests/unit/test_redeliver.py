"""A message published again is the message it was, whatever broker delivered it."""

import inspect
from typing import Any

import amqp
from celery import Celery
from kombu import Producer
from kombu.transport import pyamqp

from celery_redislock.header import Header
from celery_redislock.redeliver import raw_message, redeliver


class _Producer:
    """A producer that makes the message py-amqp would send, and keeps it."""

    sent: amqp.Message

    def __enter__(self) -> "_Producer":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def publish(self, body: Any, **given: Any) -> None:
        own = inspect.signature(Producer.publish).parameters
        named = {
            name: given.get(name) for name in ("priority", "content_type", "content_encoding", "headers")
        }
        properties = {name: value for name, value in given.items() if name not in own}
        properties["delivery_mode"] = given.get("delivery_mode")
        self.sent = pyamqp.Channel.prepare_message(None, body, **named, properties=properties)


def test_a_message_of_rabbitmq_can_be_published_again() -> None:
    """Law 2: py-amqp repeats content type and headers among the properties; they must not be given twice."""
    producer = _Producer()
    app = Celery("shop", broker="amqp://localhost//", set_as_current=False)
    app.producer_or_acquire = lambda: producer
    delivered = amqp.Message(
        b"[[], {}, {}]",
        content_type="application/json",
        content_encoding="utf-8",
        application_headers={"id": "a", "task": "shop.sell", "x-death": [{"queue": "celery_delayed_0"}]},
        priority=4,
        delivery_mode=2,
        correlation_id="a",
        reply_to="r",
    )
    delivered.delivery_info = {"exchange": "", "routing_key": "celery", "redelivered": False}

    redeliver(app, raw_message(pyamqp.Message(delivered)), Header("key", "a/token"), delay=1.0)

    sent = producer.sent.properties
    assert producer.sent.body == delivered.body
    assert sent["application_headers"]["task"] == "shop.sell"
    assert "x-death" not in sent["application_headers"]
    assert Header.loads(sent["application_headers"]["redislock"]) == Header("key", "a/token")
    same = ("content_type", "content_encoding", "priority", "delivery_mode", "correlation_id", "reply_to")
    assert {name: sent[name] for name in same} == {name: delivered.properties[name] for name in same}

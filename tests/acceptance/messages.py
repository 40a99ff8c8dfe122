"""A message in hand: to deliver it twice, or later, as a broker may."""

import json
import uuid
from typing import Any

import amqp

from tests.acceptance.harness import Project


def captured(project: Project, *, if_any: bool = False) -> dict[str, Any]:
    """Return the message that was published to the project's queue aside; {} for none."""
    message = _from_rabbitmq(project) if project.is_on_rabbitmq else _from_redis(project)
    assert message or if_any, "no message is aside"
    return message


def deliver(project: Project, message: dict[str, Any], *, again: bool = False) -> None:
    """Put one more copy of a message into the queue, as kombu's Redis transport restores one.

    ``again``: whether it says that it was delivered before; on RabbitMQ only the broker can say so.
    """
    if project.is_on_rabbitmq:
        assert not again
        copy = amqp.Message(message["body"], **message["properties"])
        with project.app.connection_for_write() as connection:
            connection.default_channel.basic_publish(copy, routing_key=project.plan["prefix"])
        return
    flag = {"redelivered": True} if again else {}
    properties = {
        **message["properties"],
        "delivery_tag": str(uuid.uuid4()),
        "delivery_info": {"exchange": "", "routing_key": "celery", **flag},
    }
    copy = {**message, "headers": {**message["headers"], **flag}, "properties": properties}
    project.redis.lpush(f"{project.plan['prefix']}:celery", json.dumps(copy))


def _from_redis(project: Project) -> dict[str, Any]:
    text: Any = project.redis.lpop(f"{project.plan['prefix']}:{project.aside}")
    message: dict[str, Any] = json.loads(text) if text is not None else {}
    return message


def _from_rabbitmq(project: Project) -> dict[str, Any]:
    with project.app.connection_for_read() as connection:
        queue = project.app.amqp.queues[project.aside](connection.default_channel)
        queue.declare()  # who looks may come before who publishes
        message = queue.get(no_ack=True)
    if message is None:
        return {}
    return {"headers": message.headers, "body": message.body, "properties": message.properties}

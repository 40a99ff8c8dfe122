"""A message in hand: to deliver it twice, or later, as a broker may."""

import json
import uuid
from typing import Any

from tests.acceptance.harness import Project


def captured(project: Project, *, if_any: bool = False) -> dict[str, Any]:
    """Return the message that was published to the queue ``aside``, where no worker looks; {} for none."""
    text: Any = project.redis.lpop(f"{project.plan['prefix']}:aside")
    if text is None and if_any:
        return {}
    message: dict[str, Any] = json.loads(text)
    return message


def deliver(project: Project, message: dict[str, Any], *, again: bool = False) -> None:
    """Put one more copy of a message into the queue, as kombu's Redis transport restores one."""
    flag = {"redelivered": True} if again else {}
    properties = {
        **message["properties"],
        "delivery_tag": str(uuid.uuid4()),
        "delivery_info": {"exchange": "", "routing_key": "celery", **flag},
    }
    copy = {**message, "headers": {**message["headers"], **flag}, "properties": properties}
    project.redis.lpush(f"{project.plan['prefix']}:celery", json.dumps(copy))

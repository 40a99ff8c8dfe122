"""What leaves a line equals what was sent, after a worker has had it in hand: body, headers, properties."""

import base64
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from celery_redislock.locks import Lock
from celery_redislock.publishing import promote
from celery_redislock.publishing.message import HEADER
from tests.acceptance.brokers import Site
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE

#: Properties of one delivery, or of the worker that has it in hand.
_OF_A_DELIVERY = {"delivery_tag", "delivery_info", "application_headers"}


def calls_of(project: Project) -> Mapping[str, Mapping[str, Any]]:
    """Every way in which a message may differ from a plain one, as options of a call, by a name."""
    then = project.collect.si(1)
    return {
        "plain": {},
        "compressed": {"compression": "zlib"},
        "pickled": {"serializer": "pickle"},
        "urgent": {"priority": 6},
        "user": {"headers": {"hostname": "theirs", "args": "theirs", "x": [1, {"y": None}]}},
        "expiring": {"expires": 600, "time_limit": 5, "shadow": "another name"},
        "linked": {"link": then, "link_error": then, "reply_to": "somebody"},
        "stamped": {"root_id": "r", "parent_id": "p", "stamped_headers": ["stamp"], "stamp": ["s"]},
        "member": {"chord": then, "group_id": "g", "group_index": 1},
        "later": {"countdown": 0.5},
    }


def queued(project: Project) -> dict[str, Any]:
    """What the messages in the project's queue say, by task id; they stay there."""
    found = {}
    with project.app.connection_for_read() as connection:
        channel = connection.default_channel
        while (message := channel.basic_get(project.plan["prefix"])) is not None:
            info = message.delivery_info
            found[message.headers["id"]] = {
                "body": base64.b64encode(_bytes(message.body)),
                "headers": {name: each for name, each in message.headers.items() if name != HEADER},
                "properties": {
                    name: each for name, each in message.properties.items() if name not in _OF_A_DELIVERY
                },
                "content": (message.content_type, message.content_encoding),
                "to": (info["exchange"], info["routing_key"]),
            }
    return found  # with the channel they are closed, they are in their queue again


def _bytes(body: str | bytes) -> bytes:
    return body if isinstance(body, bytes) else body.encode()


@pytest.mark.slow
@pytest.mark.law(2)
def test_what_leaves_a_line_is_what_was_sent(new_site: Callable[..., Site], key: str) -> None:
    """Each is refused its lock in a child, is parked, and leaves when no worker is there.

    On RabbitMQ; a Redis broker's messages: ``test_parked_messages.py``.
    """
    project = new_site("classic").project
    task = project.while_executing
    store = task.lock_for(key)._store
    promote.install(project.app, store)
    calls = calls_of(project)
    with ExitStack() as held:
        for name in calls:
            held.enter_context(Lock(store, task.lock_for(f"{key}-{name}").key))
        ids = {name: task.apply_async((f"{key}-{name}",), **call).id for name, call in calls.items()}
        before = queued(project)
        assert sorted(before) == sorted(ids.values())
        worker = project.start_worker("prefork", concurrency=4)
        handles = [task.lock_for(f"{key}-{name}") for name in calls]
        wait_until(lambda: all(handle.waiting() for handle in handles), PATIENCE, "all are parked")
        worker.signal(signal.SIGKILL)
        worker.process.wait(PATIENCE)
    after = queued(project)

    for name, task_id in ids.items():
        assert after.pop(task_id) == before[task_id], name
    assert not after

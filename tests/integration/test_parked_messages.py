"""What leaves a line is what came: the message as it was received, with our header replaced."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Queue

from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks import MemoryStore
from celery_redislock.publishing import promote
from celery_redislock.publishing.message import HEADER
from celery_redislock.receiving.parking import _as_pushed
from tests.unit.shop import body


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A broker."""
    with EmbeddedServer() as server:
        yield server


#: Every way in which a message may differ from a plain one.
CALLS: list[dict[str, Any]] = [
    {},
    {"compression": "zlib"},
    {"serializer": "pickle"},
    {"priority": 6},
    {"headers": {"hostname": "theirs", "args": "theirs", "x": [1, {"y": None}]}},
    {"expires": 600, "time_limit": 5, "shadow": "another name"},
    {"link": "collect", "link_error": "collect", "reply_to": "somebody"},
    {"group_id": "g", "root_id": "r", "parent_id": "p", "stamped_headers": ["stamp"], "stamp": ["s"]},
    {"chord": "collect", "group_id": "g", "group_index": 1},
    {"countdown": 600},
]


@contextmanager
def received(app: Celery, url: str, call: dict[str, Any]) -> Iterator[Any]:
    """Publish a call of a task, and receive its message as a worker's consumer does, while the block runs."""
    task = app.task(body, base=SingletonTask, lock="while_executing", shared=False, lazy=False)
    links = {name: task.si(1) for name in ("link", "link_error", "chord") if name in call}
    task.apply_async((7,), **{**call, **links})
    found: list[Any] = []
    connection = Connection(url)
    consumer = connection.Consumer(
        [Queue(app.main, routing_key=app.main, exchange="")],
        on_message=found.append,
        accept=["json", "pickle"],
        no_ack=False,
    )
    with connection, consumer:
        while not found:
            connection.drain_events(timeout=10)
        yield found[0]


def without_ours(raw: dict[str, Any]) -> dict[str, Any]:
    """A message of kombu's, without what may differ: our header, and the tag of its delivery."""
    headers = {name: value for name, value in raw["headers"].items() if name != HEADER}
    properties = {name: value for name, value in raw["properties"].items() if name != "delivery_tag"}
    return {**raw, "headers": headers, "properties": properties}


@pytest.mark.parametrize(
    ("call", "encoding"), [(CALLS[0], None), *((call, "base64") for call in CALLS)], ids=repr
)
def test_what_leaves_a_line_is_what_came(
    server: EmbeddedServer, call: dict[str, Any], encoding: str | None
) -> None:
    """Pushed as kombu has it, under a tag of its own; published through kombu; read by whoever drops it.

    By its old tag the present delivery is acknowledged; that must not acknowledge the one to come.
    """
    app = Celery(f"parked-{secrets.token_hex(4)}", broker=server.url, set_as_current=False)
    app.conf.update(
        task_default_queue=app.main,
        broker_transport_options={"body_encoding": encoding},
        accept_content=["json", "pickle"],
    )
    with received(app, server.url, call) as message:
        headers = {**message.headers, HEADER: "ours"}
        before = json.loads(json.dumps(message._raw))
        pushed = _as_pushed(message, headers)
        given = promote.text_of(message, headers)
        message.ack()
        assert pushed is not None
        queue, text, (_, _, tag) = pushed
        for each in (text, given):
            again = promote.message_of(app, each.encode())
            assert (again.payload, again.headers) == (message.payload, headers)
    promote._publish(app, given.encode())
    with app.connection_for_read() as connection:
        published = connection.default_channel.basic_get(app.main, no_ack=True)

    after = json.loads(text)
    assert without_ours(after) == without_ours(before)
    assert after["headers"][HEADER] == "ours"
    assert tag == before["properties"]["delivery_tag"] != after["properties"]["delivery_tag"]
    assert queue == app.main + (f"\x06\x16{call['priority']}" if "priority" in call else "")
    if encoding:
        assert without_ours(json.loads(json.dumps(published._raw))) == without_ours(before)


def test_where_the_broker_is_another_server_promoted_messages_have_a_home(server: EmbeddedServer) -> None:
    """Else nobody would publish them."""
    app = Celery("home", broker=server.url, set_as_current=False)
    store = MemoryStore()
    promote.install(app, store)
    assert store.home
    assert store.on_promoted is not None

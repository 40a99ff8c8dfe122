"""Messages and keys that nobody honest writes."""

import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

#: Deeper than a recursive reader of JSON gets, and shorter than a frame of RabbitMQ (128 KiB).
_DEEP = "[" * 50_000 + "]" * 50_000


def _header(**fields: Any) -> Callable[[str, str, str], str]:
    """Return what makes a header of a message's own id, somebody's key and token."""

    def make(task_id: str, key: str, token: str) -> str:
        known = {"OWN": f"{task_id}/x", "THEIRS": token, "KEY": key}
        said = {
            name: known.get(value, value) if isinstance(value, str) else value
            for name, value in fields.items()
        }
        return json.dumps({"v": 1, "k": "forged", "t": f"{task_id}/x", **said})

    return make


#: Texts of the header ``redislock``, or what is there instead, by name.
HEADERS: Mapping[str, Callable[[str, str, str], Any]] = {
    "no JSON": lambda *_: "{",
    "no text": lambda *_: {"k": ["x"], "t": 1},
    "deep": lambda *_: _DEEP,
    "wrong types": _header(k=["x"], t={}, c="yes", o=7),
    "wrong options": _header(c=1, o={"lock": [], "lock_ttl": "x", "on_conflict": {"x": {}}, "nonsense": 1}),
    "huge numbers": _header(c=1, o={"lock_ttl": 1e308, "lock_queue_ttl": 10**400, "lock_period": -1}),
    "not a number": _header(c=1, o={"lock_ttl": float("nan"), "lock_queue_ttl": float("inf")}),
    "tiny times": _header(c=1, o={"lock_ttl": 0.1, "lock_queue_ttl": 0.001}),
    "lone surrogates": _header(k="\ud800", c=1, o={"lock_queue_ttl": 0.001}),
    "lone surrogates in a key": _header(k="\ud800"),
    "lone surrogates in a token": lambda task_id, *_: json.dumps(
        {"v": 1, "k": "x", "t": f"{task_id}/\ud800", "c": 1}
    ),
    "zero bytes": _header(k="a\0b", t="OWN", c=1),
    "long": _header(k="x" * 100_000, c=1),
    "braces": _header(k="}{a}:lock", c=1),
    "somebody's token": _header(k="KEY", t="THEIRS", c=1, r=1),
    "somebody's key": _header(k="KEY", c=1, o={"lock_ttl": 0.1, "lock_queue_ttl": 0.001}),
    "somebody's key as a period": _header(
        k="KEY", c=1, i=1, w=1, r=1, o={"lock": "until_expired", "lock_period": 0.1}
    ),
}

#: Bodies that a worker cannot read: content type, encoding, bytes, by name. Not JSON
#: without arguments: that ends any worker (celery 5.7.0, worker/request.py).
BODIES: Mapping[str, tuple[str, str, bytes]] = {
    "no JSON": ("application/json", "utf-8", b'{"x'),
    "no UTF-8": ("application/json", "utf-8", b"\xff\xfe["),
    "deep": ("application/json", "utf-8", _DEEP.encode()),
    "pickle": ("application/x-python-serialize", "binary", b"cnowhere\nNothing\n."),
    "unknown": ("application/x-nobody", "utf-8", b"x"),
}

#: What another program may have written in a lock's place, by name. It ends by itself, within two seconds.
VALUES: Mapping[str, bytes] = {
    "no token": b"",
    "no JSON": b"tok\0{",
    "a text for a time": b'tok\0{"since":"x","id":7,"state":[]}',
    "deep": b"tok\0" + _DEEP.encode(),
    "huge numbers": b'tok\0{"since":1e400,"state":"running","id":"x"}',
    "bytes": b"\xff\xfe\0\xff",
    "control characters": b"\x1b[2J\n\0{}",
}


def forge_message(app: Any, task: str, args: list[Any], header: str, key: str, token: str) -> str:
    """Publish a call with a forged header; return its task id."""
    task_id = f"forged-{uuid4()}"
    headers = {"redislock": HEADERS[header](task_id, key, token)}
    # A new connection: one that is kept may have been cut.
    with app.connection_for_write() as connection:
        app.send_task(task, args, task_id=task_id, headers=headers, connection=connection)
    return task_id


def forge_body(app: Any, task: str, body: str, task_id: str) -> None:
    """Publish a message that cannot be read, with a claim in its header."""
    content_type, encoding, text = BODIES[body]
    headers = {"lang": "py", "task": task, "id": task_id, "retries": 0, "timelimit": [None, None]}
    headers["redislock"] = json.dumps({"v": 1, "k": f"forged:{task_id}", "t": f"{task_id}/x", "c": 1})
    queue = app.amqp.queues[app.conf.task_default_queue]
    with app.connection_for_write() as connection:
        app.amqp.Producer(connection).publish(
            text, content_type=content_type, content_encoding=encoding, headers=headers, declare=[queue],
            exchange=queue.exchange, routing_key=queue.routing_key, correlation_id=task_id,
        )  # fmt: skip

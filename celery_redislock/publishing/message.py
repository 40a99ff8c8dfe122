"""What a message carries about its lock: one JSON header named ``redislock``.

The key travels, so the worker does not compute it again: a deploy that changes ``lock_key`` affects new
messages only, and publisher and worker cannot disagree. The token is the message's identity, new for
every publish: a second copy of a message has the same one, publishing a task id again has another.

::

    {"v": 1, "k": key, "t": token, "c": claimed, "w": it must run, "o": {per-call options},
     "p": its key was given per call, "i": its claim stands for a period, "r": it was delivered before,
     "b": a tick of beat's, "q": its claim is kept beside the run's lock,
     "l": since when it waits in line, "s": it was said that it waits,
     "n": when it was called, where only the newest of its task is to wait,
     "a": token under which the period of its job was opened}
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from json.scanner import make_scanner
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

import celery.app.task

from celery_redislock.store.store import owner_name

#: The message header's name.
HEADER = "redislock"

#: The header of what beat sends: the tick, ``APP/ENTRY@MOMENT``, and which of its messages where there may be
#: several. A tick sent twice is the same message.
TICK = "redislock_tick"

_VERSION = 1

#: Made once: json.dumps and json.loads do more for each call than the C code below them.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]  # the stub takes a scanner
_quoted = json.encoder.encode_basestring_ascii

#: Where the key stands in a header, and what comes after it.
_BEFORE_KEY = len(f'{{"v":{_VERSION},"k":"')
_AFTER_KEY = '","t":"'

#: What is true of a message, by its letter in the header.
_FLAGS = {"c": "claimed", "w": "must_run", "p": "has_own_key", "i": "stands_for_period", "r": "was_delivered",
          "b": "is_tick", "q": "claimed_beside", "s": "was_told"}  # fmt: skip

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

#: Since Celery 5.7 a message may want a result of a task that else ignores it.
_MESSAGE_DECIDES = hasattr(celery.app.task, "get_actual_ignore_result")


class Message(NamedTuple):
    """What a message carries about its lock.

    Attributes:
        key: the lock's name; ``None`` where locking is off for this message.
        token: the message's identity, and the claim's token where there is a claim.
        claimed: the publisher took a claim under ``token``, or a run left one for it: the message was
            accepted, so it is never a duplicate. So is one that was parked when it was published, unless a
            period is to be met.
        must_run: part of a workflow, a retry, a replacement, a link: it waits where others are skipped.
        options: per-call options that travel.
        has_own_key: ``lock_key`` was given per call, so the worker cannot compute the key.
        stands_for_period: its claim is the period, which neither the start nor the end of its run releases,
            whatever the scope of its task is by now.
        is_tick: sent by a beat, which may die before it has said so: then another one sends it again.
        opened_by: token under which the period of its job was opened, where a failure ends that; ``None``
            elsewhere, and where it is ``token``.
        was_delivered: a copy of it was delivered before: the broker's ``redelivered`` flag does not
            survive a worker that publishes the message again to let it wait.
        claimed_beside: its claim is kept under the key's second name, beside the lock of a run.
        parked_at: when it was put into a line, in seconds since the epoch; ``None``: never. It holds under
            ``token`` the lock that it waited for, as long as its turn lasts. Of a retry that has left
            its lock to others: when it is due.
        was_told: a line of the log at INFO has said that it waits; further ones are for DEBUG.
        number: when it was called (:class:`celery_redislock.store.store.Merge`), where it coalesces and was
            refused a claim; ``None`` elsewhere.
    """

    key: str | None
    token: str
    claimed: bool = False
    must_run: bool = False
    options: Mapping[str, Any] = NO_OPTIONS
    has_own_key: bool = False
    stands_for_period: bool = False
    is_tick: bool = False
    opened_by: str | None = None
    was_delivered: bool = False
    claimed_beside: bool = False
    parked_at: float | None = None
    was_told: bool = False
    number: int | None = None

    def dumps(self) -> str:
        """Return the header's text."""
        key = "null" if self.key is None else _quoted(self.key)
        text = f'{{"v":{_VERSION},"k":{key},"t":{_quoted(self.token)}'
        if self[2:] == _USUAL:
            return text + ',"c":1}'
        if self.options:
            text += f',"o":{_encode(dict(self.options))}'
        if self.opened_by:
            text += f',"a":{_quoted(self.opened_by)}'
        if self.parked_at is not None:
            text += f',"l":{self.parked_at:.3f}'
        if self.number is not None:
            text += f',"n":{self.number}'
        return text + "".join(f',"{one}":1' for one, flag in _FLAGS.items() if getattr(self, flag)) + "}"

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None, task_id: str) -> "Message | None":
        """Return what the headers of a message say, ``None`` if there is nothing of this message's own.

        A body that passes its own message's headers to another task lends no hold to it. Anything but a
        mapping, as a test may give, has no headers.
        """
        try:
            message = cls.loads(headers.get(HEADER))  # type: ignore[union-attr]  # see below
        except AttributeError:
            return None  # what has no such method has no header
        if message is None or (owner := message.token.rpartition("/")[0]) == task_id:
            return message
        # A message that came without a header and had to wait has its task id as token, slashes and all.
        return message if {message.token, owner} & {task_id, owner_name(task_id)} else None

    @classmethod
    def loads(cls, text: object) -> "Message | None":
        """Read a header; ``None`` for none, a foreign one, or one of a version not known here.

        A message whose header cannot be read is treated as one without: the worker computes the key.
        Nothing is lost, and nothing raised.
        """
        if not isinstance(text, str):
            return None
        try:
            data, end = _decode(text, 0)
            key, token = data["k"], data["t"]
            if data["v"] != _VERSION or end != len(text):
                return None
            # No text fails here, and so does a lone surrogate, which would fail each renewal it is part of.
            (token if key is None else key + token).encode()
            if len(data) == 4 and "c" in data:
                return cls(key, token, bool(data["c"]))
            said: dict[str, Any] = {_FLAGS[one]: bool(data[one]) for one in _FLAGS.keys() & data.keys()}
            if "o" in data:
                said["options"] = dict(data["o"])
            if "a" in data:
                said["opened_by"] = data["a"].encode().decode()
            if "l" in data:
                said["parked_at"] = float(data["l"])
            if "n" in data:
                said["number"] = int(data["n"])
            return cls(key, token, **said)
        except (AttributeError, KeyError, TypeError, ValueError, StopIteration, RecursionError):
            return None

    def added_to(self, headers: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return these headers with this one among them."""
        return {**headers, HEADER: self.dumps()} if headers else {HEADER: self.dumps()}


#: What follows key and token in most messages: a claim, and nothing else.
_USUAL = Message("", "", claimed=True)[2:]


def key_in(header: str) -> str:
    """Return the key that a header names, without reading the rest of it: each message received is asked."""
    key = header[_BEFORE_KEY : header.find(_AFTER_KEY, _BEFORE_KEY)]
    if "\\" in key:
        with suppress(ValueError):  # no header of ours
            return str(json.loads(f'"{key}"'))
    return key


def identity_of(task_id: str, properties: Mapping[str, Any] | None) -> str | None:
    """Return the identity of a message without a header: the same for its copies, another for each publish.

    It is made of the delivery tag, where kombu makes one for each publish (Redis, SQS and other virtual
    transports; 5.7.0, transport/virtual/base.py): that is restored with the message. RabbitMQ numbers
    deliveries instead: there such a message has no identity, ``None``.
    """
    tag = (properties or {}).get("delivery_tag")
    return f"{owner_name(task_id)}/{tag}" if isinstance(tag, str) else None


def tick_id(tick: str) -> str:
    """Return the task id of a tick's message: the same whichever beat sends it, and whenever."""
    return str(uuid5(NAMESPACE_OID, f"{TICK} {tick}"))


def tick_token(headers: Any, task_id: str) -> str | None:
    """Return the identity of a tick's message; ``None`` for any other, also with headers copied from one."""
    tick = headers.get(TICK) if headers else None
    return f"{task_id}/{task_id[-12:]}" if isinstance(tick, str) and task_id == tick_id(tick) else None


def is_result_ignored(task: Any, asked: bool | None) -> bool:
    """Whether the result of a message is ignored: as the message asks itself, or else as its task does.

    Before Celery 5.7 a task that ignores results does so whatever its message says, which is false by default
    (5.5.0, ``app/trace.py``, ``build_tracer``).
    """
    if asked is None or not (_MESSAGE_DECIDES or asked):
        asked = task.ignore_result
    return bool(asked)

"""The passage of a claimed call through Celery and kombu, and when its claim is asked for.

Before the message, while that is built, or with it. With it where the lock server is the broker: one script
takes the claim and puts the message into its queue. Its place is kombu's ``LPUSH`` (5.5.2 to 5.7.0,
``transport/redis.py``: ``Channel._put`` calls ``lpush(key, text)`` of the client that ``conn_or_acquire``
lends), so that queues, priorities, prefixes, declarations and signals stay Celery's and kombu's own.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from inspect import signature
from typing import Any

from celery import Celery
from celery.signals import before_task_publish
from kombu.exceptions import LimitExceeded

from celery_redislock.exceptions import RedisLockError
from celery_redislock.locks.store import LARGEST, LockStore
from celery_redislock.locks.tasklock import Claim
from celery_redislock.publishing.call import Call
from celery_redislock.publishing.message import HEADER

__all__ = ["send"]

logger = logging.getLogger("celery_redislock")

#: What makes this process ask first, so that no message is made in vain: the names refused last, and the
#: tasks whose last call was refused.
MOST_REFUSED = 1000
_refused: set[str] = set()

#: The class whose ``_put`` is known.
_CHANNEL = ("kombu.transport.redis", "Channel")

#: Where ``Producer._publish`` is given these, itself not counted.
_HEADERS, _EXCHANGE = 4, 9


class _Stopped(Exception):  # noqa: N818  no error
    """The message must not leave. None of those kombu tries again for, on another channel."""


def send(call: Call, claim: Claim) -> Any:
    """Ask for a call's claim and publish it; where it is refused, publish nothing and return ``None``."""
    options, key, app, name = call.options, call.lock.key, call.task.app, call.lock.task
    # Receivers would be told of a publish that may not happen; the others have a way of their own to publish.
    is_other = before_task_publish.receivers or "connection" in options or "publisher" in options
    is_celerys = getattr(app.send_task, "__func__", None) is Celery.send_task
    # A workflow's member that is refused is published all the same, without a claim.
    is_other = is_other or call.must_run or not is_celerys
    if is_other or name in _refused or key in _refused:
        claim.ask()
    else:
        given, stopped = options.get("producer"), None
        with _acquire(app) if given is None else nullcontext(given) as producer:
            options["producer"] = producer
            try:
                return _send_through(producer, call, claim)
            except _Stopped:
                pass
            except RedisLockError as error:
                stopped = error  # not raised here: it is no reason to open another connection to the broker
            finally:
                options["producer"] = given
        if stopped is not None:
            raise stopped
    if claim.refused_by is None:
        _refused.difference_update((key, name))
        return call.send(claimed=claim.is_granted)
    if len(_refused) > MOST_REFUSED:
        _refused.clear()
    _refused.update((key, name))
    return None


def _acquire(app: Any) -> Any:
    """Return a producer of the pool, as a context. Only where none is free, ask how long to wait for one."""
    try:
        return app.producer_pool.acquire()
    except LimitExceeded:
        return app.producer_or_acquire()


def _send_through(producer: Any, call: Call, claim: Claim) -> Any:
    """Publish a call through this producer, with its claim if possible; ``_Stopped``: nothing has left."""
    store, connection = call.lock.store, producer.connection
    known = connection.__dict__.get("_redislock")
    if known is None or known[0] is not store:
        known = connection._redislock = store, _leads_to(connection, store)
    is_one_step = known[1]
    # A server that is away is waited for much longer by kombu and by the result backend: it is asked first.
    if not _is_kombus(getattr(producer.__class__, "_publish", None)):
        claim.ask()
    elif not store.is_open or (is_one_step and connection._default_channel is None):
        claim.ask(if_held=is_one_step)
    elif not is_one_step:
        claim.begin()  # the message is built meanwhile
    if not claim.was_asked:
        publish = _Passage(claim, producer, is_one_step=is_one_step).publish
        if producer.__dict__.setdefault("_publish", publish) is not publish:
            claim.ask()  # another publish is on its way through it
    if claim.refused_by is not None:
        raise _Stopped
    if claim.was_asked:
        return call.send(claimed=claim.is_granted)
    try:
        result = call.send(claimed=True)
    except (_Stopped, RedisLockError):
        consumer = getattr(call.task.backend, "result_consumer", None)
        if consumer is not None and not call.ignores_result:
            consumer.cancel_for(call.task_id)  # Celery subscribes before it publishes
        raise
    finally:
        del producer._publish
    if not claim.was_asked:  # a ``send_task`` of somebody else's has published it in a way of its own
        claim.required = False
        claim.ask()
        claim.refused_by = None
    return result


class _Passage:
    """One publish through kombu: stands in for methods of its producer and its channel, for its own message.

    Others may pass meanwhile: a producer that the caller gave may be used by whatever this publish calls. For
    kombu's ``_put`` it is a channel of which all is kombu's but the client.
    """

    def __init__(self, claim: Claim, producer: Any, *, is_one_step: bool) -> None:
        self._claim, self._producer, self._publish = claim, producer, producer._publish
        self._is_one_step, self._nonce = is_one_step, claim.token.rpartition("/")[2]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def publish(self, *args: Any) -> Any:
        """In place of ``Producer._publish``; kombu calls it again where the broker was away."""
        if self._claim.is_granted or not self._is_ours(args[_HEADERS]):
            return self._publish(*args)
        if self._is_one_step and not args[_EXCHANGE]:  # a named exchange leads to any number of queues
            self._channel, put = self._producer.channel, self.put
            # Unless another publish is on its way through it: producers may share a channel.
            if self._channel.__dict__.setdefault("_put", put) is put:
                try:
                    return self._publish(*args)
                finally:
                    del self._channel._put
        self._ask()
        return self._publish(*args)

    def put(self, queue: str, message: Any, **kwargs: Any) -> None:
        """In place of ``Channel._put``."""
        channel: Any = self._channel
        is_ours = self._is_ours(message["headers"])
        if is_ours and (queue in getattr(channel, "_expires", ()) or kwargs.get("_publish_batch")):
            self._ask()
            is_ours = False
        type(channel)._put(self if is_ours else channel, queue, message, **kwargs)

    @contextmanager
    def conn_or_acquire(self) -> Iterator["_Passage"]:
        """In place of the channel's."""
        yield self

    def lpush(self, key: str, text: str) -> None:
        """In place of redis-py's, for the message."""
        channel, claim = self._channel, self._claim
        is_small = len(text) <= LARGEST
        if is_small and claim.push(f"{channel.global_keyprefix}{key}", text):
            if not claim.is_granted:
                raise _Stopped
            return
        self._ask()
        if is_small:
            logger.debug("the lock server takes no messages: claims are asked for before them")
            self._producer.connection._redislock = claim.lock.store, False
        with channel.conn_or_acquire() as client:
            client.lpush(key, text)

    def _is_ours(self, headers: Mapping[str, Any]) -> bool:
        return self._nonce in headers.get(HEADER, "")  # the whole token may be escaped there

    def _ask(self) -> None:
        self._claim.ask()
        if not self._claim.is_granted:
            raise _Stopped


@cache
def _is_kombus(publish: Callable[..., Any] | None) -> bool:
    """Whether a producer's ``_publish`` is there, and is told these two where they are expected."""
    names = list(signature(publish).parameters) if publish is not None else []
    return names[_HEADERS + 1 :: _EXCHANGE - _HEADERS][:2] == ["headers", "exchange"]


def _leads_to(connection: Any, store: LockStore) -> bool:
    """Whether a connection is kombu's to Redis, as it is known here, and leads to where the locks are."""
    channel_class: Any = getattr(connection.get_transport_cls(), "Channel", object)  # AMQP's has none
    # Not Sentinel's, whose primary may move, and none of several, between which kombu moves.
    if (channel_class.__module__, channel_class.__name__) != _CHANNEL or len(connection.alt) > 1:
        return False
    channel = channel_class.__new__(channel_class)  # not opened: nothing is sent
    channel.connection, channel._expires = connection.transport, {}
    came: list[tuple[object, ...]] = []
    trial: Any = _Passage.__new__(_Passage)
    trial._channel, trial.lpush = channel, lambda *words: came.append(words)
    try:
        channel_class._put(trial, "queue", {"properties": {}})
        address = channel._connparams()
    except Exception:  # noqa: BLE001  whatever it may be
        came = []
    if [tuple(map(type, words)) for words in came] == [(str, str)]:
        return store.reaches(address)
    logger.debug("kombu's %r is not as it is known here: claims are asked for before messages", channel_class)
    return False

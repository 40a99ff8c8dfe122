"""Kombu's seam: how a call's message leaves with its claim.

Where the lock server is the broker, one script takes the claim and puts the message into its queue. Its place
is kombu's ``LPUSH``: ``Channel._put`` calls ``lpush(key, text)`` of the client that its channel lends it
(5.5.2 to 5.7.0, ``transport/redis.py``). Four objects stand in for the length of one publish::

    Producer._publish   _Publish   is this the call's message? Then one step if possible, else the claim first
    Channel._put        _Put       the same question, as channels are shared; and can its queue have one step?
    that channel        _Channel   as ``_put`` sees it: kombu's own, but it lends another client
    its client          _Client    takes the claim and pushes

So queues, priorities, prefixes, declarations and signals stay Celery's and kombu's own.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from types import SimpleNamespace
from typing import Any, NamedTuple

from celery import Celery
from celery.signals import before_task_publish
from kombu.exceptions import LimitExceeded

from celery_redislock.exceptions import RedisLockError
from celery_redislock.log import logger
from celery_redislock.publishing.claim import (
    FREE,
    GRANTED,
    HELD,
    LEFT,
    OPEN,
    PUBLISHED,
    REFUSED,
    WITHOUT,
    Claim,
)
from celery_redislock.publishing.message import HEADER
from celery_redislock.store.store import LARGEST, LockStore

#: The class whose ``_put`` is known.
_CHANNEL = ("kombu.transport.redis", "Channel")

#: Where ``Producer._publish`` is given these, itself not counted (5.5.2 to 5.7.0, ``messaging.py``).
_PRIORITY = 1
_HEADERS = 4
_EXCHANGE = 9


class _Stopped(Exception):  # noqa: N818  no error
    """The message must not leave. Kombu does not try again for it on another channel."""


def publish_with_claim(claim: Claim) -> Any:
    """Publish a call with its claim; return Celery's result, or ``None`` where the claim is refused.

    Raises as :meth:`Claim.ask` and Celery do. A claim whose message has not left is released by its block.
    """
    call = claim.call
    app = call.task.app
    if getattr(app.send_task, "__func__", None) is not Celery.send_task:
        # It may publish through another producer than the one it is given, or later.
        claim.ask()
        return None if claim.state is REFUSED else _send_decided(claim)
    given = _given_producer(call) if call.options else None
    pool = app.producer_pool
    connection = pool.connections.connection if given is None else given.connection
    store = claim.lock.store
    route = connection.__dict__.get("_redislock")
    if route is None or route.store is not store:
        route = connection._redislock = _Route(store, leads_to(connection, store))
    if (
        claim.is_doubtful
        or (claim.may_wait and call.is_put_off)
        # Without a claim it is published as well.
        or call.must_run
        # They would be told of a publish that does not happen.
        or before_task_publish.receivers
    ) and not (claim.may_wait and route.is_one_step):
        _know_first(claim, route)
    if claim.state in OPEN:
        failure = None
        with _lend(app, pool) if given is None else nullcontext(given) as producer:
            try:
                return _publish_through(producer, route, claim)
            except _Stopped:
                pass
            except RedisLockError as error:
                failure = error  # raised below: the connection to the broker is as good as before
        if failure is not None:
            raise failure
    return None if claim.state is REFUSED else _send_decided(claim)


def _send_decided(claim: Claim) -> Any:
    """Publish a call that nobody refused, whose claim came first."""
    is_granted = claim.state is GRANTED
    result = claim.call.send(claimed=is_granted)
    claim.state = PUBLISHED if is_granted else WITHOUT
    return result


def _know_first(claim: Claim, route: "_Route") -> None:
    """Learn of a refusal before anything is published: look where one step follows, elsewhere ask.

    Two beats do not send one tick, and its message follows its claim in any case: there is no look for it.
    """
    if not route.is_one_step:
        claim.ask()
    elif not claim.call.is_tick:
        claim.look()


def _publish_through(producer: Any, route: "_Route", claim: Claim) -> Any:
    """Publish through this producer, whose message leaves with its claim; ``_Stopped``: it did not."""
    call = claim.call
    # A server that is away is waited for much longer by kombu, and by the result backend.
    if (
        not claim.lock.store.is_open or (route.is_one_step and producer.connection._default_channel is None)
    ) and claim.state is not FREE:
        _know_first(claim, route)
    stand_in = _Publish(claim, route, producer, producer._publish).send
    if claim.state not in OPEN:
        raise _Stopped
    if (
        not _is_kombus(producer.__class__)
        # Another publish is on its way through it.
        or producer.__dict__.setdefault("_publish", stand_in) is not stand_in
    ):
        claim.ask()
        raise _Stopped
    given = call.options.get("producer")
    call.options["producer"] = producer
    try:
        if not route.is_one_step:
            claim.begin()  # the message is built meanwhile
        return call.send(claimed=True)
    except (_Stopped, RedisLockError):
        call.forget_result()
        raise
    finally:
        del producer._publish
        call.options["producer"] = given


class _Publish(NamedTuple):
    """In place of ``Producer._publish``: the call's message leaves with its claim, any other as it is.

    Another may come through, if what this publish calls uses the producer that the caller gave.
    """

    claim: Claim
    route: "_Route"
    producer: Any
    kombus: Callable[..., Any]

    def send(self, *args: Any) -> Any:
        """Publish as kombu does, which calls this again where the broker was away."""
        claim = self.claim
        if args[_HEADERS].get(HEADER) != claim.call.header:
            return self.kombus(*args)
        channel = None
        if claim.state not in HELD:
            # A named exchange leads to any number of queues.
            if self.route.is_one_step and not args[_EXCHANGE]:
                channel = self.producer.channel
                put = _Put(_Client(claim, self.route, channel, args)).put
                if channel.__dict__.setdefault("_put", put) is not put:
                    channel = None  # another publish is on its way through it: producers may share a channel
            if channel is None:
                _ask_or_stop(claim)
        try:
            answer = self.kombus(*args)
        finally:
            if channel is not None:
                del channel._put
        if claim.state is GRANTED:
            claim.state = PUBLISHED
        return answer


class _Put(NamedTuple):
    """In place of ``Channel._put``: the call's message gets another client, any other gets kombu's."""

    client: "_Client"

    def put(self, queue: str, message: Any, **kwargs: Any) -> None:
        """Put a message into its queue, as kombu does."""
        client = self.client
        channel = client.channel
        seen = channel
        if message["headers"].get(HEADER) == client.claim.call.header:
            if queue in getattr(channel, "_expires", ()) or kwargs.get("_publish_batch"):
                _ask_or_stop(client.claim)
            else:
                seen = _Channel(channel, client)
        type(channel)._put(seen, queue, message, **kwargs)


class _Channel:
    """A channel as ``Channel._put`` sees it (5.5.2 to 5.7.0): kombu's own, but it lends another client."""

    _expires = ()  # the queue does not, or it would have taken no claim

    def __init__(self, channel: Any, client: Any) -> None:
        """Lend this client in place of the channel's."""
        self._get_message_priority = channel._get_message_priority
        self._q_for_pri = channel._q_for_pri
        self.conn_or_acquire = partial(nullcontext, client)


class _Client(NamedTuple):
    """In place of redis-py's client, for the one message that ``Channel._put`` pushes."""

    claim: Claim
    route: "_Route"
    channel: Any
    given: Sequence[Any]

    def lpush(self, key: str, text: str) -> None:
        """Take the claim and push, both or neither."""
        claim = self.claim
        channel = self.channel
        is_small = len(text) <= LARGEST
        queue = f"{channel.global_keyprefix}{key}"
        if is_small and claim.push(queue, text, self.given[_PRIORITY], channel):
            if claim.state not in LEFT:
                raise _Stopped
            return
        _ask_or_stop(claim)
        if is_small:
            logger.debug("the lock server takes no messages: claims are asked for before them")
            self.route.is_one_step = False
        with channel.conn_or_acquire() as client:
            client.lpush(key, text)


def _ask_or_stop(claim: Claim) -> None:
    claim.ask()
    if claim.state is not GRANTED:
        raise _Stopped


def _given_producer(call: Any) -> Any:
    """Return the producer that a call names, as ``Celery.send_task`` does (5.5.0 to 5.7.0, app/base.py)."""
    options = call.options
    connection = options.pop("connection", None)
    publisher = options.pop("publisher", None)
    if connection:
        options["producer"] = call.task.app.amqp.Producer(connection, auto_declare=False)
    elif publisher and not options.get("producer"):
        options["producer"] = publisher
    return options.get("producer")


def _lend(app: Any, pool: Any) -> Any:
    """Return a producer of the pool, as a context. Only where none is free, ask how long to wait for one."""
    try:
        return pool.acquire()
    except LimitExceeded:
        return app.producer_or_acquire()


@dataclass(slots=True)
class _Route:
    """Where a connection to the broker leads, compared with a lock store; kept on the connection.

    Attributes:
        store: the lock store.
        is_one_step: the store takes claims and pushes messages for this connection, in one step.
    """

    store: LockStore
    is_one_step: bool


@cache
def _is_kombus(kind: type) -> bool:
    """Whether a producer's ``_publish`` is there, and is told these two where they are expected."""
    publish = getattr(kind, "_publish", None)
    names = list(signature(publish).parameters) if publish is not None else []
    return names[_HEADERS + 1 :: _EXCHANGE - _HEADERS][:2] == ["headers", "exchange"]


def leads_to(connection: Any, store: LockStore) -> bool:
    """Whether a connection is kombu's to Redis, as it is known here, and leads to where the locks are."""
    channel_class: Any = getattr(connection.get_transport_cls(), "Channel", object)  # AMQP's has none
    # Not Sentinel's, whose primary may move, and none of several, between which kombu moves.
    if (channel_class.__module__, channel_class.__name__) != _CHANNEL or len(connection.alt) > 1:
        return False

    class Unopened(channel_class):  # type: ignore[misc]  # known at run time only
        """A channel that connects to nothing."""

        def __init__(self) -> None:
            self.connection = connection.transport

    pushed: dict[object, object] = {}
    client = SimpleNamespace(lpush=pushed.__setitem__)
    try:
        channel = Unopened()
        channel_class._put(_Channel(channel, client), "queue", {"properties": {}})
        address = channel._connparams()
    except Exception:  # noqa: BLE001  another kombu may raise anything
        pushed = {}
    if [(key, type(text)) for key, text in pushed.items()] == [("queue", str)]:
        return store.reaches(address)
    logger.debug("kombu's %r is not as it is known here: claims are asked for before messages", channel_class)
    return False

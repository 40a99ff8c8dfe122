"""The passage of a claimed call through Celery and kombu, and when its claim is asked for.

Before the message, while that is built, or with it. With it where the lock server is the broker: one script
takes the claim and puts the message into its queue. Its place is kombu's ``LPUSH`` (5.5.2 to 5.7.0,
``transport/redis.py``: ``Channel._put`` calls ``lpush(key, text)`` of the client that ``conn_or_acquire``
lends), so that queues, priorities, prefixes, declarations and signals stay Celery's and kombu's own.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from inspect import signature
from typing import Any

from celery import Celery
from celery.signals import before_task_publish
from kombu.exceptions import LimitExceeded

from celery_redislock.exceptions import LockKeyError, LockUnavailable, RedisLockError
from celery_redislock.locks.redisstore import RedisStore
from celery_redislock.locks.store import ACCEPTED, LARGEST, QUEUED, Answer, Hold, LockStore, Refusal
from celery_redislock.publishing.call import Call
from celery_redislock.publishing.message import HEADER

__all__ = ["Passage"]

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


class Passage:
    """The claim of a call, and the passage of its message: stands in for methods of its producer and channel.

    Used as a ``with`` block around a publish, which releases the claim again if that fails. :meth:`ask` asks
    for it before the message leaves, and :meth:`begin` sends the request of that while the message is built;
    :meth:`lpush` asks for it together with the message.

    Others may pass meanwhile: a producer that the caller gave may be used by whatever this publish calls. For
    kombu's ``_put`` it is a channel of which all is kombu's but the client.

    Attributes:
        refused_by: who holds the key, ``None`` if nobody does.
        is_granted: the server granted the claim.
        was_asked: it is granted, refused or, where a claim is not required, unanswered.
    """

    is_granted = was_asked = False
    refused_by: Hold | None = None
    #: Reads the answer to a request that was begun.
    _read: Callable[[], Answer] | None = None
    #: A claim is held, or may be, whose message has not left.
    _is_alone = False
    _channel: Any = None

    def __init__(self, call: Call) -> None:
        """Ask for nothing yet, and send nothing."""
        self.call, self.lock, self._ttl = call, call.claim_lock, call.claim_ttl()

    def __enter__(self) -> "Passage":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return  # the message has left, and keeps its claim
        if self._read is not None and isinstance(error, Exception):
            with suppress(RedisLockError):
                self.ask()
        if self._is_alone:
            release = self.lock.release if self.is_granted else self.lock.release_later
            release(self.call.token, period_of=self.call.token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def send(self) -> Any:
        """Ask for the claim and publish the call; where it is refused, publish nothing, return ``None``."""
        call, key, name = self.call, self.lock.key, self.lock.task
        options, app = call.options, call.task.app
        if (
            key in _refused
            or name in _refused
            # A workflow's member that is refused is published all the same, without a claim.
            or call.must_run
            # A tick may have been claimed before, by a beat that died before it sent the message.
            or call.is_tick
            # They would be told of a publish that may not happen; the others publish in a way of their own.
            or before_task_publish.receivers
            or (options and ("connection" in options or "publisher" in options))
            or getattr(app.send_task, "__func__", None) is not Celery.send_task
        ):
            self.ask()
        else:
            given, stopped = options.get("producer"), None
            with _acquire(app) if given is None else nullcontext(given) as producer:
                options["producer"] = producer
                try:
                    return self._send_through(producer)
                except _Stopped:
                    pass
                except RedisLockError as error:
                    stopped = error  # not raised here: the connection to the broker is as good as before
            options["producer"] = given
            if stopped is not None:
                raise stopped
        if self.refused_by is None:
            _refused.difference_update((key, name))
            return call.send(claimed=self.is_granted)
        if len(_refused) > MOST_REFUSED:
            _refused.clear()
        _refused.update((key, name))
        return None

    def _send_through(self, producer: Any) -> Any:
        """Publish through this producer, with the claim if possible; ``_Stopped``: nothing has left."""
        call, connection = self.call, producer.connection
        store: Any = self.lock.store
        known = connection.__dict__.get("_redislock")
        if known is None or known[0] is not store:
            known = connection._redislock = store, _leads_to(connection, store)
        self._is_one_step, is_kombus = known[1], _is_kombus(producer.__class__)
        # A server that is away is waited for much longer by kombu, and by the result backend.
        if not is_kombus or not store.is_open or (known[1] and connection._default_channel is None):
            self.ask(if_held=is_kombus and known[1])
        if not self.was_asked:
            self._producer, self._publish, publish = producer, producer._publish, self.publish
            if producer.__dict__.setdefault("_publish", publish) is not publish:
                self.ask()  # another publish is on its way through it
        if self.was_asked:
            raise _Stopped
        try:
            if not known[1]:
                self.begin()  # the message is built meanwhile
            return call.send(claimed=True)
        except (_Stopped, RedisLockError):
            consumer = getattr(call.task.backend, "result_consumer", None)
            if consumer is not None and not call.ignores_result:
                consumer.cancel_for(call.task_id)  # Celery subscribes before it publishes
            raise
        finally:
            del producer._publish

    def publish(self, *args: Any) -> Any:
        """In place of ``Producer._publish``; kombu calls it again where the broker was away."""
        if args[_HEADERS].get(HEADER) != self.call.header:
            return self._publish(*args)
        put = None
        # A named exchange leads to any number of queues.
        if self._is_one_step and not self.is_granted and not args[_EXCHANGE]:
            self._channel, put = self._producer.channel, self.put
            # Unless another publish is on its way through it: producers may share a channel.
            if self._channel.__dict__.setdefault("_put", put) is not put:
                put = None
        if put is None and not self.is_granted:
            self._ask_or_stop()
        try:
            answer = self._publish(*args)
        finally:
            if put is not None:
                del self._channel._put
        self._is_alone = False
        return answer

    def put(self, queue: str, message: Any, **kwargs: Any) -> None:
        """In place of ``Channel._put``."""
        channel: Any = self._channel
        is_ours = message["headers"].get(HEADER) == self.call.header
        if is_ours and (queue in getattr(channel, "_expires", ()) or kwargs.get("_publish_batch")):
            self._ask_or_stop()
            is_ours = False
        type(channel)._put(self if is_ours else channel, queue, message, **kwargs)

    @contextmanager
    def conn_or_acquire(self) -> Iterator["Passage"]:
        """In place of the channel's."""
        yield self

    def lpush(self, key: str, text: str) -> None:
        """In place of redis-py's, for the message: with its claim, both or neither."""
        channel, is_small = self._channel, len(text) <= LARGEST
        if is_small and self._push(f"{channel.global_keyprefix}{key}", text):
            if not self.is_granted:
                raise _Stopped
            return
        self._ask_or_stop()
        if is_small:
            logger.debug("the lock server takes no messages: claims are asked for before them")
            self._producer.connection._redislock = self.lock.store, False
        with channel.conn_or_acquire() as client:
            client.lpush(key, text)

    def _push(self, queue: str, text: str) -> bool:
        """Take the claim and push; ``False`` where the server refuses to do both, and did neither."""
        lock, terms = self.lock, self._terms(published=True)
        store: Any = lock.store
        ask = partial(store.claim_and_push, lock.key, self.call.token, queue=queue, text=text, **terms)
        try:
            self._take(lock.past_the_dead(ask))
        except LockKeyError:
            return False
        except LockUnavailable as error:
            if error.was_refused:
                return False
            is_unknown = f"it is not known whether {lock} was published"
            self._go_without(error, is_unknown if error.was_sent else f"{lock} was not published")
        return True

    def begin(self) -> Callable[[], Answer]:
        """Send the request whose answer :meth:`ask` reads."""
        lock, self._is_alone = self.lock, True
        self._read = read = lock.store.begin(lock.key, self.call.token, **self._terms())
        return read

    def ask(self, *, if_held: bool = False) -> None:
        """Ask for the claim of a message that leaves later; with *if_held* only where somebody holds the key.

        Raises as :meth:`LockStore.acquire` does; ``LockUnavailable`` only where the claim is required.
        """
        lock = self.lock
        try:
            if if_held and lock.store.inspect(lock.key, to_decide=True) is None:
                return
            answer = (self._read or self.begin())()
            if isinstance(answer, Refusal) and lock.release_if_dead(answer.hold):
                answer = self.begin()()
            self._take(answer)
            self._is_alone = self.is_granted
        except LockUnavailable as error:
            self._go_without(error, f"{lock} was not published")
        except LockKeyError:
            self._is_alone = False
            raise
        finally:
            self._read = None

    def _terms(self, *, published: bool = False) -> dict[str, Any]:
        """Return what a claim is asked for with, beside its name and token."""
        call, lock = self.call, self.lock
        if call.scope.claim == "period":  # the claim is the period, released by no run
            state, period = ACCEPTED, None
        else:
            state, period = QUEUED, lock.period
        return {"ttl": self._ttl, "facts": lock.facts(state, None, published), "period": period}

    def _take(self, answer: Answer) -> None:
        self.was_asked = True
        if isinstance(answer, Refusal):
            self.refused_by = answer.hold
        else:
            self.is_granted = True

    def _go_without(self, error: LockUnavailable, remark: str) -> None:
        self.was_asked = True
        # A member of a workflow that is not published breaks it; without a claim, its run takes the lock.
        if self.call.lock_options.on_lock_error == "raise" and not self.call.must_run:
            raise error.with_remark(remark) from error
        logger.warning("publishing %s without a claim, so a duplicate of it may follow: %s", self.lock, error)

    def _ask_or_stop(self) -> None:
        self.ask()
        if not self.is_granted:
            raise _Stopped


def _acquire(app: Any) -> Any:
    """Return a producer of the pool, as a context. Only where none is free, ask how long to wait for one."""
    try:
        return app.producer_pool.acquire()
    except LimitExceeded:
        return app.producer_or_acquire()


@cache
def _is_kombus(kind: type) -> bool:
    """Whether a producer's ``_publish`` is there, and is told these two where they are expected."""
    publish = getattr(kind, "_publish", None)
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
    trial: Any = Passage.__new__(Passage)
    trial._channel, trial.lpush = channel, lambda *words: came.append(words)
    try:
        channel_class._put(trial, "queue", {"properties": {}})
        address = channel._connparams()
    except Exception:  # noqa: BLE001  whatever it may be
        came = []
    if [tuple(map(type, words)) for words in came] == [(str, str)]:
        return isinstance(store, RedisStore) and store.reaches(address)
    logger.debug("kombu's %r is not as it is known here: claims are asked for before messages", channel_class)
    return False

"""The name of a worker in each message it has in hand, and the thread that renews it.

On Redis, kombu keeps a message that was received and is not acknowledged in the hash ``unacked`` until the
visibility timeout, an hour, and nothing says which worker has it. So a worker writes its name into the
properties of each message of a unique task when it receives it, and renews the name on the broker. Each
renewal answers with names that have lapsed; what their workers had in hand is restored
(``receiving/restore.py``).

=================================  ======  ============================  ==================================
key on the broker                  type    value                         written by
=================================  ======  ============================  ==================================
``{prefix}:workers``               zset    name, score lapses at (ms)    heartbeat, each ``ttl / 15``
``{prefix}:workers:taken``         zset    name, score given again (ms)  heartbeat of who restores
``{prefix}:workers:bearers``       hash    name -> JSON: node, host,     heartbeat, when a name is new
                                           pid, start
``{prefix}:deaths:TOKEN``          string  workers that died running it  count_death; a day
=================================  ======  ============================  ==================================

``prefix`` is ``redislock_prefix`` behind the broker's ``global_keyprefix``; all but the last key live for
twice the visibility timeout. Times are the broker's own.

A name that lapses proves no death: its worker may stand still, or be cut off. What is restored has been in
hand for ``ttl - vouches`` at least, and a message that has been in hand for half the ``ttl`` leaves a mark
when it runs (``running/delivery.py``). So of two copies one does nothing, whichever comes first.

While the broker stands still nobody renews. What is received right after that cannot bear the name, which may
have lapsed; it is signed with it by the next renewal.

Where the broker restarts, Celery forgets what it has received and not started, and kombu leaves that in
``unacked`` (5.7.0: it restores when it closes the connection, and nobody answers). So a name is good for one
connection. The next one brings another name, which what still runs is given too. The former name lapses, and
what has been forgotten is restored as that of a worker that was killed.
"""

import json
import os
import socket
import time
import uuid
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from functools import cached_property, partial
from math import inf
from typing import Any

from celery.bootsteps import StartStopStep
from celery.worker.consumer.tasks import Tasks
from celery.worker.state import active_requests

from celery_redislock.declaring.declaration import is_unique
from celery_redislock.declaring.options import LockSettings
from celery_redislock.declaring.server import settings_of
from celery_redislock.log import logger
from celery_redislock.publishing.message import HEADER
from celery_redislock.receiving.restore import LATE, Restorer, run_script
from celery_redislock.running.delivery import IN_HAND_OF, IN_HAND_SINCE
from celery_redislock.running.leavings import visibility_timeout
from celery_redislock.wire.clock import boottime
from celery_redislock.wire.thread import original, start_thread, tell

#: Messages that are remembered to be signed: more than any worker has in hand.
MOST_UNSIGNED = 10_000

#: What a server says that refuses scripts, or these keys, to the worker's user, and will again.
_FORBIDDEN = ("noperm", "no permissions", "acl failure", "unknown command")


class InHand(StartStopStep):  # type: ignore[misc]  # celery-types has it untyped
    """A step of the worker's consumer, in the main process: it names what is received from now on.

    Celery starts it when the consumer has its channel and has received nothing, and again after each
    reconnection. Messages of plain tasks, and brokers other than kombu's Redis transport, are left alone.
    """

    requires = (Tasks,)
    obj: "WorkerName | None"

    def include_if(self, consumer: Any) -> bool:
        """Only where there are unique tasks, and ``redislock_restore`` is not ``False``."""
        app = consumer.app
        self._settings = settings_of(app)
        wanted = self._settings.enabled and self._settings.restore < inf
        return wanted and any(map(is_unique, app.tasks.values()))

    def start(self, consumer: Any) -> None:
        """Renew the name, and stand in for the channel's ``QoS.append``."""
        channel = consumer.task_consumer.channel
        if not _is_known(channel):
            logger.debug("what a killed worker has in hand is not restored with %r", type(channel))
            return
        if self.obj is None:
            self.obj = WorkerName(consumer.app, self._settings, node=consumer.hostname)
        if self.obj.begin(consumer.connection):
            qos = channel.qos
            qos.append = partial(self.obj.write, qos.append)
            qos.restore_unacked = partial(_restore, channel, consumer.connection, qos.restore_unacked)

    def stop(self, consumer: Any) -> None:
        """Leave the name to lapse: kombu restores what is in hand, and may be killed before it has."""


def is_forbidden(error: Exception) -> bool:
    """Whether the broker refuses scripts, or these keys, to the worker's user, and will again."""
    return any(words in str(error).lower() for words in _FORBIDDEN)


def _is_known(channel: Any) -> bool:
    """Whether messages are kept in ``unacked`` as kombu's Redis transport does it (5.5.2 to 5.7.0)."""
    if not hasattr(channel, "unacked_key"):
        return False
    from kombu.transport.redis import Channel, QoS  # noqa: PLC0415  imports redis; a worker on RabbitMQ need not

    return isinstance(channel, Channel) and channel.QoS is QoS and bool(channel.ack_emulation)


def _restore(channel: Any, connection: Any, restore: Any) -> Any:
    """Restore what is in hand when the connection is closed, as kombu does.

    Celery closes a broken one twice. The second time kombu has forgotten the address, and its AttributeError
    ends the worker, as does that of each acknowledgement to come (5.7.0). With the address it is a
    connection error, which is ignored, and they get through. What is not restored is under a name.
    """
    transport = channel.connection
    if transport is not None and transport.client is None:
        transport.client = connection
    return restore()


class WorkerName:
    """The name of one worker, in what it has in hand and on the broker.

    Attributes:
        name: twelve random characters; another one for each connection of the consumer, and where somebody
            has taken it, because it had lapsed.
        ttl: seconds the name outlives its last renewal: ``redislock_restore``.
        pause: seconds between two renewals.
        vouches: seconds after a renewal for which messages are received under the name; later ones are signed
            with the next renewal.
    """

    def __init__(self, app: Any, settings: LockSettings, *, node: str) -> None:
        """Of this worker of the app; sends nothing yet."""
        self._app = app
        self._restorer = Restorer(app, settings)
        self._prefix = settings.prefix
        self.ttl = settings.restore
        self.pause = self.ttl / 15
        self.vouches = self.ttl / 3
        about = {"node": node, "host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        self._bearer = json.dumps(about)
        self.name = ""
        #: What stands in place of the name in messages that come when that may have lapsed, so that nobody
        #: restores them; and their tags: they are signed when the name is renewed again.
        self._blank = uuid.uuid4().hex[:12]
        self._unsigned: deque[str] = deque(maxlen=MOST_UNSIGNED)
        self._renewed_at = -inf
        #: Since when each renewal was in time. A worker that has started, or was cut off, lets the others
        #: return first: where the broker was away, every name has lapsed.
        self._steady_since = 0.0
        #: The consumer's connection, of which the thread makes its own.
        self.source: Any = None
        self._is_forbidden = False
        self._has_thread = False
        self._lock: Any = original("threading", "Lock")()

    def begin(self, connection: Any) -> bool:
        """Bear a new name over a connection like this one, before the first message comes, and from now on.

        Returns ``False`` where the broker lets nobody run scripts.
        """
        self.source = connection
        try:
            with self.connect() as own:
                channel = own.channel()
                self._leave_behind(channel)
                self._renew(channel)
        except Exception as error:  # noqa: BLE001  the thread tries again
            if is_forbidden(error):
                log = logger.debug if self._is_forbidden else logger.info
                line = (
                    "what this worker has in hand is not restored if it is killed: %s; let the broker's user "
                    "run scripts (docs/server.md, Users and ACLs)"
                )
                log(line, error)
                self._is_forbidden = True
                return False
            logger.debug("could not renew the name of this worker: %r", error)
        if not self._has_thread:
            self._has_thread = True
            start_thread(partial(_run, weakref.ref(self), self.pause), "redislock-in-hand")
        return True

    def write(self, append: Any, message: Any, tag: str) -> Any:
        """Write into a message who has it; kombu stores it so. In the consumer's thread, for each message."""
        properties = message.properties
        properties.pop(IN_HAND_OF, None)  # of a worker that had it before
        is_signed = boottime() - self._renewed_at < self.vouches
        if HEADER in message.headers:
            name = self.name if is_signed else self._blank
            properties[IN_HAND_OF] = name + LATE * (message.headers.get("task") in self._late)
        since = time.time()
        answer = append(message, tag)
        if IN_HAND_OF in properties:
            if not is_signed:
                self._unsigned.append(tag)
            # Restored meanwhile, if this worker now stands still before it looks at the message.
            properties[IN_HAND_SINCE] = since
        return answer

    @cached_property
    def _late(self) -> frozenset[str]:
        """The names of tasks whose messages are acknowledged when the body has ended."""
        return frozenset(name for name, task in self._app.tasks.items() if task.acks_late)

    def look(self, channel: Any) -> None:
        """Renew the name, and restore what lapsed workers had in hand; in the thread."""
        taken = self._renew(channel, self.ttl / 6)
        with self._lock:
            self._sign(channel, self.name)
        for name, bearer in taken:
            for _ in self._restorer.restore(channel, name, bearer):
                if boottime() - self._renewed_at > self.pause:
                    self._renew(channel)

    def _renew(self, channel: Any, takes_for: float = 0.0) -> Iterator[tuple[str, str]]:
        """Renew the name, or bear another one; return the names that were taken, with who bore them.

        ``takes_for``: seconds for which lapsed names are taken, until the next worker is given them; 0: none.
        """
        with self._lock:
            asked_at = boottime()
            if asked_at - self._renewed_at > self.vouches:
                self._steady_since = asked_at  # the broker may have been away, for the others as well
            if asked_at - self._steady_since <= self.ttl - self.vouches:
                takes_for = 0.0
            word, *taken = self._ask(channel, self._bearer if not self.name else "", takes_for)
            if word == "taken":
                self._steady_since = asked_at
                self.name = ""
                word, *taken = self._ask(channel, self._bearer)
            if word == "late":
                self._steady_since = asked_at
            self._renewed_at = asked_at
        return zip(taken[::2], taken[1::2], strict=True)

    def _sign(self, channel: Any, name: str) -> None:
        """Write a name into the messages that came when it may have lapsed, as after a broker stood still."""
        tags = [self._unsigned.popleft() for _ in tuple(self._unsigned)]
        try:
            self._carry(channel, self._blank, name, tags)
        except BaseException:
            self._unsigned.extend(tags)
            raise

    def _carry(self, channel: Any, former: str, name: str, tags: Collection[str]) -> None:
        unacked = channel.global_keyprefix + channel.unacked_key
        if tags:
            run_script(channel, "carry", (unacked,), f'"{former}', f'"{name}', *tags)

    def _leave_behind(self, channel: Any) -> None:
        """Take another name than that of the last connection, and along what runs here: not to be restored.

        Its leases may have lapsed while the broker was away, so that nobody else could tell.
        """
        with self._lock:
            former = self.name
            if not former:
                return
            self.name = ""
            try:
                self._sign(channel, former)
                self._ask(channel, self._bearer)
                tags = [request.message.delivery_tag for request in tuple(active_requests)]
                self._carry(channel, former, self.name, tags)
            except BaseException:
                self.name = former
                raise

    def _ask(self, channel: Any, bearer: str, takes_for: float = 0.0) -> list[str]:
        if not self.name:
            self.name = uuid.uuid4().hex[:12]
        times = (self.ttl, self.ttl - self.vouches, takes_for, 2 * visibility_timeout(self._app))
        ttl, late, again, kept = (round(seconds * 1000) for seconds in times)
        arguments = self.name, bearer, ttl, late, again or "", kept
        prefix = f"{channel.global_keyprefix}{self._prefix}:workers"
        keys = prefix, f"{prefix}:taken", f"{prefix}:bearers"
        return [each.decode() for each in run_script(channel, "heartbeat", keys, *arguments)]

    def connect(self) -> Any:
        """Return a connection of this worker's own to the broker it receives from; each answer is bounded."""
        bound = self.ttl / 6
        theirs = self.source.transport_options or {}
        bounded = {**theirs, "socket_timeout": bound, "socket_connect_timeout": bound}
        connection = self.source.clone(transport_options=bounded)
        connection.connect()
        return connection


def _run(reference: "weakref.ref[WorkerName]", pause: float) -> None:
    """Renew a name until its worker is gone from this process; in a thread."""
    sleep = original("time", "sleep")
    source: Any = None
    channel: Any = None
    while True:
        sleep(pause)
        worker = reference()
        if worker is None:
            return
        try:
            if channel is None or source is not worker.source:
                source = worker.source
                channel = worker.connect().channel()
            worker.look(channel)
        except Exception as error:  # noqa: BLE001  the broker is away; what is received meanwhile is signed later
            channel = None
            tell(logger.debug, "could not renew the name of this worker: %r", error)
        del worker

"""A loop's connections to a lock server: those of our own, or a client's of redis-py.

redis-py connects (TLS, passwords), and from then on the transport is ours: an answer that has come before its
time was over is taken, however late the loop finds it.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import redis
import redis.asyncio.connection
import redis.asyncio.sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from celery_redislock.exceptions import LockOptionError
from celery_redislock.wire.clock import boottime
from celery_redislock.wire.connection import LONGEST_IDLE, Connections, asking_anew
from celery_redislock.wire.wire import Answers, Nonsense

#: Requests of a loop that are on their way at once. Of 16 connections another one reads the bells, and one is
#: the watchdog's.
MOST = 14

_REFUSED = "the server closed the connection"

#: In place of a time until which an answer is waited for.
AT_REST = float("inf")


class Command(NamedTuple):
    """A request as it is sent.

    Attributes:
        data: of the command, with what confirms it behind it.
        answers: how many there will be.
        of_script: a script answers it; of_wait: the server does when a bell has rung.
    """

    data: bytes
    answers: int = 1
    of_script: bool = True
    of_wait: bool = False


class _UnfinishedError(Exception):
    """Not all of an answer has come."""


class _Arrived:
    """In place of a socket: everything that has come was read from it."""

    def settimeout(self, _seconds: float) -> None:
        pass

    def recv(self, _most: int) -> bytes:
        raise _UnfinishedError


class Wire(asyncio.Protocol):
    """One connection; one request at a time.

    Its timer is set once for many requests: to set one for each costs as much as to send it.

    Attributes:
        data: what has come since the last request; nothing, where it is at rest.
        until: the loop's time until which an answer is waited for.
        kept_until: when it has been at rest for too long; it is made anew then.
    """

    def __init__(self, connection: Any) -> None:
        """Take over a connection of redis-py's that has just been made."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._transport: Any = connection._writer.transport
        self.data = bytes(connection._reader._buffer)
        self._waiter: asyncio.Future[None] = self._loop.create_future()
        self.until = AT_REST
        self.kept_until = AT_REST
        self._timer: asyncio.TimerHandle | None = None
        #: Why no answer will come.
        self._error: Exception | None = None
        if self.data or connection._reader.at_eof():
            self._error = ConnectionError(_REFUSED)
        self._transport.set_protocol(self)

    @property
    def is_at_rest(self) -> bool:
        """The next request may be sent: the server has neither closed it nor said anything unasked."""
        return self._error is None and not self.data

    def data_received(self, data: bytes) -> None:
        """As asyncio calls it."""
        self.data += data
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio calls it; and where the time of a request is over."""
        self._error = error or ConnectionError(_REFUSED)
        self._wake()

    def close(self) -> None:
        """Close it at once, with what is on its way."""
        self._error = ConnectionError(_REFUSED)
        self.until = AT_REST
        self._transport.abort()
        self._connection._close()

    async def exchange(self, command: Command, seconds: float) -> list[Any]:
        """Send a request and return its answers; raises ``OSError`` where they do not come in time."""
        self.send(command.data, seconds)
        return await self.read(command)

    def send(self, data: bytes, seconds: float) -> "asyncio.Future[None]":
        """Send a request, for whose answers there are so many seconds; await until some of them have come."""
        self.data = b""
        self._waiter = waiter = self._loop.create_future()
        self._transport.write(data)
        self.until = until = self._loop.time() + seconds
        if self._timer is None or until < self._timer.when():
            self._look()
        return waiter

    async def read(self, command: Command) -> list[Any]:
        """Return the answers that have been sent for; raises as :meth:`exchange`."""
        while True:
            answers = Answers(_Arrived(), self.data, float("inf"), time.monotonic)
            with suppress(_UnfinishedError):
                return answers.read(command.answers, of_script=command.of_script, of_wait=command.of_wait)
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        """See whether the time of a request is over, or set the timer for that."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.until == AT_REST:
            return
        # What has come is read first, however late the loop has found it.
        if self._loop.time() < self.until or self._waiter.done():
            self._timer = self._loop.call_at(self.until, self._look)
        else:
            self.connection_lost(TimeoutError("no answer in time"))


class Wires:
    """Lends connections, :data:`MOST` at once; who comes when all are lent waits for its turn.

    We have made them, as the synchronous ones are made.

    Attributes:
        socket_timeout: seconds for each step.
        free: so many requests may be sent beside those that are on their way.
    """

    def __init__(self, connections: Connections) -> None:
        """Take over how to connect; raises :class:`LockOptionError` where a loop cannot connect so."""
        self.socket_timeout = connections.socket_timeout
        name = connections._pool.connection_class.__name__
        homes = redis.asyncio.connection, redis.asyncio.sentinel
        self._class: Any = next((getattr(home, name) for home in homes if hasattr(home, name)), None)
        if self._class is None:
            problem = f"its connections are of class {name}, which redis.asyncio does not have; give a URL"
            raise LockOptionError("aio.connect", [problem])
        kwargs = {name: value for name, value in connections._kwargs.items() if name != "parser_class"}
        self._kwargs = {**kwargs, "retry": Retry(NoBackoff(), 0)}
        if "connection_pool" in kwargs:
            self._kwargs["connection_pool"] = Primary(kwargs["connection_pool"])
        try:
            self._class(**self._kwargs)
        except TypeError as error:
            problem = f"an option of its connections is none of redis.asyncio ({error}); leave it out"
            raise LockOptionError("aio.connect", [problem]) from None
        self.free = MOST
        self._idle: list[Wire] = []
        self._queue: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait for a turn if none is ``free``; it ends with :meth:`end_turn` or the error of :meth:`fail`."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.end_turn()
            raise

    def end_turn(self) -> None:
        """Let the next one have its turn."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1

    def fail(self, reason: str) -> None:
        """The server does not answer: those in the queue would wait as long, one after the other."""
        for turn in self._queue:
            if not turn.done():
                turn.set_exception(ConnectionError(reason))
        self._queue.clear()

    def take(self) -> Wire | None:
        """Return a connection at rest; ``None`` if there is none."""
        while self._idle:
            wire = self._idle.pop()
            if wire.is_at_rest and boottime() < wire.kept_until:
                return wire
            wire.close()
        return None

    async def open(self, seconds: float) -> Wire:
        """Return a connection, ready for a request; raises ``redis.RedisError`` or ``OSError``."""
        if (kept := self.take()) is not None:
            return kept
        connection = self._class(
            **{**self._kwargs, "socket_timeout": seconds, "socket_connect_timeout": seconds}
        )
        try:
            await connection.connect()
            wire = Wire(connection)
        except BaseException:
            connection._close()
            raise
        if not wire.is_at_rest:
            wire.close()
            raise Nonsense(b"something after its greeting")
        return wire

    def keep(self, wire: Wire) -> None:
        """Keep a connection for the next request."""
        wire.data = b""
        wire.until = AT_REST
        wire.kept_until = boottime() + LONGEST_IDLE
        self._idle.append(wire)

    def drop_idle(self) -> None:
        """Close the connections nobody is using."""
        while self._idle:
            self._idle.pop().close()


class Primary:
    """Where the primary is, as redis-py's connections through Sentinels want it.

    The Sentinels are asked in a thread, with the bounds of the synchronous connections.
    """

    is_master = True
    check_connection = False

    def __init__(self, proxy: Any) -> None:
        self._proxy = asking_anew(proxy)

    async def get_master_address(self) -> Any:
        """Return its host and port; raises ``redis.RedisError``."""
        return await asyncio.to_thread(self._proxy.get_master_address)

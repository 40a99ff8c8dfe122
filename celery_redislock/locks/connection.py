"""Held connections to one lock server.

redis-py's ``execute_command`` path (pool, retries, metrics) is about half of
the client's CPU in a lock's life, and its ten default retries (redis 8.1.0,
``client.py``) turn a lost reply to ``SET NX`` into a wait for one's own
orphan. So this module keeps bare ``Connection`` objects, without retries of
their own, and leaves repeating to the store, which does it under one deadline
and with the same token.
"""

import os
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import PythonRespSerializer
from redis.retry import Retry

from celery_redislock.locks.clock import Clock

__all__ = ["MOST_IDLE", "Connections", "connect_by"]

#: Bytes up to which a greeting is sent in one piece: all of it.
_NO_CUTOFF = 65536

#: Connections kept open while nobody uses them: as many as most processes have threads.
MOST_IDLE = 32


#: What lets a server make redis-py wait longer while it is being moved (Redis Enterprise; on by default from
#: redis 8 on, ``maint_notifications.py``): ten seconds instead of the socket timeout, while leases expire. A
#: question to the server for every new connection goes with it.
_RELAXED = re.compile(r"maint_notifications_|maintenance_|orig_|oss_cluster_")


def _encoded(word: object) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


def connect_by(connection: Any, give_up: float, *, patience: float, clock: Clock) -> None:
    """Connect, unless it is connected, with the last answer to a greeting by one moment.

    redis-py bounds each answer alone, and a greeting has two to five: from a
    slow server they would take as many socket timeouts. By ``connect()``,
    which a Sentinel's connection overrides to ask for the primary; left to
    itself a send connects past it, to the default address (redis 5.2.1 to
    8.1.0, ``connection.py``).

    Args:
        connection: redis-py's.
        give_up: the clock's reading after which nothing is waited for.
        patience: seconds any one answer may take.
        clock: of this process.

    Raises:
        redis.TimeoutError: it took too long.
        redis.RedisError: it failed otherwise.
    """
    connected: Any = connection._sock
    if connected is not None:
        return
    read = connection.read_response

    def read_by(*args: Any, **kwargs: Any) -> Any:
        left = min(patience, give_up - clock())
        if left <= 0:
            raise redis.TimeoutError("the server took too long to greet")
        connection._sock.settimeout(left)
        return read(*args, **kwargs)

    connection.read_response = read_by
    try:
        connection.connect()
        connection._sock.settimeout(connection.socket_timeout)
    finally:
        del connection.read_response


class Connections:
    """The connections of one process to one server, kept open and lent out one at a time.

    As many are opened as threads (or greenlets) talk at once; the last one
    returned is the next one lent. At most :data:`MOST_IDLE` are kept while
    nobody uses them: after a rush of greenlets the others are closed.
    Thread-safe. After a fork the child starts
    with none: it never speaks on, nor shuts down, its parent's sockets (a
    dropped ``Connection`` of another pid only closes its descriptor, redis
    5.2.1 to 8.1.0, ``connection.py``, ``disconnect``).

    Each counts, in ``redislock_unread``, the requests sent on it whose answers
    nobody waited for; who uses it next reads those first.
    """

    def __init__(self, pool: "redis.ConnectionPool", *, socket_timeout: float) -> None:
        """Take over how to connect from a redis-py pool.

        Args:
            pool: knows address, credentials, TLS, Sentinel; it is kept alive because a
                Sentinel connection asks it for the primary.
            socket_timeout: seconds any one send, reply or connect may take.
        """
        self._pool = pool
        self._kwargs = {
            **{name: value for name, value in pool.connection_kwargs.items() if not _RELAXED.match(name)},
            "socket_timeout": socket_timeout,
            "socket_connect_timeout": socket_timeout,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "decode_responses": False,
            "encoding": "utf-8",
            "health_check_interval": 0,
            # Of what redis-py sends by itself, to greet. hiredis looks at the text of a number without
            # asking whether there is one (3.5.0, src/pack.c), and there is none if a signal's handler raised
            # meanwhile, which PyObject_Repr lets it do: the process dies of a segmentation fault.
            "command_packer": PythonRespSerializer(_NO_CUTOFF, _encoded),
        }
        self._make: Callable[..., Any] = pool.connection_class
        self._socket_timeout = socket_timeout
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    @property
    def server(self) -> str:
        """Where the server is, without credentials."""
        kwargs = self._kwargs
        if "path" in kwargs:
            return f"unix://{kwargs['path']}?db={kwargs.get('db') or 0}"
        service = getattr(self._pool, "service_name", None)
        if service is not None:
            return f"sentinel service {service!r}, db {kwargs.get('db') or 0}"
        scheme = "rediss" if issubclass(self._pool.connection_class, redis.SSLConnection) else "redis"
        host, port, db = kwargs.get("host", "localhost"), kwargs.get("port", 6379), kwargs.get("db") or 0
        return f"{scheme}://{host}:{port}/{db}"

    def take(self) -> Any:
        """Lend an idle connection, or a new one that connects at its first command."""
        if self._pid != os.getpid():
            self._idle = deque()
            self._pid = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._open(self._kwargs)

    def take_new(self, *, within: float) -> Any:
        """Lend a fresh connection and drop the idle ones: what broke one has mostly broken all.

        Args:
            within: seconds left for connecting and for each answer, at most ``socket_timeout``.
        """
        self.drop_idle()
        timeout = min(within, self._socket_timeout)
        return self._open({**self._kwargs, "socket_timeout": timeout, "socket_connect_timeout": timeout})

    def give_back(self, connection: Any) -> None:
        """Return a connection on which every reply was read; closed where enough are idle already."""
        if connection.socket_timeout == self._socket_timeout and len(self._idle) < MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.disconnect()

    def _open(self, kwargs: dict[str, Any]) -> Any:
        connection = self._make(**kwargs)
        connection.redislock_unread = 0
        return connection

    def drop_idle(self) -> None:
        """Close the connections nobody is using."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return
            connection.disconnect()

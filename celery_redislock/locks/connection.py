"""Connections to one lock server: how to reach it, and the ones that are kept open.

redis-py's ten default retries (redis 8.1.0, ``client.py``) turn a lost reply
to ``SET NX`` into a wait for one's own orphan. So this module keeps bare
``Connection`` objects, without retries of their own, and
:class:`~celery_redislock.locks.scripts.Scripts` sends, reads and repeats.
"""

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from os import getpid
from select import select
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.thread import beside

#: Connections kept open while nobody uses them: as many as most processes have threads.
MOST_IDLE = 32

#: Options that let a server make redis-py wait ten seconds instead of the socket timeout while it is being
#: moved (Redis Enterprise; on by default from redis 8 on, ``maint_notifications.py``). Leases would expire.
_RELAXED = re.compile(r"maint_notifications_|maintenance_|orig_|oss_cluster_")


class Connections:
    """The connections of one process to one server, kept open and lent out one at a time.

    The last one returned is the next one lent. Thread-safe. After a fork the
    child starts with none, and does not shut down its parent's sockets (a dropped
    ``Connection`` of another pid only closes its descriptor, redis 5.2.1 to
    8.1.0, ``connection.py``, ``disconnect``).

    Each connection counts in ``redislock_unread`` the requests whose answers
    nobody waited for; they are read before its next one. A connection in step
    is put back into its ``redislock_idle``.
    """

    def __init__(self, pool: "redis.ConnectionPool", *, socket_timeout: float) -> None:
        """Take over how to connect from a redis-py pool; ``socket_timeout``: seconds for each step.

        The pool is kept alive because a Sentinel connection gets the primary from it.
        """
        self._pool = pool
        self.socket_timeout = socket_timeout
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
        }
        self._forget()

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
        host = kwargs.get("host", "localhost")
        return f"{scheme}://{host}:{kwargs.get('port', 6379)}/{kwargs.get('db') or 0}"

    @property
    def place(self) -> object:
        """Which server it is, whatever the database and the user; ``None`` where a Sentinel says so."""
        if hasattr(self._pool, "service_name"):
            return None
        return _seen_by(self._kwargs, self._pool.connection_class)[0]

    @property
    def is_open(self) -> bool:
        """Whether a connection is idle whose other end has not closed it, as far as can be told at once."""
        if self._pid != getpid():
            return False
        try:
            connection = self._idle[beside.get()][-1]
            return bool(connection.redislock_unread) or not select([connection._sock], [], [], 0)[0]
        except (IndexError, OSError):
            return False
        except ValueError:  # a descriptor from 1024 up
            return True

    def leads_to(self, address: Mapping[str, Any]) -> bool:
        """Whether a client with these options (redis-py's) is in the same database, and as the same user."""
        theirs = _seen_by(address, address.get("connection_class", redis.Connection))
        return theirs == _seen_by(self._kwargs, self._pool.connection_class)

    def take(self) -> Any:
        """Lend an idle connection, or a new one that is not connected yet."""
        if self._pid != getpid():
            self._forget()
        try:
            return self._idle[beside.get()].pop()
        except IndexError:
            return self._open()

    def take_new(self) -> Any:
        """Lend a new connection and close the idle ones: when one breaks, most others are broken."""
        self.drop_idle()
        return self._open()

    def drop_idle(self) -> None:
        """Close the connections nobody is using."""
        idle = self._idle[beside.get()]
        with suppress(IndexError):
            while True:
                idle.pop().disconnect()

    def _forget(self) -> None:
        # Each thread beside greenlets has its own: gevent's sockets belong to one hub. A full deque drops a
        # connection, which closes itself.
        self._idle: dict[Any, deque[Any]] = defaultdict(partial(deque, maxlen=MOST_IDLE))
        self._pid = getpid()

    def _open(self) -> Any:
        connection: Any = self._pool.connection_class(**self._kwargs)
        connection.redislock_unread = 0
        connection.redislock_idle = self._idle[beside.get()]
        if beside.get() is not None and hasattr(self._pool, "sentinel_manager"):
            connection.connection_pool = _asking_anew(connection.connection_pool)
        return connection


def _asking_anew(proxy: Any) -> Any:
    """Return the proxy of a Sentinel's pool with connections of its own to the Sentinels."""
    asking = copy(proxy)
    manager = copy(proxy.sentinel_manager)
    addresses = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    manager.sentinels = [redis.Redis(at["host"], at["port"], **manager.sentinel_kwargs) for at in addresses]
    asking.sentinel_manager = manager
    return asking


def _seen_by(options: Mapping[str, Any], connection_class: type) -> tuple[object, ...]:
    """Return database and user of a connection: two that agree in this see the same data."""
    host = options.get("host") or "localhost"
    host = "localhost" if host == "127.0.0.1" else host
    return (
        options.get("path") or (host, int(options.get("port") or 6379)),
        int(options.get("db") or 0),
        options.get("username") or "default",
        options.get("password") or None,
        options.get("credential_provider"),
        issubclass(connection_class, redis.SSLConnection),
    )


def pool_of(url: str) -> "redis.ConnectionPool":
    """Return a redis-py pool that knows how to reach ``url``; connects to nothing yet.

    Raises:
        LockOptionError: the URL cannot be read; its password is masked in the text.
    """
    plain = re.sub(r"^valkey(s?)://", r"redis\1://", url)
    try:
        pool = redis.ConnectionPool.from_url(plain)
        check_options(pool)
        scheme, _, rest = plain.partition("://")
        database = rest.partition("?")[0].partition("/")[2].strip("/")
        if scheme != "unix" and database and not database.isdigit():
            raise ValueError(database)  # noqa: TRY301  redis-py takes 0 for it (redis 8.1.0, ``parse_url``)
    except (ValueError, TypeError, redis.RedisError):
        # Their texts quote parts of the URL, and a badly quoted password is such a part.
        problem = (
            f"{mask_password(url)!r} is not a URL of a Redis or Valkey server, or has an unknown option; "
            "use redis://host:port/db, rediss://… or unix:///path?db=0, and quote special characters "
            "of a password (urllib.parse.quote)"
        )
        raise LockOptionError("lock server", [problem]) from None
    return pool


def check_options(pool: "redis.ConnectionPool") -> None:
    """Read every option as a connection would, without connecting; or the first lock would find the mistake.

    Raises:
        TypeError: one is unknown, or must be an object.
        ValueError: one cannot be read.
        redis.RedisError: they contradict each other.
    """
    pool.connection_class(**pool.connection_kwargs)
    if isinstance(pool.connection_kwargs.get("credential_provider"), str):
        raise TypeError("credential_provider must be an object")


_SECRET = re.compile(r"[\w-]*(?:pass|secret|token|credential)[\w-]*=", re.IGNORECASE)


def mask_password(url: str) -> str:
    """Return the URL with its user and password, wherever they stand, replaced by ``***``.

    Rather too much than too little: a password may hold an unquoted ``/``, ``?``, ``&`` or ``@``.
    """
    scheme, found, rest = url.partition("://") if "://" in url else ("", "", url)
    secret = _SECRET.search(rest)
    end_of_user = rest.rfind("@") + 1
    if secret is None:
        masked = f"***@{rest[end_of_user:]}" if end_of_user else rest
    elif end_of_user > secret.start():
        masked = "***"
    else:
        masked = ("***@" if end_of_user else "") + rest[end_of_user : secret.end()] + "***"
    return scheme + found + masked

"""Connections to one lock server: how to reach it, and the ones that are kept open.

redis-py's ten default retries (redis 8.1.0, ``client.py``) turn a lost reply
to ``SET NX`` into a wait for one's own orphan. So this module keeps bare
``Connection`` objects, without retries of their own, and
:class:`~celery_redislock.wire.scripts.Scripts` sends, reads and repeats.
"""

import re
import socket
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from math import inf
from os import getpid
from select import select
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from celery_redislock.exceptions import LockOptionError
from celery_redislock.wire.thread import beside

#: Connections kept open while nobody uses them: as many as most processes have threads.
MOST_IDLE = 32

#: Seconds without a request after which a connection is made anew. A firewall, a balancer or a NAT may have
#: cut it without a word: its next request would wait for its whole timeout, and so would a look at whether it
#: still leads anywhere.
LONGEST_IDLE = 30.0

#: The kernel asks after ten seconds of silence, and then three times, which is over before. So what forgets
#: silent connections does not see one, and those that nobody uses any more end (TCP_KEEPALIVE: on macOS).
_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_KEEPALIVE = {getattr(socket, name): value for name, value in _PROBES.items() if hasattr(socket, name)}

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
    nobody waited for; they are read before its next one. From
    ``redislock_until`` on, a reading of the clock, it is to be connected, or
    connected anew. A connection in step is put back into its
    ``redislock_idle``.
    """

    def __init__(
        self,
        pool: "redis.ConnectionPool",
        *,
        socket_timeout: float,
        bounds_sentinels: bool = False,
        note: str = "",
    ) -> None:
        """Take over how to connect from a redis-py pool; ``socket_timeout``: seconds for each step.

        The pool is kept alive because a Sentinel connection gets the primary from it. ``bounds_sentinels``:
        all its Sentinels together are given one socket timeout. ``note``: for :attr:`server`.
        """
        self._pool = pool
        self._note = note
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
        if issubclass(pool.connection_class, redis.Connection):
            self._kwargs = {"socket_keepalive_options": _KEEPALIVE, **self._kwargs, "socket_keepalive": True}
        if bounds_sentinels and "connection_pool" in self._kwargs:
            self._kwargs["connection_pool"] = asking_anew(self._kwargs["connection_pool"], socket_timeout)
        self._forget()

    @property
    def server(self) -> str:
        """Where the server is, without credentials, and how it is reached where no URL says so."""
        return place_of(self._pool) + self._note

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
            return self.open()

    def take_new(self) -> Any:
        """Lend a new connection and close the idle ones: when one breaks, most others are broken."""
        self.drop_idle()
        return self.open()

    def drop_idle(self) -> None:
        """Close the connections nobody is using."""
        idle = self._idle[beside.get()]
        with suppress(IndexError):
            while True:
                idle.pop().disconnect()

    def open(self) -> Any:
        """Return a new connection that is not connected yet."""
        connection: Any = self._pool.connection_class(**self._kwargs)
        connection.redislock_unread = 0
        connection.redislock_until = -inf
        connection.redislock_idle = self._idle[beside.get()]
        if beside.get() is not None and hasattr(self._pool, "sentinel_manager"):
            connection.connection_pool = asking_anew(connection.connection_pool)
        return connection

    def _forget(self) -> None:
        # Each thread beside greenlets has its own: gevent's sockets belong to one hub. A full deque drops a
        # connection, which closes itself.
        self._idle: dict[Any, deque[Any]] = defaultdict(partial(deque, maxlen=MOST_IDLE))
        self._pid = getpid()


def place_of(pool: Any) -> str:
    """Return where the server of a redis-py pool is, without credentials."""
    kwargs = pool.connection_kwargs
    db = kwargs.get("db") or 0
    if "path" in kwargs:
        return f"unix://{kwargs['path']}?db={db}"
    service = getattr(pool, "service_name", None)
    if service is not None:
        return f"sentinel service {service!r}, db {db}"
    scheme = "rediss" if issubclass(pool.connection_class, redis.SSLConnection) else "redis"
    return f"{scheme}://{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}/{db}"


def impatient(seconds: float) -> dict[str, Any]:
    """Return redis-py's options by which a client tries once, and waits so long for each step."""
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds, "retry": Retry(NoBackoff(), 0)}


def asking_anew(proxy: Any, bound: float | None = None) -> Any:
    """Return the proxy of a Sentinel's pool with connections of its own to the Sentinels.

    ``bound``: seconds that all of them together have for an answer.
    """
    asking = copy(proxy)
    manager = copy(proxy.sentinel_manager)
    addresses = [each.connection_pool.connection_kwargs for each in manager.sentinels]
    if bound is not None:
        manager.sentinel_kwargs = {**manager.sentinel_kwargs, **impatient(bound / max(1, len(addresses)))}
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


def pool_of(url: str, where: str = "lock server") -> "redis.ConnectionPool":
    """Return a redis-py pool that knows how to reach ``url``; connects to nothing yet.

    *where* the URL was found, for errors.

    Raises:
        LockOptionError: the URL cannot be read, or is a Cluster's; its password is masked in the text.
    """
    plain = plain_url(url, where)
    if plain.startswith("redis+socket://"):  # Celery's way to write a unix socket
        plain = plain.replace("redis+socket", "unix", 1).replace("virtual_host=", "db=")
    is_sentinels = plain.startswith("sentinel://")
    try:
        pool = _sentinels_pool(plain) if is_sentinels else redis.ConnectionPool.from_url(plain)
        check_options(pool)
        database = plain.partition("?")[0].rpartition("://")[2].partition("/")[2].strip("/")
        if not plain.startswith("unix") and database and not database.isdigit():
            raise ValueError(database)  # noqa: TRY301  redis-py takes 0 for it (redis 8.1.0, ``parse_url``)
    except (ValueError, TypeError, redis.RedisError) as error:
        # Their texts quote parts of the URL, and a badly quoted password is such a part.
        what = misread(url, error) or "is not a URL of a Redis or Valkey server"
        problem = (
            f"{mask_password(url)!r} {what}; use redis://host:port/db, rediss://…, unix:///path?db=0 "
            "or sentinel://host:port;…/db?master_name=…, and quote special characters of a password "
            "(urllib.parse.quote)"
        )
        raise LockOptionError(where, [problem]) from None
    return pool


def plain_url(url: str, where: str) -> str:
    """Return a URL as redis-py writes it: the scheme, TLS and the checking of certificates.

    Raises:
        LockOptionError: it is a Cluster's.
    """
    if is_cluster(url):
        problem = f"{mask_password(url)!r} leads to a Cluster, and this takes one server"
        remedy = "name a single server or Sentinels (sentinel://host:port?master_name=…)"
        raise LockOptionError(where, [f"{problem}; {remedy}"])
    plain = re.sub(r"^valkey(s?)://", r"redis\1://", url)
    plain = re.sub(r"(?<=ssl_cert_reqs=)CERT_(\w+)", lambda found: found[1].lower(), plain)
    tls = re.search(r"(?i)[?&]ssl=(true|1|yes|false|0|no)(?=&|$)", plain)
    if tls is None or plain.startswith("sentinel"):
        return plain
    plain = plain[: tls.start() + 1] + plain[tls.end() + 1 :]
    return re.sub(r"^redis://", "rediss://", plain) if tls[1].lower() in _TRUE else plain


def is_cluster(url: object) -> bool:
    """Whether this is the URL of a Cluster."""
    return isinstance(url, str) and re.match(r"(?i)[\w+]*cluster://", url) is not None


def _sentinels_pool(url: str) -> "redis.ConnectionPool":
    """Return the pool of ``sentinel://host:port;sentinel://…/db?master_name=…``, in redis-py's words.

    Options that begin with ``sentinel_`` are of the connections to the Sentinels: their password.
    """
    hosts = [re.sub(r"^sentinel://", "redis://", each) for each in url.split(";")]
    every = [parse_url(each) for each in hosts]  # type: ignore[no-untyped-call]
    addresses = [(each.pop("host", "localhost"), each.pop("port", 26379)) for each in every]
    options: dict[str, Any] = {name: value for each in every for name, value in each.items()}
    theirs = {name[9:]: options.pop(name) for name in [*options] if name.startswith("sentinel_")}
    service = options.pop("master_name", None)
    if service is None:
        raise ValueError(_NO_MASTER)
    options["ssl"] = str(options.pop("ssl", "")).lower() in _TRUE
    manager = redis.Sentinel(addresses, sentinel_kwargs=theirs)  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(service, manager, **options)  # type: ignore[no-untyped-call]


def misread(url: str, error: Exception) -> str | None:
    """Return what is wrong with a URL, where that is no secret: an option that redis-py does not know."""
    if str(error) == _NO_MASTER:
        return _NO_MASTER
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    query = mask_password(url).partition("?")[2]  # what a password could be is not in there
    if found is None or not re.search(rf"(?:^|&){found[1]}=", query):
        return None
    return f"has the option {found[1]!r}, which redis-py does not know for this kind of URL"


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


_TRUE = {"true", "1", "yes"}
_NO_MASTER = "does not say which primary to ask the Sentinels for (?master_name=…)"
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

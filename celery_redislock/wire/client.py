"""A lock server that is named by a URL, or by a client of redis-py's whose options are taken.

Its pool makes redis-py's own connections: :mod:`.connection` connects with their options, and the client's
timeouts, retries and decoding count for nothing.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import redis
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from celery_redislock.exceptions import LockOptionError
from celery_redislock.wire.connection import Connections, is_cluster, pool_of
from celery_redislock.wire.nodes import Nodes, nodes_at, nodes_of

#: What names a lock server: a URL, a client, or a callable that returns a new client.
Named: TypeAlias = "str | redis.Redis | redis.RedisCluster | Callable[[], redis.Redis]"

#: redis-py's own connections, whose options say all of how to connect.
_OWN = {
    redis.Connection,
    redis.SSLConnection,
    redis.UnixDomainSocketConnection,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
}

#: How redis-py's own pools make them; one that does it in another way knows more than its options.
_MADE_BY = {redis.ConnectionPool.make_connection, redis.BlockingConnectionPool.make_connection}


def reach(named: Named, *, socket_timeout: float, where: str = "lock server") -> Connections | Nodes:
    """Return how to reach the server that a URL, a client or a callable names; connects to nothing.

    Arguments: see :func:`celery_redislock.locks.connect`. *where* names the setting for errors.

    Raises:
        LockOptionError: it cannot be read, or is no client whose options can be taken.
    """
    if isinstance(named, str):
        if is_cluster(named):
            return nodes_at(named, socket_timeout=socket_timeout, where=where)
        return Connections(pool_of(named, where), socket_timeout=socket_timeout, bounds_sentinels=True)
    is_one = hasattr(named, "execute_command") and not isinstance(named, type)
    client: Any = named if is_one or not callable(named) else made_by(named, where)
    if isinstance(client, redis.RedisCluster):
        return nodes_of(client, socket_timeout=socket_timeout)
    pool: Any = getattr(client, "connection_pool", None)
    problem = ""
    if any(cls.__module__.startswith("redis.asyncio") for cls in type(client).__mro__):
        problem = "its calls must be awaited, and locks are used by threads"
    elif getattr(pool, "connection_class", None) not in _OWN or not _makes_own(pool):
        problem = "its pool makes no connections of redis-py's own, whose options would lead to the server"
    elif not getattr(pool, "is_master", True):
        problem = "it leads to replicas, and locks are written; make it with master_for, not slave_for"
    if problem:
        remedy = "give the URL of the server, or a plain redis.Redis; tests take memory_locks() instead"
        raise LockOptionError(where, [f"a {_kind_of(client)} cannot be used: {problem}; {remedy}"])
    note = f" (options of a {_kind_of(client)})"
    return Connections(pool, socket_timeout=socket_timeout, bounds_sentinels=True, note=note)


def _makes_own(pool: Any) -> bool:
    return getattr(type(pool), "make_connection", None) in _MADE_BY


def made_by(make: Callable[[], Any], where: str) -> Any:
    """Return what a callable makes; it is the caller's: what it raises becomes a :class:`LockOptionError`."""
    try:
        return make()
    except Exception as error:
        problem = f"{make!r} was called without arguments, to make a client, and raised {error!r}"
        raise LockOptionError(where, [problem]) from error


def _kind_of(client: Any) -> str:
    return f"{type(client).__module__}.{type(client).__qualname__}"

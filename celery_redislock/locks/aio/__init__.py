"""Locks for asyncio: the twins of those in :mod:`celery_redislock.locks`, the same locks on the server.

::

    from celery_redislock.locks import aio

    async with aio.connect("redis://localhost:6379/0") as store:
        async with aio.Lock(store, "nightly-import", on_lost="cancel") as lock:
            ...

The scripts, the line and the lease are the same; only requests are carried out by the loop. A hold belongs to
a *task*. Leases are renewed by the watchdog's thread over a connection of its own, so a loop that is blocked
loses none; but those of a store that was made from a client (see :func:`connect`).

A loop has at most 16 connections to a server, those of tasks that wait included.
"""

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

import redis
import redis.asyncio
from redis.sentinel import SentinelConnectionPool

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.aio.cluster import store_at
from celery_redislock.locks.aio.lock import Lock
from celery_redislock.locks.aio.readwrite import ReadWriteLock
from celery_redislock.locks.aio.semaphore import Permit, Semaphore
from celery_redislock.locks.aio.store import Store, Verbs
from celery_redislock.locks.terms import OF_CONNECT, check_connect, refuse_others
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.wire.client import made_by
from celery_redislock.wire.connection import Connections, is_cluster, pool_of
from celery_redislock.wire.loop import Wires
from celery_redislock.wire.nodes import nodes_at, nodes_of

#: A client that a factory returns, whose options are taken.
Client: TypeAlias = "redis.asyncio.Redis | redis.asyncio.RedisCluster | redis.RedisCluster"

__all__ = ["Lock", "Permit", "ReadWriteLock", "Semaphore", "Store", "connect"]


def connect(
    server: "str | Client | Callable[[], redis.Redis | Client]",
    *,
    prefix: str = "redislock",
    socket_timeout: float = 1.0,
    strict_fence: bool = False,
    min_replicas: int = 0,
    **others: NoReturn,
) -> Store:
    """Return a store for one event loop, that of its first request; opens no connection before that.

    Args:
        server: a URL, as for :func:`celery_redislock.locks.connect`. Or a factory: it returns a new client of
            redis-py, whose options say how to connect; it is called once. Or a ``RedisCluster`` of either
            kind, whose options are taken.
        prefix: put in front of every key.
        socket_timeout: seconds, from 0.001 up, as for :func:`celery_redislock.locks.connect`.
        strict_fence: likewise.
        min_replicas: likewise.
        **others: none; an option that it does not have is refused with what to write instead.

    Raises:
        LockOptionError: the server cannot be reached so, or the timeout is no number of seconds in range.
    """
    refuse_others("aio.connect", others, OF_CONNECT)
    check_connect("aio.connect", prefix, socket_timeout)
    options: Any = {"prefix": prefix, "strict_fence": strict_fence, "min_replicas": min_replicas}
    made: Any = made_by(server, "aio.connect") if callable(server) else server
    if isinstance(made, redis.RedisCluster | redis.asyncio.RedisCluster) or is_cluster(made):
        how: Any = {"socket_timeout": socket_timeout}
        nodes = nodes_at(made, **how, where="aio.connect") if isinstance(made, str) else nodes_of(made, **how)
        return store_at(nodes, **options)
    pool = pool_of(made) if isinstance(made, str) else _pool_like(made, is_new=callable(server))
    connections = Connections(pool, socket_timeout=socket_timeout, bounds_sentinels=True)
    return Store(RedisStore(connections, **options), Verbs(connections, **options), Wires(connections))


def _pool_like(made: Any, *, is_new: bool) -> "redis.ConnectionPool":
    """Return a synchronous pool with the options of a client; ``is_new``: a factory has made it."""
    pool: Any = getattr(made, "connection_pool", None)
    if isinstance(made, redis.Redis) and isinstance(pool, SentinelConnectionPool) and is_new:
        return pool
    kind = getattr(redis.connection, getattr(pool, "connection_class", int).__name__, None)
    if kind is None or not is_new:
        problem = (
            f"{made!r} is no URL, and from no callable that returns a client with "
            "plain connections of redis-py; give a URL (tests of tasks take memory_locks())"
        )
        raise LockOptionError("aio.connect", [problem])
    return redis.ConnectionPool(kind, **pool.connection_kwargs)

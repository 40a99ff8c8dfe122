"""Locks for asyncio: the twins of those in :mod:`celery_redislock.locks`, the same locks on the server.

::

    from celery_redislock.locks import aio

    async with aio.connect("redis://localhost:6379/0") as store:
        async with aio.Lock(store, "nightly-import", on_lost="cancel") as lock:
            ...

The scripts, the line and the lease are the same; only requests are carried out by the loop. A hold belongs to
a *task*. Leases are renewed by the watchdog's thread over a connection of its own, so a loop that is blocked
loses none; but those of a store that was made from a client (see :func:`connect`).

A loop has at most 16 connections, those of tasks that wait included.
"""

from collections.abc import Callable
from typing import Any, Literal

import redis
import redis.asyncio
from redis.sentinel import SentinelConnectionPool

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.aio.lock import Lock
from celery_redislock.locks.aio.readwrite import ReadWriteLock
from celery_redislock.locks.aio.semaphore import Permit, Semaphore
from celery_redislock.locks.aio.store import ByLoop, Store, Verbs
from celery_redislock.locks.aio.wires import ClientWires, OwnWires
from celery_redislock.locks.connection import Connections, is_cluster, mask_password, pool_of
from celery_redislock.locks.redisstore import RedisStore
from celery_redislock.locks.terms import check_connect

__all__ = ["Lock", "Permit", "ReadWriteLock", "Semaphore", "Store", "connect"]


def connect(
    server: "str | redis.asyncio.Redis | Callable[[], redis.Redis | redis.asyncio.Redis]",
    *,
    prefix: str = "redislock",
    socket_timeout: float = 1.0,
    strict_fence: bool = False,
    min_replicas: int | Literal["auto"] = 0,
    sync: Literal["aof"] | None = None,
) -> Store:
    """Return a store for one event loop, that of its first request; opens no connection before that.

    Args:
        server: a URL, as for :func:`celery_redislock.locks.connect`, but none of a Cluster. Or a factory: it
            returns a new client of redis-py, whose options say how to connect; it is called once. Or a
            ``redis.asyncio.Redis``: it is called itself, with its own connections, timeouts and retries, and
            leases are renewed through its loop: a loop that is blocked for longer than a ttl loses that
            lease.
        prefix: put in front of every key.
        socket_timeout: seconds, from 0.001 up, as for :func:`celery_redislock.locks.connect`.
        strict_fence: likewise.
        min_replicas: likewise; not with a client, whose requests do not share a connection.
        sync: likewise. At most 14 acquires of a loop wait for the disk at once.

    Raises:
        LockOptionError: the server cannot be reached so, or the timeout is no number of seconds in range.
    """
    check_connect("aio.connect", prefix, socket_timeout)
    options: dict[str, Any] = {"prefix": prefix, "strict_fence": strict_fence}
    options.update(min_replicas=min_replicas, sync=sync)
    if isinstance(server, redis.asyncio.Redis):
        calls: Any = ClientWires(server, socket_timeout)  # in place of connections
        beside = RedisStore(calls, **options)
        beside._scripts = by_loop = ByLoop(calls)
        store = by_loop.store = Store(beside, Verbs(calls, **options), calls)
        return store
    if isinstance(server, str) and is_cluster(server):
        problem = f"{mask_password(server)!r}: a Cluster has no locks for asyncio; use celery_redislock.locks"
        raise LockOptionError("aio.connect", [problem])
    pool = pool_of(server) if isinstance(server, str) else _pool_like(server)
    connections = Connections(pool, socket_timeout=socket_timeout, bounds_sentinels=True)
    return Store(RedisStore(connections, **options), Verbs(connections, **options), OwnWires(connections))


def _pool_like(factory: Any) -> "redis.ConnectionPool":
    """Return a synchronous pool with the options of the client that a factory makes."""
    made = factory() if callable(factory) else factory
    pool: Any = getattr(made, "connection_pool", None)
    if isinstance(made, redis.Redis) and isinstance(pool, SentinelConnectionPool) and callable(factory):
        return pool
    kind = getattr(redis.connection, getattr(pool, "connection_class", int).__name__, None)
    if kind is None or not callable(factory):
        problem = (
            f"{made!r} is no URL, no redis.asyncio.Redis, and from no callable that returns a client with "
            "plain connections of redis-py; give a URL"
        )
        raise LockOptionError("aio.connect", [problem])
    return redis.ConnectionPool(kind, **pool.connection_kwargs)

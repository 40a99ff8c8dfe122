"""From a Celery app's settings to its lock store.

URLs are read by Celery itself (``celery.app.backends.by_url``), so that every
form it knows (TLS, Unix sockets, Sentinel, credential providers) means here
what it means there.
"""

import re
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.store import LockStore
from celery_redislock.options import LockSettings

if TYPE_CHECKING:
    import redis

__all__ = ["store_of", "use_store"]

_REDIS_SCHEMES = frozenset({"redis", "rediss", "redis+socket", "sentinel", "unix", "valkey", "valkeys"})
_stores: "weakref.WeakKeyDictionary[Any, tuple[LockSettings | None, LockStore]]" = weakref.WeakKeyDictionary()
_making = threading.Lock()


def store_of(app: Any, settings: LockSettings) -> LockStore:
    """Return the app's lock store, made at the first call; opens no connection.

    One per app and process; made anew when the settings have changed.

    Raises:
        LockOptionError: no setting names a Redis server, or the URL cannot be read.
    """
    known = _stores.get(app)
    if known is not None and (known[0] is None or known[0] is settings or known[0] == settings):
        return known[1]
    with _making:
        store = _make_store(app, settings)
        _stores[app] = (settings, store)
    return store


def use_store(app: Any, store: LockStore | None) -> LockStore | None:
    """Make the app keep its locks in this store, whatever its settings; ``None`` ends it.

    Returns:
        The store used so before, ``None`` if there was none. For tests.
    """
    known = _stores.pop(app, None)
    if store is not None:
        _stores[app] = (None, store)
    return known[1] if known is not None and known[0] is None else None


def _make_store(app: Any, settings: LockSettings) -> LockStore:
    from celery_redislock.locks.connection import Connections  # noqa: PLC0415  imports redis
    from celery_redislock.locks.redisstore import RedisStore  # noqa: PLC0415  imports redis

    url, options, ssl = _where(app, settings)
    keyprefix = options.get("global_keyprefix") or ""
    return RedisStore(
        Connections(_pool(app, url, options, ssl), socket_timeout=settings.socket_timeout),
        prefix=f"{keyprefix}{settings.prefix}",
        strict_fence=settings.fence == "strict",
        min_replicas=settings.min_replicas,
        socket_timeout=settings.socket_timeout,
    )


def _where(app: Any, settings: LockSettings) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """The lock server's URL, with the transport and TLS options of the place it was taken from.

    The broker comes before the result backend: it must be reachable to publish anyway, so locking
    there adds no new way to fail.
    """
    conf = app.conf
    backend_options = conf.get("result_backend_transport_options") or {}
    backend_ssl = conf.get("redis_backend_use_ssl") or {}
    if settings.url is not None:
        if _scheme(settings.url) not in _REDIS_SCHEMES:
            raise LockOptionError("redislock_url", [_unknown_scheme(settings.url)])
        return settings.url, backend_options, backend_ssl
    broker = conf.broker_write_url or conf.broker_url
    if isinstance(broker, list | tuple):
        broker = broker[0] if broker else None
    if broker and _scheme(broker) in _REDIS_SCHEMES:
        ssl = conf.get("broker_use_ssl")
        return broker, conf.get("broker_transport_options") or {}, ssl if isinstance(ssl, Mapping) else {}
    backend = conf.result_backend
    if isinstance(backend, str) and _scheme(backend) in _REDIS_SCHEMES:
        return backend, backend_options, backend_ssl
    problem = (
        f"neither the broker ({_scheme(broker) if broker else 'none'}) nor the result backend "
        f"({_scheme(backend) if isinstance(backend, str) else 'none'}) is Redis or Valkey; "
        "set redislock_url = 'redis://host:port/db'"
    )
    raise LockOptionError("redislock_url", [problem])


def _pool(app: Any, url: str, options: Mapping[str, Any], ssl: Mapping[str, Any]) -> "redis.ConnectionPool":
    from celery.app.backends import by_url  # noqa: PLC0415  only when a store is made

    from celery_redislock.locks.connection import mask_password, pool_of  # noqa: PLC0415  imports redis

    plain = re.sub(r"^valkey(s?)://", r"redis\1://", url)
    if _scheme(plain) == "unix":
        return pool_of(plain)
    try:
        cls, backend_url = by_url(plain, app.loader)
        # The broker's options are not the result backend's, but the class reads only the latter.
        with_options = type(cls.__name__, (cls,), {"_transport_options": dict(options)})
        pool: redis.ConnectionPool = with_options(app=app, url=backend_url).client.connection_pool
    except (ValueError, TypeError, ImportError) as error:
        problem = (
            f"{mask_password(url)!r} cannot be read ({type(error).__name__}); use a URL as for result_backend"
        )
        raise LockOptionError("redislock_url", [problem]) from None
    if ssl and _scheme(plain) == "redis":
        return _with_tls(pool, ssl)
    return pool


def _with_tls(pool: "redis.ConnectionPool", ssl: Mapping[str, Any]) -> "redis.ConnectionPool":
    import redis  # noqa: PLC0415  only when a store is made

    pool.connection_class = redis.SSLConnection
    pool.connection_kwargs.update(ssl)
    return pool


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else ""


def _unknown_scheme(url: str) -> str:
    from celery_redislock.locks.connection import mask_password  # noqa: PLC0415  imports redis

    masked = mask_password(url)
    if _scheme(url) == "redis+cluster":
        return f"{masked!r}: Redis Cluster is not supported yet; use a single server or sentinel://"
    known = ", ".join(f"{scheme}://" for scheme in sorted(_REDIS_SCHEMES))
    return f"{masked!r} has the unknown scheme {_scheme(url) or '(none)'!r}; use one of {known}"

"""From a Celery app's settings to its lock store.

URLs are read by Celery itself (``celery.app.backends.by_url``), so that every form it knows (TLS, Unix
sockets, Sentinel, credential providers) means here what it means there. ``redislock_url`` may be a client.
"""

import os
import re
import ssl
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.local import Proxy
from celery.utils.collections import ConfigurationView

from celery_redislock.declaring.options import LockSettings, read_settings
from celery_redislock.declaring.unknown import GONE, left_over_settings, unknown_settings
from celery_redislock.exceptions import LockOptionError
from celery_redislock.log import logger
from celery_redislock.store.store import LockStore

if TYPE_CHECKING:
    import redis

#: Where a task keeps its resolved declaration, with the store.
DECLARATION = "_redislock_declaration"

_REDIS_SCHEMES = frozenset({"redis", "rediss", "redis+socket", "sentinel", "unix", "valkey", "valkeys"})
#: Settings with which Celery completes its result backend's URL. They say nothing about the broker's server.
_OF_THE_BACKEND = (
    *("redis_host", "redis_port", "redis_db", "redis_username", "redis_password"),
    "redis_backend_credential_provider",
)
#: The stores of an app by the settings they were made with; under ``None`` one given for tests.
_stores: "weakref.WeakKeyDictionary[Any, dict[LockSettings | None, LockStore]]" = weakref.WeakKeyDictionary()
_told: "weakref.WeakSet[Any]" = weakref.WeakSet()


class NoLockServerError(LockOptionError):
    """No setting names a lock server: neither one of its own, nor the broker or result backend is one."""


def settings_of(app: Any) -> LockSettings:
    """Return the app's settings, and the switch in the environment; raises as :func:`read_settings`."""
    return read_settings(app.main or "settings", app.conf.get, os.environ)


def store_of(app: Any, settings: LockSettings | None = None) -> LockStore:
    """Return the store in which an app keeps its locks, made at the first call; opens no connection.

    For a :class:`~celery_redislock.locks.Semaphore` or a
    :class:`~celery_redislock.locks.ReadWriteLock` beside the app's tasks. ``settings``: those of the app,
    which are read where they are not given.

    Raises:
        LockOptionError: it is no app; no setting names a Redis server (``NoLockServerError``), or the URL
            cannot be read.
    """
    app = _behind(app)
    if not hasattr(app, "conf"):
        problem = (
            "it is no Celery app; without one it is celery_redislock.locks.Lock(locks.connect(URL), name)"
        )
        raise LockOptionError(f"a {type(app).__qualname__}", [problem])
    settings = settings or settings_of(app)
    stores = _stores.setdefault(app, {})
    known = stores.get(None) or stores.get(settings)
    if known is not None:
        return known
    if app not in _told and app.conf.get("redislock_check") != "ignore":
        # A worker checks them when it starts. Of a program that only publishes, nobody else does.
        for problem in setting_problems(app):
            logger.warning("redislock: %s", problem)
    return stores.setdefault(settings, _make_store(app, settings))


def joined_for(where: str, store: LockStore) -> LockStore:
    """Return the store of locks of several names; raises LockOptionError where there is none."""
    from celery_redislock.store.joined import joined  # noqa: PLC0415  imports redis

    try:
        return joined(store)
    except LockOptionError as error:
        raise LockOptionError(where, error.problems) from None


def use_store(app: Any, store: LockStore | None) -> LockStore | None:
    """Make the app keep its locks in this store (``None``: its own), and return the one before. For tests."""
    app = _behind(app)
    stores = _stores.setdefault(app, {})
    for task in app._tasks.values():
        task.__dict__.pop(DECLARATION, None)
    before = stores.pop(None, None)
    if store is not None:
        stores[None] = store
    return before


def _behind(app: Any) -> Any:
    # celery.current_app is no app, and cannot be referred to weakly.
    return app._get_current_object() if issubclass(type(app), Proxy) else app


def setting_problems(app: Any) -> list[str]:
    """Return a problem for each unknown setting of the app; the caller logs them, so that it is done once."""
    _told.add(app)
    names = [*map(str, app.conf)]
    return unknown_settings(names) + left_over_settings(names)


def _make_store(app: Any, settings: LockSettings) -> LockStore:
    from celery_redislock.store.cluster import store_on  # noqa: PLC0415  imports redis
    from celery_redislock.wire.client import reach  # noqa: PLC0415  imports redis
    from celery_redislock.wire.connection import Connections  # noqa: PLC0415  imports redis

    address = _address(app, settings)
    bound = settings.socket_timeout
    return store_on(
        Connections(_pool(app, address, bound), socket_timeout=bound)
        if address.is_celerys
        else reach(address.url, socket_timeout=bound, where=address.setting),
        prefix=f"{address.options.get('global_keyprefix') or ''}{settings.prefix}",
        strict_fence=settings.fence == "strict",
        min_replicas=settings.min_replicas,
    )


class _Address(NamedTuple):
    """The lock server's URL or client, the setting it is from, and that one's transport and TLS options."""

    url: Any
    setting: str
    options: Mapping[str, Any]
    use_ssl: object

    @property
    def tls(self) -> Mapping[str, Any]:
        return self.use_ssl if isinstance(self.use_ssl, Mapping) else {}

    @property
    def is_celerys(self) -> bool:
        """Whether Celery reads it: no client or Cluster; no Sentinels whose URL names the primary."""
        is_ours = self.setting == "redislock_url" and re.search("cluster://|master_name=", str(self.url))
        return isinstance(self.url, str) and not is_ours

    @property
    def is_broker(self) -> bool:
        return self.setting.startswith("broker")

    @property
    def masked(self) -> str:
        from celery_redislock.wire.connection import mask_password  # noqa: PLC0415  imports redis

        return repr(mask_password(self.url))


def _address(app: Any, settings: LockSettings) -> _Address:
    from celery_redislock.wire.connection import is_cluster, plain_url  # noqa: PLC0415  imports redis

    conf = app.conf
    of_backend = conf.get("result_backend_transport_options") or {}, conf.get("redis_backend_use_ssl")
    if settings.url is not None:
        url = settings.url
        address = _Address(url, "redislock_url", *of_backend)
        if not isinstance(url, str) or is_cluster(url) or _scheme(url) in _REDIS_SCHEMES:
            return address
        plain_url(url, address.setting)
        known = ", ".join(f"{scheme}://" for scheme in sorted(_REDIS_SCHEMES))
        instead = GONE.get(_scheme(url), f"use one of {known}")
        problem = f"{address.masked}: the scheme {_scheme(url)!r} cannot be used; {instead}"
        raise LockOptionError(address.setting, [problem])
    # The broker comes before the result backend: it must be reachable to publish anyway.
    broker = _first(conf.broker_write_url or conf.broker_url)
    if _scheme(broker) in _REDIS_SCHEMES:
        setting = "broker_url" if conf.broker_write_url == conf.broker_url else "broker_write_url"
        options = conf.get("broker_transport_options") or {}
        return _Address(broker, setting, options, conf.get("broker_use_ssl"))
    backend = conf.result_backend if isinstance(conf.result_backend, str) else ""
    if _scheme(backend) in _REDIS_SCHEMES:
        return _Address(backend, "result_backend", *of_backend)
    problem = (
        f"neither the broker ({_scheme(broker) or 'none'}) nor the result backend "
        f"({_scheme(backend) or 'none'}) is Redis or Valkey; set redislock_url = 'redis://host:port/db' "
        "(redislock_enabled = False goes without locks)"
    )
    raise NoLockServerError("redislock_url", [problem])


def _first(broker: Any) -> str:
    """The first of a list of brokers, in either spelling; Sentinels are one broker together."""
    urls = list(broker) if isinstance(broker, list | tuple) else str(broker or "").split(";")
    together = bool(urls) and _scheme(urls[0]) == "sentinel"
    return ";".join(urls) if together else urls[0] if urls else ""


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else ""


def _pool(app: Any, address: _Address, bound: float) -> "redis.ConnectionPool":
    from celery.app.backends import by_url  # noqa: PLC0415  only when a store is made
    from redis import RedisError  # noqa: PLC0415  only when a store is made

    from celery_redislock.wire import connection as to  # noqa: PLC0415  imports redis

    url = to.plain_url(address.url, address.setting)
    # The virtual host "/" is database 0 to kombu, and none to Celery's class (5.7.0, backends/redis.py).
    url = re.sub(r"(?<!:)/(/|%2[Ff])(?=[;?]|$)", "/", url)
    if _scheme(url) == "unix":
        return to.pool_of(url, address.setting)
    if _scheme(url) == "sentinel" and not address.options.get("master_name"):
        # Celery would make a pool nevertheless (5.7.0, backends/redis.py), and no lock would ever succeed.
        setting = "broker_transport_options" if address.is_broker else "result_backend_transport_options"
        problem = (
            f"{address.masked} does not say which primary to ask the Sentinels for; "
            f"set {setting} = {{'master_name': …}}"
        )
        raise LockOptionError(address.setting, [problem])
    if address.tls:
        url = re.sub(r"^redis://", "rediss://", url)
    try:
        cls, backend_url = by_url(url, app.loader)
        seen: Any = _AppSeen(app, _as_backend_settings(address, bound, speaks_tls=_scheme(url) == "rediss"))
        pool: redis.ConnectionPool = cls(app=seen, url=backend_url).client.connection_pool
        to.check_options(pool)
    except (ValueError, TypeError, ImportError, RedisError) as error:
        # Their texts quote parts of the URL, and a badly quoted password is such a part.
        vaguely = "its port or its database is no number, or an option is of the wrong kind"
        what = f"cannot be read ({type(error).__name__}): {to.misread(url, error) or vaguely}"
        problem = (
            f"{address.masked} {what}; use a URL as for result_backend, "
            "and quote special characters of a password (urllib.parse.quote)"
        )
        raise LockOptionError(address.setting, [problem]) from None
    return pool


def _as_backend_settings(address: _Address, bound: float, *, speaks_tls: bool) -> dict[str, Any]:
    """Return what Celery's class for the URL is to read as the result backend's settings.

    All Sentinels together are given as long as the lock server: left to redis-py, one that does not answer
    is waited for for ever (redis 5.2.1), or for a minute (8.1.0), while two others know the primary.
    """
    from redis.backoff import NoBackoff  # noqa: PLC0415  only when a store is made
    from redis.retry import Retry  # noqa: PLC0415  only when a store is made

    each = bound / (address.url.count(";") + 1)  # several may be silent, and one call asks them in turn
    impatient = {"socket_timeout": each, "socket_connect_timeout": each, "retry": Retry(NoBackoff(), 0)}
    given = address.options.get("sentinel_kwargs") or {}
    # kombu checks no certificate of a broker where nothing is said about TLS (5.7.0, connection.py).
    unchecked = address.is_broker and not address.tls
    default = {"ssl_cert_reqs": ssl.CERT_NONE if unchecked else ssl.CERT_REQUIRED}
    settings: dict[str, Any] = {
        "result_backend_transport_options": {**address.options, "sentinel_kwargs": {**impatient, **given}},
        "redis_backend_use_ssl": {**default, **address.tls} if address.tls or speaks_tls else None,
    }
    if address.is_broker:
        settings.update(dict.fromkeys(_OF_THE_BACKEND))
    return settings


class _AppSeen:
    """The app with other settings: Celery's class reads the result backend's, wherever the URL is from."""

    def __init__(self, app: Any, settings: dict[str, Any]) -> None:
        self._app = app
        self.conf = ConfigurationView(settings, [app.conf])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)

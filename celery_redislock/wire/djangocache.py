"""The server of a Django cache as that of the locks: ``django-cache://ALIAS`` in place of a URL."""

import ssl
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from celery_redislock.exceptions import LockOptionError

#: Of the URL that names a cache.
SCHEME = "django-cache"

#: Backends whose LOCATION is a URL of a Redis or Valkey server; classes that inherit from them do as well.
_BACKENDS = frozenset(
    {
        "django.core.cache.backends.redis.RedisCache",
        "django_redis.cache.RedisCache",
        "django_valkey.cache.ValkeyCache",
    }
)


def url_of_cache(named: str, where: str) -> str:
    """Return the URL of the primary of a Django cache, the first of several locations.

    User, password, database and TLS options of its ``OPTIONS`` are taken into the URL; what else they say is
    about the cache, and so is its key prefix. *where* names the setting for errors.

    Raises:
        LockOptionError: there is no such alias; its backend cannot be imported, is none on Redis, or is one
            of Sentinels or of a Cluster; or Django is not installed, or has no settings.
    """
    alias = named.removeprefix(f"{SCHEME}://")
    try:
        from django.conf import settings  # noqa: PLC0415  only where a URL asks for it
        from django.utils.module_loading import import_string  # noqa: PLC0415  only where a URL asks for it

        caches = settings.CACHES
    except Exception as error:
        problem = f"{named!r} names a cache of Django, whose settings cannot be read: {error}"
        raise LockOptionError(where, [problem]) from error
    cache = caches.get(alias)
    if cache is None:
        problem = f"{named!r}: CACHES has no {alias!r}; there are {', '.join(sorted(caches))}"
        raise LockOptionError(where, [problem])
    backend = cache.get("BACKEND", "")
    try:
        cls = import_string(backend)
    except ImportError as error:
        raise LockOptionError(where, [f"{named!r}: its backend cannot be imported: {error}"]) from error
    options = {name.lower(): value for name, value in (cache.get("OPTIONS") or {}).items()}
    if not _BACKENDS & {f"{each.__module__}.{each.__qualname__}" for each in cls.__mro__}:
        problem = f"{named!r}: its backend is {backend}, whose server keeps no locks; give a redis:// URL"
        raise LockOptionError(where, [problem])
    if "sentinels" in options or "Cluster" in str(options.get("client_class")):
        problem = (
            f"{named!r} is a cache on Sentinels or a Cluster; give the URL, sentinel://host:port/db?"
            "master_name=… or redis+cluster://host:port"
        )
        raise LockOptionError(where, [problem])
    locations = cache.get("LOCATION") or ""
    first = locations if isinstance(locations, str) else next(iter(locations), "")
    return _with_options(first.replace(";", ",").partition(",")[0], options)


def _with_options(url: str, options: dict[str, Any]) -> str:
    """Return the URL with what the options of the cache say of the connection, where it does not say so.

    What the URL says wins, as for the cache (redis 8.1.0, ``ConnectionPool.from_url``).
    """
    options = {**options, **(options.get("connection_pool_kwargs") or {})}
    parts = urlsplit(url)
    said, _, address = parts.netloc.rpartition("@")
    user, _, password = said.partition(":")
    user = user or quote(options.get("username") or "", "")
    password = password or quote(str(options.get("password") or ""), "")
    place = f"{user}:{password}@{address}" if password else parts.netloc
    query: dict[str, Any] = dict(parse_qsl(parts.query))
    if options.get("db") is not None and (parts.scheme == "unix" or not parts.path.strip("/")):
        query.setdefault("db", options["db"])
    for name in options.keys() - query.keys():
        if name.startswith("ssl_"):
            query[name] = options[name]
    reqs = query.get("ssl_cert_reqs", "")
    if reqs is None or isinstance(reqs, ssl.VerifyMode):
        query["ssl_cert_reqs"] = ssl.VerifyMode(reqs or 0).name
    told = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{parts.scheme}://{place}{parts.path}" + (f"?{told}" if told else "")

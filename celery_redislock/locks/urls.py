"""URLs of lock servers: read, checked, and masked wherever they are shown."""

import re

import redis

from celery_redislock.exceptions import LockOptionError

__all__ = ["check_options", "mask_password", "pool_of"]


def pool_of(url: str) -> "redis.ConnectionPool":
    """Return a redis-py pool that knows how to reach ``url``; connects to nothing yet.

    Raises:
        LockOptionError: the URL cannot be read; its password is masked in the text.
    """
    plain = re.sub(r"^valkey(s?)://", r"redis\1://", url)
    try:
        pool = redis.ConnectionPool.from_url(plain)
        check_options(pool)
        _check_database(plain)
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
    """Read every option as a connection would, which connects to nothing; or the first lock would find out.

    Raises:
        TypeError: one is unknown, or no text can stand for it.
        ValueError: one cannot be read.
        redis.RedisError: they contradict each other.
    """
    pool.connection_class(**pool.connection_kwargs)
    if isinstance(pool.connection_kwargs.get("credential_provider"), str):
        message = "credential_provider must be an object"
        raise TypeError(message)


def _check_database(url: str) -> None:
    """redis-py takes 0 for what is no number (redis 8.1.0, ``parse_url``), and that is another database."""
    scheme, _, rest = url.partition("://")
    database = rest.partition("?")[0].partition("/")[2].strip("/")
    if scheme != "unix" and database and not database.isdigit():
        raise ValueError(database)


_SECRET = re.compile(r"[\w-]*(?:pass|secret|token|credential)[\w-]*=", re.IGNORECASE)


def mask_password(url: str) -> str:
    """Return the URL with its user and password, wherever they stand, replaced by ``***``.

    Rather too much than too little: a password may hold an unquoted ``/``, ``?``, ``&`` or ``@``.
    """
    scheme, found, rest = url.partition("://")
    if not found:
        scheme, rest = "", url
    secret = _SECRET.search(rest)
    end_of_user = rest.rfind("@") + 1
    if secret is None:
        masked = f"***@{rest[end_of_user:]}" if end_of_user else rest
    elif end_of_user > secret.start():
        masked = "***"
    else:
        masked = ("***@" if end_of_user else "") + rest[end_of_user : secret.end()] + "***"
    return scheme + found + masked

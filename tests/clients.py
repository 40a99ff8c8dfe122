"""Stores that are made from clients, and what they cannot pass."""

from collections.abc import Callable, Mapping
from typing import Any

import fakeredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.stores import RedisCase

#: As a client must be that is called itself: one attempt, and a bound for each of its steps.
BOUNDED: Mapping[str, Any] = {
    "socket_timeout": 0.8,
    "socket_connect_timeout": 0.8,
    "retry": Retry(NoBackoff(), 0),
}


class Traced(redis.Redis):
    """As an instrumented client is: every call of it is noted."""

    calls = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        type(self).calls += 1
        return super().execute_command(*args, **options)


def client_at(url: str, kind: type[redis.Redis] = redis.Redis, **options: Any) -> Any:
    """A client of this class for a server's URL, with options that no URL can say."""
    plain = url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
    return kind.from_url(plain, **options)


#: What names the server, by how it is named; and whether it is called itself.
NAMED: Mapping[str, tuple[Callable[[str], Any], bool]] = {
    "client": (client_at, False),
    "client that decodes": (
        lambda url: client_at(url, decode_responses=True, protocol=3, health_check_interval=1),
        False,
    ),
    "callable": (lambda url: lambda: client_at(url), False),
    "through": (lambda url: client_at(url, **BOUNDED), True),
    "through one that decodes": (
        lambda url: lambda: client_at(url, Traced, decode_responses=True, protocol=3, **BOUNDED),
        True,
    ),
    "fakeredis": (lambda _url: fakeredis.FakeRedis(), False),
}


def named_case(how: str, url: str) -> RedisCase:
    """A store whose server is named so."""
    make, through = NAMED[how]
    named = make(url)
    beside = named if how == "fakeredis" else client_at(url)
    return RedisCase(url, named=named, beside=beside, through=through)


def cannot_pass(how: str, test: str) -> str | None:
    """Why this kind of store cannot pass a test; ``None`` where it must."""
    if how == "fakeredis":
        return next((reason for part, reason in FAKE_CANNOT.items() if part in test), None)
    return None


#: What fakeredis does not do as a server does.
FAKE_CANNOT: Mapping[str, str] = {}

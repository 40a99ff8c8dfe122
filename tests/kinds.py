"""The kinds of stores that pass the contract: on which server, how it is named, and what they cannot pass."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.stores import MemoryCase, RedisCase, StoreCase, server_names

#: Both protocols, and a URL that asks for text instead of bytes: the store must not care.
URL_OPTIONS = ["", "protocol=2&decode_responses=true", "protocol=3"]

SERVERS = [(server, options) for server in server_names() for options in URL_OPTIONS]

#: As a client must be that is called itself: one attempt, and a bound for each of its steps.
BOUNDED: Mapping[str, Any] = {
    "socket_timeout": 0.8,
    "socket_connect_timeout": 0.8,
    "retry": Retry(NoBackoff(), 0),
}


def client_at(url: str, kind: type[redis.Redis] = redis.Redis, **options: Any) -> Any:
    """A client of this class for a server's URL, with options that no URL can say."""
    plain = url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
    return kind.from_url(plain, **options)


#: How an embedded server is named, in place of its URL. They differ in how the store connects, and in nothing
#: else, so that they pass the contract of the verbs only.
NAMED: Mapping[str, Callable[[str], Any]] = {
    "client": client_at,
    "client that decodes": lambda url: client_at(
        url, decode_responses=True, protocol=3, health_check_interval=1
    ),
    "callable": lambda url: lambda: client_at(url),
}


def ids_of(param: Any) -> str:
    """What a kind is called in the names of tests."""
    if isinstance(param, str):
        return param
    server, options = param
    return f"{server.rpartition('/')[2]}-{options or 'plain'}"


def store_case(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Iterator[StoreCase]:
    """A store of the kind that the fixture's parameter names."""
    param = request.param
    if param == "memory":
        yield MemoryCase()
        return
    server, options = ("embedded", "") if isinstance(param, str) else param
    url = url_of(server)
    make = NAMED.get(param) if isinstance(param, str) else None
    named = make(url) if make else None
    with closing(RedisCase(url, options, named=named, beside=client_at(url))) as case:
        yield case

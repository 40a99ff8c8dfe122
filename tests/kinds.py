"""The kinds of servers and clients, beside the one on which the contract is played."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.stores import RedisCase, server_names

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


#: How an embedded server is named, in place of its URL.
NAMED: Mapping[str, Callable[[str], Any]] = {
    "client": client_at,
    "client that decodes": lambda url: client_at(
        url, decode_responses=True, protocol=3, health_check_interval=1
    ),
    "callable": lambda url: lambda: client_at(url),
}


#: A server and options of its URL, or the embedded one by a name.
Kind: TypeAlias = tuple[str, str] | str

#: All of them.
KINDS: list[Kind] = [*SERVERS, *NAMED]


def ids_of(kind: Kind) -> str:
    """What a kind is called in the names of tests."""
    if isinstance(kind, str):
        return kind
    server, options = kind
    return f"{server.rpartition('/')[2]}-{options or 'plain'}"


@contextmanager
def store_case(kind: Kind, url_of: Callable[[str], str]) -> Iterator[RedisCase]:
    """A store of this kind, for the block."""
    server, options = ("embedded", "") if isinstance(kind, str) else kind
    url = url_of(server)
    named = NAMED[kind](url) if isinstance(kind, str) else None
    with closing(RedisCase(url, options, named=named, beside=client_at(url))) as case:
        yield case

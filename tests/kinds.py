"""The kinds of stores that pass the contract: on which server, how it is named, and what they cannot pass."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import fakeredis
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


#: How an embedded server is named, in place of its URL. They differ in how the store connects, and in nothing
#: else, so that they pass the contract of the verbs only.
NAMED: Mapping[str, Callable[[str], Any]] = {
    "client": client_at,
    "client that decodes": lambda url: client_at(
        url, decode_responses=True, protocol=3, health_check_interval=1
    ),
    "callable": lambda url: lambda: client_at(url),
    "through": lambda url: client_at(url, **BOUNDED),
}

#: Likewise, and each call is made through a client.
CALLED: Mapping[str, Callable[[str], Any]] = {
    "through one that decodes": lambda url: (
        lambda: client_at(url, Traced, decode_responses=True, protocol=3, **BOUNDED)
    ),
    "fakeredis": lambda _url: fakeredis.FakeRedis(),
}

_NO_TABLE = "what redis.pcall returns of an error is no table in fakeredis"

#: What fakeredis (2.40) does not do as a server does, by the tests' names.
FAKE_CANNOT: Mapping[str, str] = {
    "test_another_programs_index_stops_nothing_and_is_left_as_it_is": _NO_TABLE,
    "test_an_index_of_another_type_keeps_nobody_from_a_permit": _NO_TABLE,
    "test_a_lock_of_broken_holders_keeps_the_trouble_to_itself": _NO_TABLE,
    "test_a_look_tells_of_a_line_of_another_type_and_goes_on": _NO_TABLE,
    "test_of_another_type_where_they_are_kept_it_is_told_and_others_go_on": _NO_TABLE,
    "test_its_answer_is_not_taken_for_the_next_ones": "fakeredis knows no INFO",
    "test_a_holder_killed_right_after_acquiring_leaves_a_lock_that_ends": "no other process sees it",
    "test_all_of_many_holders_are_told": "it takes fakeredis thirteen seconds",
}


_TWICE = "a client may have repeated the request, so it counts as the one that ended a trusted hold"
_SHORT = "their ttl is less than three of its calls"

#: What a store cannot tell whose calls are made through a client, by the tests' names.
CALLED_CANNOT: Mapping[str, str] = {
    "test_a_hold_is_released_from_elsewhere_by_its_token": _TWICE,
    "test_a_block_holds_one_place_and_says_who_has_them": _TWICE,
    "test_a_downgrade_of_a_write_that_is_gone_says_so": _TWICE,
    "test_a_hold_that_is_found_gone_is_announced": _SHORT,
    "test_each_side_is_a_lock": _SHORT,
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
    if (param in CALLED or param == "through") and (reason := CALLED_CANNOT.get(request.node.originalname)):
        pytest.skip(reason)
    if param == "memory":
        yield MemoryCase()
        return
    if param == "fakeredis":
        named = CALLED[param]("")
        if reason := FAKE_CANNOT.get(request.node.originalname):
            pytest.skip(reason)
        with closing(RedisCase("redis://nowhere", named=named, beside=named)) as case:
            yield case
        return
    server, options = ("embedded", "") if isinstance(param, str) else param
    url = url_of(server)
    make = ({**NAMED, **CALLED}).get(param) if isinstance(param, str) else None
    through = isinstance(param, str) and "through" in param
    named = make(url) if make else None
    with closing(RedisCase(url, options, named=named, beside=client_at(url), through=through)) as case:
        yield case

"""How a client names a lock server: what is taken of it, and what is refused."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import aio, connect
from celery_redislock.wire.connection import Connections
from tests.kinds import BOUNDED


class Vault(redis.CredentialProvider):
    """Credentials from elsewhere."""

    def get_credentials(self) -> tuple[str, str]:
        return "bob", "hunter2"


class Proxied:
    """As a wrapper that instruments a client: no ``redis.Redis``, but it has all of it."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class OwnConnection(redis.Connection):
    """A connection of a class of the user's."""


class OwnPool(redis.ConnectionPool):
    """A pool that makes connections in a way of its own, with a token that lives for an hour, say."""

    def make_connection(self) -> Any:
        return super().make_connection()


def sentinel(**sentinel_kwargs: Any) -> redis.Sentinel:
    return redis.Sentinel([("a", 26379), ("b", 26380)], sentinel_kwargs=sentinel_kwargs)


@pytest.mark.parametrize(
    ("make", "server"),
    [
        (lambda: redis.Redis(port=7, db=3, password="hunter2"), "redis://localhost:7/3"),  # noqa: S106
        (lambda: redis.Redis(host="h", ssl=True, credential_provider=Vault()), "rediss://h:6379/0"),
        (lambda: redis.Redis(unix_socket_path="/run/s", db=2), "unix:///run/s?db=2"),
        (lambda: redis.Redis(connection_pool=redis.BlockingConnectionPool(host="h")), "redis://h:6379/0"),
        (lambda: sentinel().master_for("mine", db=1), "sentinel service 'mine', db 1"),
        (lambda: sentinel().master_for("mine", ssl=True), "sentinel service 'mine', db 0"),
        (lambda: Proxied(redis.Redis(host="h")), "redis://h:6379/0"),
        (lambda: lambda: redis.Redis(host="h"), "redis://h:6379/0"),
        (lambda: redis.Redis, "redis://localhost:6379/0"),
    ],
)
def test_of_redis_pys_connections_only_the_options_are_taken(make: Callable[[], Any], server: str) -> None:
    store = connect(make())
    assert isinstance(store.connections, Connections)
    assert store.server.startswith(f"{server} (options of a ")


def test_what_a_client_asks_for_does_not_change_what_the_store_needs() -> None:
    """Bytes, its own timeouts, nothing that repeats or checks behind its back; its credentials as given."""
    vault = Vault()
    theirs: dict[str, Any] = {"decode_responses": True, "protocol": 3, "health_check_interval": 5}
    client = redis.Redis(**theirs, credential_provider=vault, encoding="latin-1", retry=Retry(NoBackoff(), 9))
    connections = connect(client, socket_timeout=0.5).connections
    assert isinstance(connections, Connections)
    connection = connections.take()
    assert connection.encoder.decode_responses is False
    assert connection.encoder.encoding == "utf-8"
    assert connection.socket_timeout == connection.socket_connect_timeout == 0.5
    assert connection.retry._retries == connection.health_check_interval == 0
    assert connection.credential_provider is vault
    assert [name for name in connections._kwargs if name.startswith(("maint", "orig_", "oss_"))] == []


@pytest.mark.parametrize(
    "named",
    [
        lambda: sentinel(password="s").master_for("mine"),  # noqa: S106  the test's own
        lambda: "sentinel://a;sentinel://b:26380/0?master_name=mine&sentinel_password=s",
    ],
    ids=["client", "url"],
)
def test_sentinels_together_are_given_as_long_as_the_lock_server(named: Callable[[], Any]) -> None:
    """Law 9: with redis-py's defaults one that does not answer is waited for for a minute."""
    connections = connect(named(), socket_timeout=0.4).connections
    assert isinstance(connections, Connections)
    every = connections.take().connection_pool.sentinel_manager.sentinels
    asked = [each.connection_pool.connection_kwargs for each in every]
    assert [(each["host"], each["port"], each["password"]) for each in asked] == [
        ("a", 26379, "s"),
        ("b", 26380, "s"),
    ]
    assert {(each["socket_timeout"], each["socket_connect_timeout"]) for each in asked} == {(0.2, 0.2)}
    assert {each["retry"]._retries for each in asked} == {0}


async def coroutine() -> None:
    """What a callable returns that should have been awaited."""


#: Its options would lead to another server than it does: fakeredis's to a real one.
OTHERS = r"give the URL of the server, .* memory_locks\(\)"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (redis.Redis(connection_pool=redis.ConnectionPool(OwnConnection, **BOUNDED)), OTHERS),
        (redis.Redis(connection_pool=OwnPool(**BOUNDED)), OTHERS),
        (fakeredis.FakeRedis(), OTHERS),
        (fakeredis.FakeRedis(socket_timeout=None), OTHERS),
        (lambda: fakeredis.FakeRedis(decode_responses=True), OTHERS),
        (redis.asyncio.Redis(), "its calls must be awaited"),
        (fakeredis.FakeAsyncRedis(), "its calls must be awaited"),
        (sentinel().slave_for("mine"), "leads to replicas, .* master_for, not slave_for"),
        (SimpleNamespace(execute_command=print), "give the URL of the server"),
        (SimpleNamespace(execute_command=print, connection_pool=None), "give the URL of the server"),
        (lambda: None, "a builtins.NoneType cannot be used"),
        (coroutine, "a builtins.coroutine cannot be used"),
        (None, "a builtins.NoneType cannot be used"),
        (6379, "or a plain redis.Redis"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_client_of_another_kind_is_refused_with_a_remedy(named: Any, said: str) -> None:
    with pytest.raises(LockOptionError, match=said):
        connect(named)


@pytest.mark.parametrize("make", [lambda url: url, lambda: 1 / 0], ids=["wants an argument", "raises"])
@pytest.mark.parametrize("connects", [connect, aio.connect], ids=["threads", "asyncio"])
def test_a_callable_that_makes_no_client_says_so(connects: Callable[[Any], Any], make: Any) -> None:
    """It is called without arguments; what it raises is told, typed."""
    with pytest.raises(LockOptionError, match="was called without arguments, to make a client, and raised"):
        connects(make)

"""How a client names a lock server: what is taken of it, how long it may take, and what is refused."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff, ExponentialBackoff, NoBackoff
from redis.retry import Retry

from celery_redislock.exceptions import LockOptionError, LockUnavailable
from celery_redislock.locks import Lock, aio, connect
from celery_redislock.wire.client import longest_call
from celery_redislock.wire.connection import Connections
from celery_redislock.wire.thread import beside
from tests.kinds import BOUNDED, Traced


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


def with_pool(connection_class: type, **options: Any) -> redis.Redis:
    pool = redis.ConnectionPool(connection_class=connection_class, **{**BOUNDED, **options})
    return redis.Redis(connection_pool=pool)


def sentinel(**sentinel_kwargs: Any) -> redis.Sentinel:
    return redis.Sentinel([("a", 26379), ("b", 26380)], sentinel_kwargs=sentinel_kwargs)


# --- in which way ----------------------------------------------------------------------------


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
def test_of_redis_pys_own_connections_only_the_options_are_taken(
    make: Callable[[], Any], server: str
) -> None:
    store = connect(make())

    assert isinstance(store.connections, Connections)
    assert store.server.startswith(f"{server} (options of a ")
    assert store.least_ttl == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_pool(OwnConnection),
        lambda: redis.Redis(connection_pool=OwnPool(**BOUNDED)),
        fakeredis.FakeRedis,
        lambda: fakeredis.FakeRedis(socket_timeout=None),
        lambda: lambda: fakeredis.FakeRedis(decode_responses=True),
    ],
)
def test_a_client_whose_connections_are_others_is_called(make: Callable[[], Any]) -> None:
    store = connect(make())

    assert not isinstance(store.connections, Connections)
    assert "(through a " in store.server
    assert not store.leads_to({})
    assert not store.reaches({})


def test_any_client_is_called_that_is_asked_for_by_name() -> None:
    store = connect(lambda: Traced(host="h", **BOUNDED), through=True)

    assert store.server == f"redis://h:6379/0 (through a {Traced.__module__}.Traced)"
    with pytest.raises(LockOptionError, match="through=True is about a client"):
        connect("redis://h", through=True)


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
    assert {each["socket_timeout"] for each in asked} == {0.2}
    assert {each["socket_connect_timeout"] for each in asked} == {0.2}
    assert {each["retry"]._retries for each in asked} == {0}


# --- how long one call may take --------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        # One attempt connects, and waits for the answer.
        ({"socket_timeout": 1.0, "socket_connect_timeout": 0.5, "retry": Retry(NoBackoff(), 0)}, 1.5),
        ({"socket_timeout": 1.0, "socket_connect_timeout": None, "retry": Retry(NoBackoff(), 0)}, 2.0),
        # Each of two attempts connects in two.
        ({"socket_timeout": 1.0, "socket_connect_timeout": 0.5, "retry": Retry(NoBackoff(), 1)}, 4.0),
        # Pauses of 0.25 s after a failure: two while it connects, in each of three attempts, and two between.
        (
            {"socket_timeout": 1.0, "socket_connect_timeout": 0.5, "retry": Retry(ConstantBackoff(0.25), 2)},
            3 * (3 * 0.5 + 2 * 0.25 + 1.0) + 2 * 0.25,
        ),
        # They grow by three at most, up to a cap.
        (
            {
                "socket_timeout": 0.0,
                "socket_connect_timeout": 0.0,
                "retry": Retry(ExponentialBackoff(2, 0.1), 3),
            },
            5 * (0.3 + 0.9 + 2),
        ),
        ({"socket_timeout": 0.5, "socket_connect_timeout": 0.5, "health_check_interval": 9}, 1.5),
        ({"socket_timeout": None, "socket_connect_timeout": 1.0}, float("inf")),
        (
            {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": Retry(NoBackoff(), -1)},
            float("inf"),
        ),
        ({"socket_timeout": 1.0, "retry": Retry(NoBackoff(), 10**9)}, float("inf")),
    ],
)
def test_the_longest_time_of_a_call_is_timeouts_times_tries_and_pauses(
    options: dict[str, Any], seconds: float
) -> None:
    pool = redis.ConnectionPool(**{"retry": Retry(NoBackoff(), 0), **options})

    assert longest_call(pool) == pytest.approx(seconds)


def test_a_pool_that_makes_its_callers_wait_and_sentinels_are_counted() -> None:
    quick: dict[str, Any] = {**BOUNDED, "socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    assert longest_call(redis.BlockingConnectionPool(timeout=2, **quick)) == pytest.approx(3.0)
    assert longest_call(redis.BlockingConnectionPool(timeout=None, **quick)) == float("inf")
    client = sentinel(**quick).master_for("mine", **quick)
    assert longest_call(client.connection_pool) == pytest.approx(1.0 + 2 * 1.0)


@pytest.mark.parametrize(
    ("options", "takes"),
    [
        ({}, "may (take [0-9.]+ s|wait for ever)"),
        ({**BOUNDED, "socket_timeout": None}, "may wait for ever"),
        ({**BOUNDED, "socket_timeout": 4.5}, r"may take 5\.3 s"),
    ],
    ids=["redis-py's defaults", "no timeout", "long"],
)
def test_a_client_that_keeps_a_lock_waiting_is_refused_with_the_call_to_use(
    options: dict[str, Any], takes: str
) -> None:
    """Law 9. With redis-py's defaults a SET to a frozen node took 55 s."""
    with pytest.raises(LockOptionError, match=takes) as refusal:
        connect(redis.Redis(password="hunter2", **options), through=True)  # noqa: S106  the test's own

    retry = "retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)"
    made_so = f"socket_timeout=1.0, socket_connect_timeout=1.0, {retry}"
    assert f"make it as Redis(…, {made_so})" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)
    assert "sentinel_kwargs" not in str(refusal.value)
    connect(eval(f"redis.Redis({made_so})"), through=True)  # noqa: S307  what it says


def test_sentinels_are_to_be_asked_as_quickly() -> None:
    with pytest.raises(LockOptionError, match="give its Sentinel the same as sentinel_kwargs"):
        connect(sentinel().master_for("mine", **BOUNDED), through=True)


def test_a_ttl_is_three_of_its_longest_calls_at_least() -> None:
    store = connect(redis.Redis(**BOUNDED), through=True)
    assert store.least_ttl == pytest.approx(3 * 1.6)
    assert store.patience == pytest.approx(2 * 1.6)

    with pytest.raises(LockOptionError, match=r"ttl=4.5 is less than three times .* \(4.8 s in all\)"):
        Lock(store, "n", ttl=4.5)
    Lock(store, "n", ttl=4.9)


# --- what is refused -------------------------------------------------------------------------


async def coroutine() -> None:
    """What a callable returns that should have been awaited."""


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (redis.asyncio.Redis(), "its calls must be awaited"),
        (fakeredis.FakeAsyncRedis(), "its calls must be awaited"),
        (sentinel().slave_for("mine"), "leads to replicas, .* master_for, not slave_for"),
        (SimpleNamespace(execute_command=print), "it is no client of redis-py"),
        (SimpleNamespace(execute_command=print, connection_pool=None), "it is no client of redis-py"),
        (lambda: None, "a builtins.NoneType cannot be used: it is no client of redis-py"),
        (coroutine, "a builtins.coroutine cannot be used"),
        (None, "a builtins.NoneType cannot be used"),
        (6379, "give a redis.Redis, a callable that returns one, or a URL"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_client_of_another_kind_is_refused_with_a_remedy(named: Any, said: str) -> None:
    with pytest.raises(LockOptionError, match=said):
        connect(named)


def test_replicas_confirm_nothing_where_no_connection_can_be_shared() -> None:
    """Before anything is taken, and not by the first lock."""
    with pytest.raises(LockOptionError, match=r"min_replicas .* which .*FakeRedis\) does not offer"):
        connect(fakeredis.FakeRedis(), min_replicas=1)


# --- gevent ----------------------------------------------------------------------------------


@pytest.fixture
def _greenlets(monkeypatch: Any) -> None:
    """As if gevent had replaced the sockets."""
    monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(is_module_patched=lambda _: True))


@pytest.mark.usefixtures("_greenlets")
def test_beside_greenlets_each_thread_has_a_client_of_its_own() -> None:
    """Sockets of gevent's belong to one hub, and leases are renewed by a native thread."""
    with pytest.raises(LockOptionError, match=r"give a callable that makes one: lambda: Redis\(…\)"):
        connect(redis.Redis(**BOUNDED), through=True)
    store = connect(lambda: redis.Redis(**BOUNDED), through=True)

    theirs = store.connections.client
    token = beside.set(object())
    try:
        ours = store.connections.client
        assert ours is not theirs
        assert store.connections.client is ours
    finally:
        beside.reset(token)
    assert store.connections.client is theirs


# --- what a client answers -------------------------------------------------------------------


class BreakerError(Exception):
    """An error of no kind that anybody here knows."""


class Broken(fakeredis.FakeRedis):
    """A client that raises what it was told, or answers it."""

    answer: Any = None

    def execute_command(self, *_args: Any, **_options: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (BreakerError("open"), "open"),
        (redis.TimeoutError("Timeout reading from socket"), "no answer in time"),
        (BreakerError("redis://:hunter2@h is down"), r"redis://\*\*\*@h is down"),
        ([b"nonsense"], "no answer to this"),
        (b"", "no answer to this"),
        (None, "no answer to this"),
        (redis.ResponseError("unknown command 'EVALSHA', with args"), "it runs no Lua scripts"),
        (
            redis.exceptions.NoPermissionError("User x has no permissions to run the 'evalsha' command"),
            "no Lua",
        ),
        (redis.ResponseError("ERR Could not find scripting engine 'lua'"), "allow EVAL and EVALSHA"),
    ],
)
def test_whatever_a_client_raises_or_answers_the_lock_server_is_unavailable(answer: Any, reason: str) -> None:
    """Law 9: one kind of error, for which there is a policy; its outcome is not known."""
    client = Broken()
    store = connect(client)
    client.answer = answer

    with pytest.raises(LockUnavailable, match=reason) as raised:
        store.inspect("n")

    assert "hunter2" not in str(raised.value)
    assert (raised.value.was_sent, raised.value.was_refused) == (True, False)


def test_who_made_the_clients_closes_them() -> None:
    closed = []

    class Closing(fakeredis.FakeRedis):
        def close(self) -> None:
            closed.append(self)
            super().close()

    mine = Closing()
    connect(mine).close()
    assert closed == []
    store = connect(Closing)
    store.close()
    assert closed == [store.connections.client]


@pytest.mark.parametrize("make", [lambda url: url, lambda: 1 / 0], ids=["wants an argument", "raises"])
@pytest.mark.parametrize("connects", [connect, aio.connect], ids=["threads", "asyncio"])
def test_a_callable_that_makes_no_client_says_so(connects: Callable[[Any], Any], make: Any) -> None:
    """It is called without arguments; what it raises is told, typed."""
    with pytest.raises(LockOptionError, match="was called without arguments, to make a client, and raised"):
        connects(make)

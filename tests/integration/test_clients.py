"""Stores made from clients, where the contract does not look: frozen servers, replicas, Sentinels, gevent."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import fakeredis
import pytest
import redis
from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer as PackagesServer
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import Lock, connect
from celery_redislock.store.store import NOBODY, Grant, Mark
from tests.acceptance.processes import free_port
from tests.facts import wait_until
from tests.integration.programs import run_program
from tests.integration.test_greenlets import PATCHED
from tests.kinds import BOUNDED, Traced, client_at
from tests.servers import EmbeddedServer
from tests.stores import ABOUT, RedisCase, granted

A, B = "job-a/1", "job-b/1"

#: In both ways: its options, and its calls.
in_both_ways = pytest.mark.parametrize("through", [False, True], ids=["options", "calls"])


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server of one test."""
    with EmbeddedServer(port=0) as server:
        yield server


def client_of(server: PackagesServer, **options: Any) -> redis.Redis:
    return client_at(server.redis_url, **{**BOUNDED, **options})


# --- a server that does not answer -----------------------------------------------------------


@in_both_ways
@pytest.mark.parametrize("is_known", [True, False], ids=["connected", "new"])
def test_a_frozen_server_is_waited_for_as_long_as_the_store_says(
    own_server: EmbeddedServer, *, through: bool, is_known: bool
) -> None:
    """Law 9: with redis-py's defaults it is a minute. Once it answers, the store does, too."""
    # In the first way these would be too long.
    theirs = (
        {} if through else {"socket_timeout": 60, "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 9)}
    )
    with closing(connect(client_of(own_server, **theirs), socket_timeout=0.4, through=through)) as store:
        if is_known:
            granted(store.acquire("n", A, 30.0, facts=ABOUT))
        own_server.pause()
        try:
            for request in (lambda: store.inspect("n"), lambda: store.release("n", A)):
                began = time.monotonic()
                with pytest.raises(LockUnavailable, match="no answer in time"):
                    request()
                assert time.monotonic() - began < store.patience + 0.5
            assert not store.is_open
        finally:
            own_server.resume()

        assert wait_until(lambda: isinstance(store.acquire("n", A, 30.0, facts=ABOUT), Grant), 10)
        assert store.is_open


def test_a_wait_for_a_bell_is_no_longer_than_the_client_waits(redis_url: str) -> None:
    """Else its own timeout, and its retries, would come before the server's answer."""
    with closing(RedisCase(redis_url, named=client_at(redis_url, **BOUNDED), through=True)) as case:
        bell = case.redis.bell("n", "nonce")
        began = time.monotonic()
        assert not case.redis.await_bell(bell, 30.0)
        assert time.monotonic() - began < 0.8

        case.client.rpush(bell, "")
        assert case.redis.await_bell(bell, 30.0)


def test_who_waits_through_a_client_is_served_in_order(redis_url: str) -> None:
    with closing(RedisCase(redis_url, named=client_at(redis_url, **BOUNDED), through=True)) as case:
        held = Lock(case.redis, "n")
        assert held.acquire(0)
        assert not Lock(case.redis, "n", owner="other").acquire(0.5)
        assert held.release()
        with Lock(case.redis, "n", wait=5.0) as lock:
            lock.check()
            assert lock.renew()


# --- what only some clients, and some servers, can -------------------------------------------


@in_both_ways
def test_replicas_confirm_a_lock_of_a_client(own_server: EmbeddedServer, *, through: bool) -> None:
    """In one pipeline: ``WAIT`` counts what its own connection wrote. Also where the script is new there."""
    with client_of(own_server) as client:
        client.config_set("repl-diskless-sync-delay", 0)
        with closing(connect(client, min_replicas=1, through=through)) as store:
            with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
                store.acquire("n", A, 30.0, facts=ABOUT)
            assert client.keys() == []
            client.set("x", "y", px=60_000)
            following = ["--replicaof", "127.0.0.1", str(own_server.port)]
            with EmbeddedServer(extra_args=following):
                # Online is not yet listening.
                assert wait_until(lambda: client.info("replication").get("slave0", {}).get("offset"), 20)
                client.script_flush()
                granted(store.acquire("n", A, 30.0, facts=ABOUT))


@in_both_ways
@pytest.mark.parametrize("renamed", ["EVAL", "EVALSHA", None], ids=["no EVAL", "no EVALSHA", "ACL"])
def test_a_server_without_lua_is_told_in_one_sentence(*, through: bool, renamed: str | None) -> None:
    """Lua is a module since Valkey 9.1, and hosted servers forbid it."""
    arguments = ["--rename-command", renamed, ""] if renamed else []
    with EmbeddedServer(port=0, extra_args=arguments) as server, client_of(server) as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~*", "+@all", "-eval", "-evalsha")
        user = {} if renamed else {"username": "poor", "password": "x"}
        store = connect(client_of(server, **user), through=through)

        with pytest.raises(LockUnavailable) as refusal:
            store.acquire("n", A, 30.0, facts=ABOUT)

        said = (
            r"it runs no Lua scripts, of which locks are made \(.{,90}\); load its Lua module \(.*\), allow"
        )
        refusal.match(said)
        assert client.keys() == []


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (
            ["--cluster-enabled", "yes", "--cluster-port", str(free_port())],
            r"CROSSSLOT .*: it is a node of a Cluster; give redis\+cluster://",
        ),
        (["--replicaof", "127.0.0.1", "1"], "READONLY .*: it is a replica, which takes no locks; give its"),
    ],
    ids=["Cluster", "replica"],
)
def test_a_server_that_is_not_the_one_to_ask_says_which_is(arguments: list[str], remedy: str) -> None:
    """A URL that leads to a node of a Cluster, or to a replica."""
    with EmbeddedServer(port=0, extra_args=arguments) as server, closing(connect(server.redis_url)) as store:
        if "--cluster-enabled" in arguments:
            with client_of(server) as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        with pytest.raises(LockUnavailable, match=remedy):
            store.acquire("n", A, 30.0, facts=ABOUT)
        with pytest.raises(LockUnavailable, match=remedy):
            store.release("message:", NOBODY)


def test_a_mark_that_the_server_refuses_is_lost_without_an_error(own_server: EmbeddedServer) -> None:
    """As where its answer is read by the next one; what ends a hold is carried out."""
    with client_of(own_server) as client, closing(connect(client, through=True)) as store:
        granted(store.acquire("n", A, 30.0, facts=ABOUT))
        client.config_set("maxmemory", 1)

        store.mark_done("n", "message", 60.0)
        assert store.release("n", A, mark=Mark("message", 60.0)).released


def test_what_others_wrote_need_be_no_text(redis_url: str) -> None:
    """Also for a client that decodes all it reads."""
    client = client_at(redis_url, decode_responses=True, **BOUNDED)
    with closing(RedisCase(redis_url, named=client, through=True)) as case:
        case.client.set(case.key(), b"\xff\xfe\0\xfd", px=30_000)

        hold = case.redis.inspect("n")
        assert hold is not None
        assert (hold.token, hold.text) == ("\ufffd\ufffd", b"\xfd")
        assert case.redis.server_says("memory", "maxmemory_policy") == "noeviction"


# --- how a client reaches its server ---------------------------------------------------------


@in_both_ways
def test_a_sentinels_client_locks_on_the_primary_that_it_names(
    primary: EmbeddedServer, sentinel: str, *, through: bool
) -> None:
    quick = {"socket_timeout": 0.4, "socket_connect_timeout": 0.4, "retry": BOUNDED["retry"]}
    host, port = sentinel.removeprefix("sentinel://").split(":")
    client = redis.Sentinel([(host, int(port))], sentinel_kwargs=quick).master_for("mine", **quick)
    with closing(connect(client, through=through)) as store, client_of(primary) as beside:
        granted(store.acquire("n", A, 30.0, facts=ABOUT))

        assert beside.keys("redislock:{n}:lock") == [b"redislock:{n}:lock"]
        assert "sentinel service 'mine'" in store.server


def test_a_url_of_sentinels_needs_no_celery(primary: EmbeddedServer, sentinel: str) -> None:
    with closing(connect(f"{sentinel}/0?master_name=mine")) as store, client_of(primary) as beside:
        granted(store.acquire("n", A, 30.0, facts=ABOUT))

        assert len(beside.keys("redislock:{n}:lock")) == 1


def test_an_instrumented_client_sees_every_call(redis_url: str) -> None:
    with closing(RedisCase(redis_url, named=client_at(redis_url, Traced, **BOUNDED), through=True)) as case:
        granted(case.take(A))
        assert case.redis.release("n", A).released
        before = Traced.calls
        granted(case.redis.acquire("n", B, 30.0, facts=ABOUT))
        assert case.redis.release("n", B).released

        assert Traced.calls == before + 2


def test_a_fork_calls_its_parents_client(plain_case: RedisCase) -> None:
    """While the parent holds a lock, and its watchdog renews it."""
    program = f"""
        from celery_redislock.locks import connect
        from tests.forks import gets_through
        from tests.kinds import BOUNDED, client_at
        quick = dict(BOUNDED, socket_timeout=0.3, socket_connect_timeout=0.3)
        through = connect(client_at({plain_case.url!r}, **quick), prefix=store.prefix, through=True)

        def renew_and_release(name):
            lock = Lock(through, name, ttl=2.0)
            with lock:
                before = watchdog_of(through).renewals
                until(lambda: lock.check() or watchdog_of(through).renewals > before)
            assert lock.holder() is None

        with Lock(through, "n", ttl=2.0) as lock:
            assert gets_through(lambda: renew_and_release("child"), within=20)
            lock.check()
            renew_and_release("other")
    """
    run_program(program, plain_case.url, plain_case.prefix)


@pytest.mark.parametrize("named", [True, False], ids=["callable", "client"])
def test_with_gevent_a_native_thread_renews_through_a_client_of_its_own(
    plain_case: RedisCase, *, named: bool
) -> None:
    """Law 1: also while a greenlet never switches."""
    pytest.importorskip("gevent")
    program = f"""
        from celery_redislock.exceptions import LockOptionError
        from celery_redislock.locks import connect
        from tests.kinds import BOUNDED, client_at
        made = []
        def make():
            quick = dict(BOUNDED, socket_timeout=0.3, socket_connect_timeout=0.3)
            made.append(client_at({plain_case.url!r}, **quick))
            return made[-1]
        try:
            through = connect(make if {named} else make(), prefix=store.prefix, through=True)
        except LockOptionError as error:
            assert not {named} and "callable" in str(error), error
        else:
            assert {named}
            with Lock(through, "n", ttl=2.0) as lock:
                end = time.monotonic() + 5.0
                while time.monotonic() < end:
                    pass
                lock.check()
            assert len(made) == 2
    """
    run_program(program, plain_case.url, plain_case.prefix, first=PATCHED)


# --- with Celery -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [client_at, lambda url: lambda: client_at(url), lambda _url: fakeredis.FakeRedis()],
    ids=["client", "callable", "fakeredis"],
)
def test_a_task_locks_where_its_apps_client_leads(redis_url: str, make: Callable[[str], Any]) -> None:
    with Celery("clients", set_as_current=False, broker="memory://") as app:
        app.conf.update(redislock_url=make(redis_url), redislock_prefix=f"test-clients-{time.time_ns()}")
        task = app.task(base=SingletonTask, name="sell", shared=False, ignore_result=True)(sell)

        first, again = (task.delay(1) for _ in range(2))

        assert (first.is_duplicate, again.is_duplicate) == (False, True)
        assert again.id == first.id
        assert task.lock_for(1).release(reason="the test is over") is not None


def sell(number: int) -> int:
    return number

"""Stores made from clients, where the contract does not look: frozen servers, replicas, Sentinels, gevent."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import redis
from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer as PackagesServer
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import connect
from celery_redislock.store.store import NOBODY, Grant
from tests.acceptance.processes import free_port
from tests.facts import wait_until
from tests.kinds import BOUNDED, client_at
from tests.servers import EmbeddedServer
from tests.stores import ABOUT, granted

A, B = "job-a/1", "job-b/1"


def client_of(server: PackagesServer, **options: Any) -> redis.Redis:
    return client_at(server.redis_url, **{**BOUNDED, **options})


@pytest.mark.parametrize("is_known", [True, False], ids=["connected", "new"])
def test_a_frozen_server_is_waited_for_as_long_as_told(*, is_known: bool) -> None:
    """Law 9: with redis-py's defaults it is a minute. Once it answers, the store does, too."""
    theirs = {"socket_timeout": 60, "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 9)}
    with (
        EmbeddedServer(port=0) as own_server,
        closing(connect(client_of(own_server, **theirs), socket_timeout=0.4)) as store,
    ):
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


@pytest.mark.parametrize("renamed", ["EVAL", "EVALSHA", None], ids=["no EVAL", "no EVALSHA", "ACL"])
def test_a_server_without_lua_is_told_in_one_sentence(*, renamed: str | None) -> None:
    """Lua is a module since Valkey 9.1, and hosted servers forbid it."""
    arguments = ["--rename-command", renamed, ""] if renamed else []
    with EmbeddedServer(port=0, extra_args=arguments) as server, client_of(server) as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~*", "+@all", "-eval", "-evalsha")
        user = {} if renamed else {"username": "poor", "password": "x"}
        store = connect(client_of(server, **user))
        with pytest.raises(LockUnavailable) as refusal:
            store.acquire("n", A, 30.0, facts=ABOUT)
        said = r"it runs no Lua scripts, of which locks are made \(.{,90}\); load its Lua module, allow"
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


def sell(number: int) -> int:
    return number


@pytest.mark.parametrize("make", [client_at, lambda url: lambda: client_at(url)], ids=["client", "callable"])
def test_a_task_locks_where_its_client_leads(redis_url: str, prefix: str, make: Callable[[str], Any]) -> None:
    with Celery("clients", set_as_current=False, broker="memory://") as app:
        app.conf.update(redislock_url=make(redis_url), redislock_prefix=prefix)
        task = app.task(base=SingletonTask, name="sell", shared=False, ignore_result=True)(sell)
        first, again = (task.delay(1) for _ in range(2))
        assert (first.is_duplicate, again.is_duplicate) == (False, True)
        assert again.id == first.id
        assert task.lock_for(1).release(reason="the test is over") is not None

"""Locks that count once they are elsewhere, too: on a replica that comes and goes."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import Lock, aio, connect
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.store import confirmation
from celery_redislock.store.redisstore import RedisStore
from tests.facts import wait_until
from tests.kinds import client_at
from tests.servers import EmbeddedServer
from tests.stores import start_server

#: A client that waits for long enough.
PATIENT = {"socket_timeout": 4.4, "socket_connect_timeout": 0.5, "retry": None}

#: Ways to a lock: connections of our own, and the calls of a client.
in_both_ways = pytest.mark.parametrize("through", [False, True], ids=["options", "calls"])


@pytest.fixture(params=["embedded", "redis-server"])
def primary(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server of one's own whose replicas are there at once."""
    with start_server(request.param, extra_args=["--repl-diskless-sync-delay", "0"], port=0) as server:
        yield server


@contextmanager
def replica_of(primary: EmbeddedServer, *arguments: str) -> Iterator[EmbeddedServer]:
    """A second server that follows the first, and has answered it."""
    following = ("--replicaof", "127.0.0.1", str(primary.port), *arguments)
    with EmbeddedServer(binary=primary.binary, extra_args=following) as replica:
        client: Any = client_at(primary.redis_url)

        def has_answered() -> bool:
            client.set("x", "y", px=60_000)  # there is nothing to acknowledge before
            return bool(client.info("replication").get("slave0", {}).get("offset"))

        assert wait_until(has_answered, 20)
        yield replica


def store_of(server: EmbeddedServer, *, through: bool = False, **options: Any) -> RedisStore:
    """A store that gives confirmations time on a machine that stands still for a moment."""
    named = client_at(server.redis_url, **PATIENT) if through else server.redis_url
    options = {"socket_timeout": 5.0, **options}
    return connect(named, prefix=f"test-{secrets.token_hex(6)}", through=through, **options)


def acquire_and_release(store: RedisStore) -> None:
    """Fails where it is not confirmed."""
    lock = Lock(store, "n", wait=0)
    with lock:
        lock.check()


def told(caplog: Any) -> list[bool]:
    """Whether the server had a replica, by each line about that."""
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return ["has a replica again" in line for line in lines if "min_replicas='auto'" in line]


def until_it_has_none(primary: EmbeddedServer) -> None:
    client: Any = client_at(primary.redis_url)
    assert wait_until(lambda: client.info("replication")["connected_slaves"] == 0, 20)


# --- a replica that comes and goes -----------------------------------------------------------


@in_both_ways
def test_a_replica_must_confirm_while_there_is_one(
    primary: EmbeddedServer, caplog: Any, monkeypatch: Any, *, through: bool
) -> None:
    """``min_replicas="auto"``: without any, locks go on. Each change is told once."""
    with closing(store_of(primary, min_replicas="auto", through=through)) as store:
        for _ in range(3):
            acquire_and_release(store)
        assert told(caplog) == [False]

        with replica_of(primary) as replica:
            monkeypatch.setattr(confirmation, "LOOK_AGAIN", 0.0)
            store.ask_for_replicas()
            monkeypatch.undo()
            acquire_and_release(store)
            assert told(caplog) == [False, True]
            replica.pause()
            try:
                with pytest.raises(LockUnavailable, match="only 0 of 1 replicas confirmed the lock"):
                    acquire_and_release(store)
            finally:
                replica.resume()
            assert wait_until(lambda: store.inspect("n") is None, 10)
        until_it_has_none(primary)

        for _ in range(3):
            acquire_and_release(store)
        assert told(caplog) == [False, True, False]


@pytest.mark.parametrize("least", [1, "auto"])
def test_a_hold_that_nobody_confirmed_is_owed_where_the_server_is_gone_before_it_is_given_back(
    primary: EmbeddedServer, monkeypatch: Any, least: Any
) -> None:
    """The release, or the question about replicas, was never sent, and the hold was taken."""
    with closing(store_of(primary, min_replicas=least)) as store:
        monkeypatch.setattr(store.confirmation, "missing", lambda _counts: gone())

        def gone() -> str:
            store.close()
            primary.stop()
            return "nobody confirmed it"

        with pytest.raises(LockUnavailable, match=r"'acquire' failed .* nobody confirmed it"):
            Lock(store, "n").acquire(0)

        assert len(watchdog_of(store)._debts) == 1


def test_a_new_connection_asks_for_replicas(primary: EmbeddedServer, caplog: Any, monkeypatch: Any) -> None:
    """After a failover it leads to another server, which is asked before it locks."""
    monkeypatch.setattr(confirmation, "LOOK_AGAIN", float("inf"))
    with closing(store_of(primary, min_replicas="auto")) as store:
        acquire_and_release(store)
        with replica_of(primary):
            acquire_and_release(store)
            assert told(caplog) == [False]

            store.close()
            acquire_and_release(store)
            assert told(caplog) == [False, True]


def test_a_loop_asks_likewise(primary: EmbeddedServer, caplog: Any) -> None:
    """Also where a hundred tasks ask at once; a task that is refused so leaves nothing behind."""

    async def story() -> None:
        prefix = f"test-{secrets.token_hex(6)}"
        async with aio.connect(
            primary.redis_url, prefix=prefix, min_replicas="auto", socket_timeout=5.0
        ) as store:

            async def take(number: int) -> None:
                async with aio.Lock(store, f"n{number}", wait=0) as lock:
                    await lock.check()

            await asyncio.gather(*map(take, range(100)))
            assert told(caplog) == [False]
            with replica_of(primary) as replica:
                await store.aclose()
                await take(1)  # opens a connection
                await take(1)
                assert told(caplog) == [False, True]
                replica.pause()
                try:
                    with pytest.raises(LockUnavailable, match="only 0 of 1 replicas confirmed the lock"):
                        await take(1)
                finally:
                    replica.resume()
            until_it_has_none(primary)
            await asyncio.gather(*map(take, range(2, 20)))
            assert told(caplog) == [False, True, False]

    asyncio.run(story())


def test_only_what_acquires_asks_for_replicas(
    primary: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release takes no confirmation, and no further request."""
    monkeypatch.setattr(confirmation, "LOOK_AGAIN", 0.0)

    async def story() -> None:
        prefix = f"test-{secrets.token_hex(6)}"
        async with aio.connect(
            primary.redis_url, prefix=prefix, min_replicas="auto", socket_timeout=5.0
        ) as store:
            lock = aio.Lock(store, "n", auto_renew=False)
            assert await lock.acquire(0)
            with watched(primary) as commands:
                assert await lock.renew()
                assert await lock.release()
                assert not any(" INFO" in each for each in commands())
            with watched(primary) as commands:
                assert await lock.acquire(0)
                assert any(" INFO" in each for each in commands())
            await lock.release()

    asyncio.run(story())


@contextmanager
def watched(server: EmbeddedServer) -> Iterator[Callable[[], list[str]]]:
    """What clients send to the server from now on, scripts' own commands left out."""
    with client_at(server.redis_url, decode_responses=True).monitor() as monitor:

        def commands() -> list[str]:
            last = secrets.token_hex(6)
            client_at(server.redis_url).echo(last)
            heard = []
            for each in monitor.listen():
                if last in each["command"]:
                    return heard
                if each["client_type"] != "lua":
                    heard.append(f"{each['client_address']}{each['client_port']} {each['command']}")
            raise AssertionError

        yield commands

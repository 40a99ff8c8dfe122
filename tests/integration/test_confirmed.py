"""Locks that count once they are elsewhere, too: on a replica."""

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import Lock, aio, connect
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.store.redisstore import RedisStore
from tests.facts import wait_until
from tests.kinds import client_at
from tests.servers import EmbeddedServer


@pytest.fixture
def primary() -> Iterator[EmbeddedServer]:
    """A server of one's own whose replicas are there at once."""
    with EmbeddedServer(extra_args=["--repl-diskless-sync-delay", "0"], port=0) as server:
        yield server


@contextmanager
def replica_of(primary: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A second server that follows the first, and has answered it."""
    following = ("--replicaof", "127.0.0.1", str(primary.port))
    with EmbeddedServer(binary=primary.binary, extra_args=following) as replica:
        client: Any = client_at(primary.redis_url)

        def has_answered() -> bool:
            client.set("x", "y", px=60_000)  # there is nothing to acknowledge before
            return bool(client.info("replication").get("slave0", {}).get("offset"))

        assert wait_until(has_answered, 20)
        yield replica


@pytest.fixture
def store(primary: EmbeddedServer, prefix: str) -> Iterator[RedisStore]:
    """One that gives confirmations time on a machine that stands still for a moment."""
    with closing(connect(primary.redis_url, prefix=prefix, socket_timeout=5.0, min_replicas=1)) as store:
        yield store


def test_a_replica_must_confirm(primary: EmbeddedServer, store: RedisStore) -> None:
    """One that hangs confirms nothing, and the hold is released; so where there is none any more."""
    with replica_of(primary) as replica:
        with Lock(store, "n", wait=0) as lock:
            lock.check()
        replica.pause()
        try:
            with pytest.raises(LockUnavailable, match="only 0 of 1 replicas confirmed the lock"):
                Lock(store, "n").acquire(0)
        finally:
            replica.resume()
        assert wait_until(lambda: store.inspect("n") is None, 10)
    with pytest.raises(LockUnavailable, match="only 0 of 1 replicas confirmed the lock"):
        Lock(store, "n").acquire(0)


def test_a_hold_that_nobody_confirmed_is_owed_where_its_server_is_gone(
    primary: EmbeddedServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release was never sent, and the hold was taken."""
    give_back = store._give_back

    def gone(name: str, token: str) -> None:
        store.close()
        primary.stop()
        give_back(name, token)

    monkeypatch.setattr(store, "_give_back", gone)
    with pytest.raises(LockUnavailable, match=r"'acquire' failed .* only 0 of 1 replicas confirmed"):
        Lock(store, "n").acquire(0)
    assert len(watchdog_of(store)._debts) == 1


def test_a_replica_must_confirm_what_a_task_of_a_loop_acquires(primary: EmbeddedServer, prefix: str) -> None:
    """A task that is refused so leaves nothing behind."""

    async def story() -> None:
        async with aio.connect(primary.redis_url, prefix=prefix, min_replicas=1, socket_timeout=5.0) as store:
            with replica_of(primary) as replica:
                await asyncio.gather(*(aio.Lock(store, f"n{number}").acquire(0) for number in range(100)))
                replica.pause()
                try:
                    with pytest.raises(LockUnavailable, match="only 0 of 1 replicas confirmed the lock"):
                        await aio.Lock(store, "m").acquire(0)
                finally:
                    replica.resume()
                assert await aio.Lock(store, "m").acquire(10)  # long before it would have expired

    asyncio.run(story())

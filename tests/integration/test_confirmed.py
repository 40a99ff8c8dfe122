"""Locks that count once they are elsewhere, too: on a replica."""

import asyncio
import secrets
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
from tests.stores import start_server


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


def store_of(server: EmbeddedServer, **options: Any) -> RedisStore:
    """A store that gives confirmations time on a machine that stands still for a moment."""
    options = {"socket_timeout": 5.0, **options}
    return connect(server.redis_url, prefix=f"test-{secrets.token_hex(6)}", **options)


def acquire_and_release(store: RedisStore) -> None:
    """Fails where it is not confirmed."""
    lock = Lock(store, "n", wait=0)
    with lock:
        lock.check()


def test_a_replica_must_confirm(primary: EmbeddedServer) -> None:
    """One that hangs confirms nothing, and the hold is released; so where there is none any more."""
    with closing(store_of(primary, min_replicas=1)) as store:
        with replica_of(primary) as replica:
            acquire_and_release(store)
            replica.pause()
            try:
                with pytest.raises(LockUnavailable, match="only 0 of 1 replicas confirmed the lock"):
                    acquire_and_release(store)
            finally:
                replica.resume()
            assert wait_until(lambda: store.inspect("n") is None, 10)
        with pytest.raises(LockUnavailable, match="only 0 of 1 replicas confirmed the lock"):
            acquire_and_release(store)


def test_a_hold_that_nobody_confirmed_is_owed_where_the_server_is_gone_before_it_is_given_back(
    primary: EmbeddedServer, monkeypatch: Any
) -> None:
    """The release was never sent, and the hold was taken."""
    with closing(store_of(primary, min_replicas=1)) as store:
        give_back = store._give_back

        def gone(name: str, token: str) -> None:
            store.close()
            primary.stop()
            give_back(name, token)

        monkeypatch.setattr(store, "_give_back", gone)

        with pytest.raises(LockUnavailable, match=r"'acquire' failed .* only 0 of 1 replicas confirmed"):
            Lock(store, "n").acquire(0)

        assert len(watchdog_of(store)._debts) == 1


def test_a_replica_must_confirm_what_a_task_of_a_loop_acquires(primary: EmbeddedServer) -> None:
    """A task that is refused so leaves nothing behind."""

    async def story() -> None:
        prefix = f"test-{secrets.token_hex(6)}"
        async with aio.connect(primary.redis_url, prefix=prefix, min_replicas=1, socket_timeout=5.0) as store:

            async def take(number: int) -> None:
                async with aio.Lock(store, f"n{number}", wait=0) as lock:
                    await lock.check()

            with replica_of(primary) as replica:
                await asyncio.gather(*map(take, range(100)))
                replica.pause()
                try:
                    with pytest.raises(LockUnavailable, match="only 0 of 1 replicas confirmed the lock"):
                        await take(1)
                finally:
                    replica.resume()
                async with aio.Lock(store, "n1", wait=10):  # long before it would have expired
                    pass

    asyncio.run(story())

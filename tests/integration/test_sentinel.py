"""Locks through a real Sentinel: on the primary it names, and nowhere else."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from redis.sentinel import Sentinel

from celery_redislock import LockUnavailable, SingletonTask
from celery_redislock.locks import Lock, aio, connect
from celery_redislock.store.store import Term
from tests.facts import wait_until
from tests.servers import EmbeddedServer, failing_over, follow

#: Seconds in which a replica is promoted, and a server that was killed follows it.
PATIENCE = 60.0


def sell(number: int) -> int:
    return number


@pytest.mark.parametrize("place", ["broker", "setting", "setting, behind one that does not answer"])
def test_a_lock_lives_on_the_primary_sentinels_name(
    primary: EmbeddedServer, sentinel: str, place: str
) -> None:
    """Law 1: a lock at any other address would exclude nobody. Law 9: the next one knows the primary."""
    options = {"master_name": "mine"}
    settings: dict[str, Any] = {"redislock_url": sentinel, "result_backend_transport_options": options}
    if place == "broker":
        settings = {"broker_url": sentinel, "broker_transport_options": options}
    # The system accepts for it, and nobody ever reads.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if is_silent := place.endswith("does not answer"):
            settings["redislock_url"] = f"sentinel://127.0.0.1:{silent.getsockname()[1]};{sentinel}"
        with Celery("sentinel", set_as_current=False, broker="memory://") as app:
            app.conf.update(redislock_socket_timeout=1.0, **settings)
            task = app.task(base=SingletonTask, name="sell", shared=False)(sell)
            began = time.monotonic()
            task.delay(1)
            took = time.monotonic() - began
            with closing(redis.Redis(port=primary.port)) as client:
                assert len(client.keys("redislock:{*}:lock")) == 1
            assert task.lock_for(1).holder() is not None
    assert not is_silent or 0.5 < took < 5.0


def test_a_primary_that_no_sentinel_knows_is_named_with_what_to_check(sentinel: str) -> None:
    """And nothing of redis-py's objects, which tell addresses and users."""
    store = connect(f"{sentinel}?master_name=nobody")
    with closing(store), pytest.raises(LockUnavailable) as raised:
        Lock(store, "n").acquire(0)
    assert "No master found for 'nobody': no Sentinel that answers knows" in raised.value.reason
    assert "redis." not in raised.value.reason


@pytest.mark.parametrize("way", ["URL", "callable"])
def test_a_loop_locks_on_the_primary_sentinels_name(primary: EmbeddedServer, sentinel: str, way: str) -> None:
    """Law 1, for coroutines."""
    host, port = sentinel.removeprefix("sentinel://").split(":")
    named: Any = f"{sentinel}?master_name=mine"
    if way == "callable":
        named = lambda: Sentinel([(host, int(port))]).master_for("mine")  # noqa: E731

    async def story() -> None:
        async with aio.connect(named, prefix="loop") as store, aio.Lock(store, "n", wait=0):
            assert not Lock(connect(f"{sentinel}?master_name=mine", prefix="loop"), "n").acquire(timeout=0)

    asyncio.run(asyncio.wait_for(story(), PATIENCE))
    with closing(redis.Redis(port=primary.port)) as client:
        assert client.exists("loop:{n}:lock") == 0


def answered(ask: Callable[[], object]) -> bool:
    """Whether it is so, on a server that may not be there."""
    with suppress(LockUnavailable, redis.RedisError):
        return bool(ask())
    return False


@pytest.mark.slow
def test_ten_failovers_cost_no_more_than_what_was_not_replicated(tmp_path: Path) -> None:
    """Law 1: a lock that a replica has confirmed outlives its server; one that none has may be held twice.

    Each time the server is killed under a lock, which every second time had its replica cut off before.
    """
    with failing_over(tmp_path) as (first, second, sentinel):
        url = f"sentinel://127.0.0.1:{sentinel.port}/0?master_name=mine"
        primary, replica = first, second
        for is_confirmed in (True, False) * 5:
            with (
                closing(connect(url, socket_timeout=0.5, min_replicas=int(is_confirmed))) as store,
                closing(connect(url, socket_timeout=0.5)) as another,
                closing(redis.Redis(port=primary.port or 0)) as client,
            ):
                lock, other = Lock(store, "n", ttl=600.0), Lock(another, "n", owner="another")
                if not is_confirmed:  # the replica would be back at once, and have all of it
                    client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
                    client.client_kill_filter(_type="replica")
                assert wait_until(lambda: answered(lambda: lock.acquire(timeout=1.0)), PATIENCE)  # noqa: B023
                mine = lock.fence or 0
                primary.kill()
                asks = lambda: another.renew([Term("no", "body/1", 1.0)])  # noqa: E731
                assert wait_until(lambda: answered(asks), PATIENCE)  # noqa: B023
                assert other.acquire(timeout=0) is not is_confirmed
                assert lock.held  # as it must believe: this is the overlap, where the other one has it, too
                assert (other.fence or mine + 1) > mine
                assert lock.renew() is is_confirmed
                assert lock.release() is is_confirmed
                assert other.release() if other.held else other.acquire(timeout=5.0) and other.release()
            primary, replica = replica, primary
            follow(replica, primary, sentinel)

"""Law 9 with real workers, beside a lock server that restarts, is abused, runs full or becomes a replica.

``tests/integration/test_task_troubled_servers.py`` has these and more in one process.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from celery_redislock import LockUnavailable
from tests.acceptance.harness import Shop, wait_until
from tests.servers import EmbeddedServer

#: Seconds from a server's return until what is owed to it must have been given back, on a busy machine.
SECONDS_LATER = 8.0


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A lock server that has written down what it is told before it answers.

    With ``everysec``, the default, it puts that off while the disk is busy, and a kill loses it.
    """
    with EmbeddedServer(data_dir=tmp_path, extra_args=("--appendfsync", "always")) as server:
        yield server


def _shop(new_shop: Callable[..., Shop], server: EmbeddedServer) -> Shop:
    shop = new_shop(conf={"redislock_url": server.url})
    shop.start_worker("prefork")
    return shop


def test_a_restart_with_its_data_is_noticed_by_no_run(
    new_shop: Callable[..., Shop], durable: EmbeddedServer, key: str
) -> None:
    """The lock is there again before anybody can take it."""
    shop = _shop(new_shop, durable)
    with shop.kept_on(key):
        result = shop.sell.apply_async((key,), lock_ttl=10.0)
        body = shop.wait_started(key)
        durable.kill()
        durable.restart()
        holder = shop.holder(key)
        assert holder is not None
        assert holder.token == body.token
        wait_until(lambda: _remaining(shop, key) > 9.0, 20.0, "it is renewed again")

    assert result.get(timeout=15) == f"{key} done"
    assert shop.lines("lost its lock") == []
    shop.wait_free(key, SECONDS_LATER)


def test_a_restart_without_its_data_is_told_to_the_run(
    new_shop: Callable[..., Shop], lock_server: EmbeddedServer, key: str
) -> None:
    """What the server forgot nobody can restore: the body is told, and the next one has the larger fence."""
    shop = _shop(new_shop, lock_server)
    with shop.kept_on(key):
        first = shop.sell.delay(key)
        shop.wait_started(key)
        lock_server.restart()
        second = shop.sell.delay(key)
        shop.wait_started(key, 2)
        wait_until(lambda: shop.lines("lost its lock"), 10.0, "the loss is told")

    assert first.get(timeout=15) == f"{key} done"
    assert second.get(timeout=15) == f"{key} done"
    older, newer = shop.bodies(key)
    assert (older.task_id, newer.task_id) == (first.id, second.id)
    assert (older.fence or 0) < (newer.fence or 0)
    shop.wait_free(key, SECONDS_LATER)


def test_a_lock_whose_run_ended_while_the_server_was_down_is_free_when_it_is_back(
    new_shop: Callable[..., Shop], durable: EmbeddedServer, key: str
) -> None:
    """The release is owed: seconds, not the TTL of a minute."""
    shop = _shop(new_shop, durable)
    with shop.kept_on(key):
        result = shop.sell.apply_async((key,), lock_ttl=60.0)
        shop.wait_started(key)
        durable.kill()
    assert result.get(timeout=15) == f"{key} done"
    durable.restart()

    shop.wait_free(key, SECONDS_LATER)
    assert shop.sell.delay(key).get(timeout=15) == f"{key} done"


def test_scripts_flushed_and_connections_killed_all_the_time_lose_nothing(
    new_shop: Callable[..., Shop], lock_server: EmbeddedServer, key: str
) -> None:
    """Laws 1 and 2: every task that was published runs once, and bodies of a key keep apart."""
    shop = _shop(new_shop, lock_server)
    ended = threading.Event()
    keys = [f"{key}{number}" for number in range(2)]
    abuse = threading.Thread(target=_abuse, args=(lock_server, ended), daemon=True)
    abuse.start()
    try:
        results = [shop.serve.delay(keys[number % 2], 0.05) for number in range(16)]
        for result in results:
            result.get(timeout=60)
    finally:
        ended.set()
        abuse.join(10)

    for each in keys:
        assert shop.violations(each) == []
        assert len(shop.bodies(each)) == 8
        shop.wait_free(each, SECONDS_LATER)


def test_a_server_without_memory_takes_locks_back(
    new_shop: Callable[..., Shop], lock_server: EmbeddedServer, key: str
) -> None:
    """``noeviction``: nothing is granted, and the publisher is told; what is held is given back."""
    shop = _shop(new_shop, lock_server)
    client: redis.Redis = redis.Redis.from_url(lock_server.redis_url)
    with closing(client):
        with shop.kept_on(key):
            result = shop.sell.delay(key)
            shop.wait_started(key)
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 1)
        assert result.get(timeout=15) == f"{key} done"
        shop.wait_free(key, SECONDS_LATER)
        with pytest.raises(LockUnavailable, match=r"OOM|maxmemory"):
            shop.sell.delay(key)
        waiting = shop.app.send_task("shop.sell", (key,))
        wait_until(lambda: shop.lines("cannot start"), 15.0, "it is put off")
        client.config_set("maxmemory", 0)

    assert waiting.get(timeout=15) == f"{key} done"
    assert len(shop.bodies(key)) == 2


def test_a_replica_of_a_dead_master_grants_nothing_and_gets_locks_back_as_a_primary(
    new_shop: Callable[..., Shop], lock_server: EmbeddedServer, key: str
) -> None:
    """Nobody is refused by a hold it only remembers; what is owed is given back when it may be written."""
    shop = _shop(new_shop, lock_server)
    client: redis.Redis = redis.Redis.from_url(lock_server.redis_url)
    with closing(client):
        with shop.kept_on(key):
            result = shop.sell.apply_async((key,), lock_ttl=60.0)
            shop.wait_started(key)
            client.replicaof("127.0.0.1", "1")
        assert result.get(timeout=15) == f"{key} done"
        with pytest.raises(LockUnavailable, match=r"(?i)read.?only"):
            shop.sell.delay(key)
        client.replicaof("NO", "ONE")

    shop.wait_free(key, SECONDS_LATER)
    assert shop.sell.delay(key).get(timeout=15) == f"{key} done"


def _remaining(shop: Shop, key: str) -> float:
    holder = shop.holder(key)
    return 0.0 if holder is None else holder.remaining


def _abuse(server: EmbeddedServer, ended: threading.Event) -> None:
    deadline = time.monotonic() + 90
    client: redis.Redis = redis.Redis.from_url(server.redis_url)
    with closing(client):
        while not ended.wait(0.005) and time.monotonic() < deadline:
            client.script_flush()
            client.client_kill_filter(_type="normal", skipme=True)

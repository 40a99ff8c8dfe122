"""Who waits in line waits on: while the server restarts, stands still, or another takes its place."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import Lock, aio
from tests.aio import play
from tests.cluster import running_cluster
from tests.facts import wait_until
from tests.servers import EmbeddedServer, failing_over
from tests.stores import ClusterCase, RedisCase

#: Seconds: the socket timeout of the stores here.
SOCKET_TIMEOUT = 0.5

#: Seconds in which another server is elected, and whatever else comes has come.
PATIENCE = 50.0

#: Does what a server, or the way to it, may do while somebody waits; returns when its waiter has noticed.
Trouble = Callable[[Callable[[], bool]], None]


def _by_thread(case: RedisCase, timeout: float) -> bool:
    lock = Lock(case.redis, "n")
    return lock.acquire(timeout) and lock.release()


def _by_loop(case: RedisCase, timeout: float) -> bool:
    async def story(store: aio.Store) -> bool:
        lock = aio.Lock(store, "n")
        return await lock.acquire(timeout) and await lock.release()

    return play(case, story)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that keeps its data."""
    with EmbeddedServer(port=0, data_dir=tmp_path) as server:
        yield server


@contextmanager
def _restart(server: EmbeddedServer) -> Iterator[None]:
    server.kill()
    yield
    server.restart()


@contextmanager
def _pause(server: EmbeddedServer) -> Iterator[None]:
    server.pause()
    yield
    server.resume()


def _cut(server: EmbeddedServer) -> None:
    """Break every connection."""
    with closing(redis.Redis(port=server.port or 0)) as client:
        client.client_kill_filter(_type="normal", skipme=True)


def _is_held(case: RedisCase) -> bool:
    with suppress(LockUnavailable):
        hold = case.redis.inspect("n")  # without the look at all keys, which the client beside it takes
        return hold is not None and hold.token == "holder/1"
    return False


def _waits_through(
    case: RedisCase, take: Callable[[RedisCase, float], bool], told: Callable[[], int], trouble: Any,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """Play a trouble while one waits, until it has noticed that; then the lock is released."""
    case.take("holder/1", ttl=2 * PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(take, case, PATIENCE)
        assert wait_until(lambda: case.redis.waiting("n")[0] == 1, PATIENCE)

        def is_noticed() -> bool:
            meanwhile()
            return told() > 0 or taken.done()

        with trouble:
            assert wait_until(is_noticed, PATIENCE)
        assert wait_until(lambda: _is_held(case), PATIENCE)
        assert case.redis.release("n", "holder/1").released
        assert taken.result(PATIENCE)
    assert told() == 1


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """How often it was told that somebody waits on."""
    caplog.set_level(logging.WARNING, "celery_redislock")
    return lambda: sum("tries again until its time is up" in message for message in caplog.messages)


WORLDS = pytest.mark.parametrize("take", [_by_thread, _by_loop], ids=["thread", "loop"])


@WORLDS
@pytest.mark.parametrize("trouble", [_restart, _pause, nullcontext], ids=["restarts", "pauses", "cuts"])
def test_who_waits_in_line_waits_on_when_the_server_does_not_answer(
    server: EmbeddedServer, told: Callable[[], int], take: Any, trouble: Any
) -> None:
    """Law 9: for as long as it said that it would; it is told once."""
    with closing(RedisCase(server.redis_url, socket_timeout=SOCKET_TIMEOUT)) as case:
        cut = (lambda: _cut(server)) if trouble is nullcontext else lambda: None
        _waits_through(case, take, told, trouble(server), cut)


@WORLDS
def test_who_waits_gives_up_when_its_time_is_up(
    server: EmbeddedServer, told: Callable[[], int], take: Any
) -> None:
    """It could not ask: that is no answer, but ``LockUnavailable``."""
    with (
        closing(RedisCase(server.redis_url, socket_timeout=SOCKET_TIMEOUT)) as case,
        ThreadPoolExecutor(1) as pool,
    ):
        case.take("holder/1", ttl=2 * PATIENCE)
        taken = pool.submit(take, case, 2.0)
        assert wait_until(lambda: case.redis.waiting("n")[0] == 1, PATIENCE)
        server.kill()
        assert isinstance(taken.exception(PATIENCE), LockUnavailable)
        assert told() == 1
        server.restart()


@WORLDS
def test_who_asks_a_server_that_is_not_there_is_told_at_once(told: Callable[[], int], take: Any) -> None:
    """It does not stand in line."""
    case = RedisCase("redis://127.0.0.1:1/0", socket_timeout=SOCKET_TIMEOUT)
    with pytest.raises(LockUnavailable, match="acquire"):
        take(case, PATIENCE)
    case.redis.close()
    assert told() == 0


@contextmanager
def _killed(server: EmbeddedServer, client: Any, case: RedisCase, replica: EmbeddedServer) -> Iterator[None]:
    """A primary whose replica stands still meanwhile, with all that the primary had."""
    client.set(case.key(part="copied"), 1, px=60_000)
    assert client.wait(1, 10_000) == 1
    with _pause(replica):
        server.kill()
        yield


@pytest.mark.slow
@WORLDS
def test_who_waits_in_line_waits_on_when_a_sentinel_names_another_primary(
    tmp_path: Path, told: Callable[[], int], take: Any
) -> None:
    """Its entry and the hold have been copied, or it enters the line anew."""
    with failing_over(tmp_path) as (primary, replica, sentinel):
        url = f"sentinel://127.0.0.1:{sentinel.port}/0?master_name=mine"
        beside = redis.Redis(port=replica.port or 0)
        with (
            closing(redis.Redis(port=primary.port or 0)) as client,
            closing(RedisCase(url, beside=beside, socket_timeout=SOCKET_TIMEOUT)) as case,
        ):
            _waits_through(case, take, told, _killed(primary, client, case, replica))


@pytest.mark.slow
@WORLDS
def test_who_waits_waits_on_when_a_cluster_elects_another_primary(told: Callable[[], int], take: Any) -> None:
    """However long that takes."""
    with running_cluster() as cluster, closing(ClusterCase(cluster, socket_timeout=SOCKET_TIMEOUT)) as case:
        node = cluster.node_of("n")
        replica = cluster.nodes[cluster.nodes.index(node) + len(cluster.primaries)]
        _waits_through(case, take, told, _killed(node.server, node.client, case, replica.server))

"""Locks of coroutines on a Cluster: on all its nodes, in order, and while a slot moves or a primary dies."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from celery_redislock.exceptions import LockLost, LockOptionError, LockUnavailable
from celery_redislock.locks import Lock, aio
from tests.aio import play, until
from tests.cluster import Cluster, running_cluster
from tests.stores import ClusterCase

pytestmark = pytest.mark.xdist_group("cluster")

#: So many names that each of three nodes has some, and more slots than are read at once.
NAMES = [f"name-{number}" for number in range(20)]


def _place(cluster: Cluster) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": cluster.living[0].server.port}


#: Ways to name a Cluster.
WAYS: dict[str, Callable[[Cluster], Any]] = {
    "URL": lambda cluster: cluster.url,
    "callable": lambda cluster: lambda: redis.RedisCluster(**_place(cluster)),
    "client": lambda cluster: redis.asyncio.RedisCluster(**_place(cluster)),
}


@pytest.mark.parametrize("way", WAYS)
def test_tasks_and_threads_exclude_each_other_whichever_node_keeps_the_lock(
    cluster: Cluster, cluster_case: ClusterCase, way: str
) -> None:
    """Law 1. A lease is renewed beside the loop, and its loss is told."""

    async def story(store: aio.Store) -> None:
        for name in NAMES:
            async with aio.Lock(store, name, wait=0) as lock:
                assert not Lock(cluster_case.redis, name).acquire(timeout=0)
                assert lock.fence
        lock = aio.Lock(store, "n", ttl=1.0)
        async with lock:
            await asyncio.sleep(2.0)
            assert await lock.renew()
            cluster_case.redis.force_release("n")
            assert not await lock.renew()
            with pytest.raises(LockLost):
                await lock.check()
            await lock.release()
            assert await lock.acquire(0)

    play(cluster_case, story, WAYS[way](cluster))
    assert all(cluster_case.holder(name) is None for name in [*NAMES, "n"])


def test_who_waits_is_served_in_order_also_beside_threads(
    cluster: Cluster, cluster_case: ClusterCase
) -> None:
    """One line, whoever stands in it."""
    order: list[int] = []
    case = cluster_case

    async def story(store: aio.Store) -> None:
        async def wait(number: int) -> None:
            async with aio.Lock(store, "n", wait=50.0):
                order.append(number)

        first = aio.Lock(store, "n")
        assert await first.acquire()
        tasks: list[Any] = []
        for number in range(12):
            if number == 5:
                # Before a thread has parked, too: whoever sweeps finds the line, because its slot was noted.
                noted: Any = cluster.client.zscore(f"{case.prefix}:slots", str(cluster.slot_of("n")))
                assert case.redis.lines() == ["n"]
                assert noted < float("inf")
                tasks.append(asyncio.create_task(asyncio.to_thread(_take, case, order, number)))
            else:
                tasks.append(asyncio.create_task(wait(number)))
            assert await until(lambda: case.redis.waiting("n")[0] == len(tasks))
        tasks[7].cancel()
        assert await until(lambda: case.redis.waiting("n")[0] == 11)
        await first.release()
        await asyncio.gather(*tasks, return_exceptions=True)

    play(case, story)
    assert order == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]


def _take(case: ClusterCase, order: list[int], number: int) -> None:
    with Lock(case.redis, "n", wait=50.0):
        order.append(number)


def test_tasks_wait_in_more_slots_than_are_read_with_sixteen_connections_a_node(
    cluster: Cluster, cluster_case: ClusterCase
) -> None:
    """Nobody is forgotten, and nobody overlaps: those whose bell is not read look who holds."""
    at_work: Counter[str] = Counter()
    turns: Counter[str] = Counter()
    most = 0

    def connected() -> int:
        return max(len(node.client.client_list(_type="normal")) for node in cluster.primaries)

    before = connected()

    async def story(store: aio.Store) -> None:
        nonlocal most

        async def work(name: str) -> None:
            async with aio.Lock(store, name, wait=50.0):
                at_work[name] += 1
                assert at_work[name] == 1
                await asyncio.sleep(0.005)
                at_work[name] -= 1
                turns[name] += 1

        working = [asyncio.create_task(work(name)) for name in NAMES * 5]
        while not all(task.done() for task in working):
            most = max(most, await asyncio.to_thread(connected))
            await asyncio.sleep(0.05)
        await asyncio.gather(*working)

    play(cluster_case, story)
    assert turns == Counter(NAMES * 5)
    assert most - before <= 16


def test_semaphores_and_read_write_locks_hold_on_each_node(cluster_case: ClusterCase) -> None:
    """The same places, sides and lines as on one server, wherever the name's slot is."""
    case = cluster_case

    async def places(store: aio.Store, name: str) -> None:
        seats = aio.Semaphore(store, name, 2)
        first, second = await seats.acquire(timeout=0), await seats.acquire(timeout=0)
        assert first is not None
        assert second is not None
        waits = asyncio.create_task(seats.acquire(timeout=50.0))
        assert await until(lambda: case.redis.waiting(name)[0] == 1)
        assert not waits.done()
        assert await first.release()
        third = await waits
        assert third is not None
        assert {hold.token for hold in await seats.holders()} == {second.token, third.token}
        assert await second.release()
        assert await third.release()

    async def sides(store: aio.Store, name: str) -> None:
        book = aio.ReadWriteLock(store, name, wait=50.0)
        written: list[str] = []

        async def write() -> None:
            async with book.write:
                written.append(name)

        async with book.read:
            async with aio.ReadWriteLock(store, name, wait=0).read:
                writer = asyncio.create_task(write())
                assert await until(lambda: case.redis.waiting(name)[0] == 1)
            assert not written
        await writer
        assert written == [name]

    async def story(store: aio.Store) -> None:
        for name in NAMES[:8]:
            await places(store, name)
            await sides(store, name)

    play(case, story)
    assert all(case.holder(name) is None for name in NAMES)


def test_all_who_wait_are_counted_whether_their_bells_are_read_or_not(cluster_case: ClusterCase) -> None:
    """The more of a loop wait, the less often each looks: that holds in slots without a reader, too."""

    async def story(store: aio.Store) -> None:
        holders = [aio.Lock(store, name) for name in NAMES]
        for holder in holders:
            assert await holder.acquire(0)
        tasks = [asyncio.create_task(aio.Lock(store, name).acquire(50.0)) for name in NAMES]
        assert await until(lambda: store.waiting() == len(NAMES))
        tasks.pop().cancel()
        tasks.pop(0).cancel()
        assert await until(lambda: store.waiting() == len(NAMES) - 2)
        for holder in holders:
            assert await holder.release()
        assert all(await asyncio.gather(*tasks))
        assert await until(lambda: store.waiting() == 0)

    play(cluster_case, story)


def test_all_who_ask_share_one_look_for_nodes_that_do_not_answer(cluster_case: ClusterCase) -> None:
    """Law 9: they are told together, and the loop's threads stay free for others."""
    # The system accepts for it, and nobody ever reads.
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def story(store: aio.Store) -> list[bool | BaseException]:
            asking = [aio.Lock(store, name).acquire(0) for name in NAMES * 5]
            return await asyncio.gather(*asking, return_exceptions=True)

        url = f"redis+cluster://127.0.0.1:{silent.getsockname()[1]}"
        told = play(cluster_case, story, url, socket_timeout=0.2)
        assert [type(each) for each in told] == [LockUnavailable] * len(told)
        looks = 0
        silent.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                looks += 1
    assert 0 < looks < len(told) / 4


def test_coroutines_go_on_while_a_slot_moves_there_and_back(
    cluster: Cluster, cluster_case: ClusterCase
) -> None:
    """What is asked of a slot that is being moved is asked again, under the same token."""
    at_work: Counter[str] = Counter()
    turns: Counter[int] = Counter()
    over = threading.Event()

    def move() -> None:
        slot = cluster.slot_of("n")
        try:
            for _ in range(2):
                cluster.move_slot(slot, cluster.other_than(cluster.node_of("n")))
        finally:
            over.set()

    async def story(store: aio.Store) -> None:
        async def work(number: int) -> None:
            while not over.is_set() or turns[number] < 3:
                try:
                    async with aio.Lock(store, "n", ttl=20.0, wait=50.0):
                        at_work["n"] += 1
                        assert at_work["n"] == 1
                        await asyncio.sleep(0)
                        at_work["n"] -= 1
                        turns[number] += 1
                except LockUnavailable:
                    await asyncio.sleep(0.01)

        working = [asyncio.create_task(work(number)) for number in range(4)]
        assert await until(lambda: min(turns[number] for number in range(4)) >= 2)
        await asyncio.to_thread(move)
        await asyncio.gather(*working)

    play(cluster_case, story)
    assert cluster_case.holder("n") is None


@pytest.mark.slow
def test_coroutines_go_on_where_a_primary_is_killed() -> None:
    """Who waits is served when a replica has been elected."""
    with running_cluster() as cluster, closing(ClusterCase(cluster, socket_timeout=0.5)) as case:
        killed = cluster.node_of("n")

        async def story(store: aio.Store) -> None:
            turns: Counter[int] = Counter()
            over = asyncio.Event()

            async def work(number: int) -> None:
                while not over.is_set():
                    try:
                        async with aio.Lock(store, "n", ttl=2.0, wait=50.0):
                            turns[number] += 1
                    except (LockUnavailable, LockLost):
                        await asyncio.sleep(0.01)

            working = [asyncio.create_task(work(number)) for number in range(3)]
            assert await until(lambda: min(turns[number] for number in range(3)) >= 2)
            await asyncio.to_thread(cluster.kill_primary, killed)
            await asyncio.to_thread(cluster.wait_failover)
            before = turns.copy()
            assert await until(lambda: all(turns[number] > before[number] for number in range(3)), 50.0)
            over.set()
            await asyncio.gather(*working)

        play(case, story)


def test_what_a_cluster_cannot_keep_is_refused_when_it_is_named(cluster: Cluster) -> None:
    with pytest.raises(LockOptionError, match="cannot be locked together"):
        aio.Lock(aio.connect(cluster.url), ["a", "b"])

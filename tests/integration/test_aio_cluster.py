"""Locks of coroutines on a Cluster: on all its nodes, in order, and while a slot moves."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from celery_redislock.exceptions import LockLost, LockUnavailable
from celery_redislock.locks import Lock, aio
from tests.aio import play, until
from tests.cluster import Cluster
from tests.stores import ClusterCase

pytestmark = pytest.mark.xdist_group("cluster")

#: So many names that each of three nodes has some, and more slots than are read at once.
NAMES = [f"name-{number}" for number in range(20)]


#: Ways to name a Cluster.
WAYS: dict[str, Callable[[Cluster], Any]] = {
    "URL": lambda cluster: cluster.url,
    "callable": lambda cluster: lambda: redis.RedisCluster("127.0.0.1", cluster.living[0].server.port),
    "client": lambda cluster: redis.asyncio.RedisCluster("127.0.0.1", cluster.living[0].server.port),
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


def test_who_waits_is_served_in_order_beside_threads_too(cluster: Cluster, cluster_case: ClusterCase) -> None:
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


def test_tasks_go_on_while_a_slot_moves_there_and_back(cluster: Cluster, cluster_case: ClusterCase) -> None:
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

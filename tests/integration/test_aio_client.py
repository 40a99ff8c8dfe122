"""Locks of asyncio over a client of redis-py's: it is called itself, and its loop renews the leases."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import redis.asyncio

from celery_redislock import LockKeyError, LockLost, LockUnavailable
from celery_redislock.locks import Lock, aio
from tests.aio import LONGEST, until
from tests.faults import Fault, FaultyProxy
from tests.stores import RedisCase, with_options

OPTIONS = ["", "protocol=3", "protocol=2&decode_responses=true"]


@pytest.fixture
def case(tcp_server: Any) -> Iterator[RedisCase]:
    with closing(RedisCase(tcp_server.redis_url, socket_timeout=0.5)) as case:
        yield case


def play(
    case: RedisCase, story: Callable[[aio.Store], Awaitable[None]], url: str | None = None, **options: Any
) -> None:
    """Let a loop play a story with a store that calls a client."""

    @asynccontextmanager
    async def client() -> AsyncIterator["redis.asyncio.Redis"]:
        client = redis.asyncio.Redis.from_url(url or case.url, **options)
        try:
            yield client
        finally:
            await client.aclose()

    async def run() -> None:
        async with client() as given, aio.connect(given, prefix=case.prefix, socket_timeout=0.5) as store:
            await asyncio.wait_for(story(store), LONGEST)

    asyncio.run(run())


@pytest.mark.parametrize("options", OPTIONS)
def test_a_lock_is_held_waited_for_and_released_by_a_client(case: RedisCase, options: str) -> None:
    """However it decodes; in one line with threads."""

    async def story(store: aio.Store) -> None:
        lock = aio.Lock(store, "n")
        async with lock:
            assert lock.fence
            assert not await asyncio.to_thread(Lock(case.redis, "n").acquire, 0)
            waits = asyncio.create_task(aio.Lock(store, "n").acquire(20.0))
            assert await until(lambda: case.redis.waiting("n")[0] == 1)
            gives_up = asyncio.create_task(aio.Lock(store, "n").acquire(0.2))
            assert not await gives_up
        assert await waits
        assert (await lock.holder()) is not None
        case.client.script_flush()
        assert not await lock.acquire(0)
        async with aio.Semaphore(store, "seats", 2) as permit, aio.ReadWriteLock(store, "book").write as book:
            await permit.check()
            assert await book.downgrade()

    play(case, story, with_options(case.url, options))


def test_the_loop_renews_and_a_loop_that_stands_still_for_longer_than_the_ttl_loses_it(
    case: RedisCase,
) -> None:
    async def story(store: aio.Store) -> None:
        lock = aio.Lock(store, "n", ttl=0.9)
        await lock.acquire()
        await asyncio.sleep(2.0)
        assert lock.held
        await lock.check()
        time.sleep(1.5)
        with pytest.raises(LockLost):
            await lock.check()

    play(case, story)


def test_a_cancelled_request_is_owed_to_the_loop(case: RedisCase, proxy: FaultyProxy) -> None:
    async def story(store: aio.Store) -> None:
        await aio.Lock(store, "other").acquire()
        proxy.fail(Fault.SILENCE, of="start")
        task = asyncio.create_task(aio.Lock(store, "n").acquire())
        assert await until(lambda: proxy.fired == 1 and case.holder() is not None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await until(lambda: case.holder() is None)
        assert await until(lambda: not store.watchdog._debts)

    play(case, story, proxy.url)


def test_a_server_that_does_not_answer_is_told_of_in_time(case: RedisCase, proxy: FaultyProxy) -> None:
    async def story(store: aio.Store) -> None:
        lock = aio.Lock(store, "n")
        await lock.acquire()
        proxy.black_hole()
        before = time.monotonic()
        with pytest.raises(LockUnavailable, match="no answer in time"):
            await lock.renew()
        assert time.monotonic() - before < 2.0
        proxy.heal()
        proxy.reset()
        assert await lock.release()

    play(case, story, proxy.url)


def test_another_programs_key_is_refused(case: RedisCase) -> None:
    case.client.lpush(case.key("n"), "theirs")

    async def story(store: aio.Store) -> None:
        with pytest.raises(LockKeyError, match="WRONGTYPE"):
            await aio.Lock(store, "n").acquire()

    play(case, story)
    case.client.delete(case.key("n"))


def test_a_loop_that_is_closed_renews_no_more(case: RedisCase) -> None:
    """Its leases are lost, and nothing waits for them."""
    stores = []

    async def story(store: aio.Store) -> None:
        await aio.Lock(store, "n", ttl=0.6).acquire()
        stores.append(store)

    play(case, story)
    (store,) = stores
    with pytest.raises(LockUnavailable, match="closed"):
        store.beside.release("n", "a/token")
    deadline = time.monotonic() + 10
    while store.watchdog._watched and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not store.watchdog._watched


def test_a_hundred_tasks_take_sixteen_connections_of_a_client_at_most(lone_case: RedisCase) -> None:
    case = lone_case
    before = len(case.client.client_list())

    async def story(store: aio.Store) -> None:
        async def work() -> None:
            async with aio.Lock(store, "n", wait=30.0):
                pass

        async with aio.Lock(store, "n"):
            tasks = [asyncio.create_task(work()) for _ in range(100)]
            assert await until(lambda: case.redis.waiting("n")[0] == 100)
            assert len(case.client.client_list()) - before <= 16
        await asyncio.gather(*tasks)

    play(case, story)

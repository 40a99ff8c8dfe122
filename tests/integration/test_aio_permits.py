"""Semaphores and read-write locks of asyncio: the same places and sides, held by tasks."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from datetime import timedelta
from typing import Any

import pytest

from celery_redislock import LockBusy, LockLost
from celery_redislock.exceptions import LockUpgradeError
from celery_redislock.locks import Lock, Semaphore, aio
from tests.aio import by_a_task, until
from tests.stores import RedisCase


@pytest.fixture
def case(redis_url: str) -> Iterator[RedisCase]:
    with closing(RedisCase(redis_url)) as case:
        yield case


async def in_line(case: RedisCase, *asks: Any) -> "list[asyncio.Task[Any]]":
    """Tasks that ask, each when the one before it is in line."""
    tasks = []
    for place, ask in enumerate(asks, start=case.redis.waiting("n")[0] + 1):
        tasks.append(asyncio.create_task(ask))
        assert await until(lambda place=place: case.redis.waiting("n")[0] == place)  # type: ignore[misc]
    return tasks


@by_a_task
async def test_places_are_held_by_tasks_and_threads_alike(case: RedisCase, store: aio.Store) -> None:
    """Never more than the limit; the facts, the rest and the line are told."""
    seats = aio.Semaphore(store, "n", 3)
    async with seats as first, await seats.acquire(timeout=0) as second:
        assert first.token != second.token
        assert (first.held, first.permits, await seats.available()) == (True, 1, 1)
        third = await asyncio.to_thread(Semaphore(case.redis, "n", 3).acquire, timeout=0)  # type: ignore[arg-type]
        assert await seats.acquire(timeout=0) is None
        assert len(await seats.holders()) == 3
        (waits,) = await in_line(case, aio.Semaphore(store, "n", 3, owner="me").acquire())
        assert [hold.owner.split("/")[0] for hold in await seats.waiting()] == ["me"]
        assert await seats.release(third.token)
        last = await waits
        with pytest.raises(LockBusy):
            async with aio.Semaphore(store, "n", 3, wait=0):
                pytest.fail("the block was entered")
        assert await last.release()
        assert not await last.release()
        with pytest.raises(LockLost, match="released"):
            await last.check()
        await first.check()
    assert await seats.available() == 3
    assert not seats._entered
    told = await seats.set_limit(1, for_=timedelta(minutes=1), by="me")
    assert told is not None
    assert (told.value, told.facts["by"]) == (1, "me")
    async with seats:
        assert await seats.acquire(timeout=0) is None
        assert await seats.set_limit(None) is None
        assert (await seats.acquire(2, timeout=0)).permits == 2


@by_a_task
async def test_a_place_that_is_lost_is_told_to_its_task(case: RedisCase, store: aio.Store) -> None:
    told: list[aio.Permit] = []
    seats = aio.Semaphore(store, "n", 2, ttl=0.6, on_lost=told.append)
    permit = await seats.acquire()
    case.redis.release("n", permit.token)
    assert await asyncio.wait_for(permit.wait_lost(), 10) is True
    assert told == [permit]
    assert not await permit.release()
    over = await seats.acquire()
    wait = asyncio.create_task(over.wait_lost())
    assert await over.release()
    assert await wait is False


@pytest.mark.parametrize("kind", ["a place", "a write", "a read that goes on"])
@by_a_task
async def test_the_loss_of_a_place_or_a_side_cancels_its_task(
    case: RedisCase, store: aio.Store, kind: str
) -> None:
    book = aio.ReadWriteLock(store, "n", ttl=0.6, on_lost="cancel")
    seats = aio.Semaphore(store, "n", 2, ttl=0.6, on_lost="cancel")

    async def body() -> None:
        async with seats if kind == "a place" else book.write, AsyncExitStack() as stack:
            if kind == "a read that goes on":
                await stack.enter_async_context(book.read)
                await book.write.release()
            case.redis.force_release("n")
            await asyncio.sleep(30)

    with pytest.raises(LockLost):
        await asyncio.wait_for(body(), 10)


@by_a_task
async def test_a_cancelled_task_leaves_no_place(case: RedisCase, store: aio.Store) -> None:
    seats = aio.Semaphore(store, "n", 2)

    async def work(permits: int) -> None:
        async with await seats.acquire(permits, timeout=20.0):
            await asyncio.sleep(0)

    for turns in range(40):
        first = await seats.acquire()
        tasks = [asyncio.create_task(work(permits)) for permits in (1, 2, 1)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await first.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await until(lambda: case.redis.holders("n") == () and case.redis.waiting("n")[0] == 0)


@by_a_task
async def test_a_writer_may_read_and_downgrade(case: RedisCase, store: aio.Store) -> None:
    book = aio.ReadWriteLock(store, "n")
    async with book.write, book.read:
        assert (book.write.held, book.read.held) == (True, True)
        assert len(case.redis.holders("n")) == 1
    async with book.write as lock:
        token = case.holder()
        (waits,) = await in_line(case, aio.ReadWriteLock(store, "n").read.acquire())
        assert await lock.downgrade()
        assert await waits
        assert (book.write.held, book.read.held) == (False, True)
        assert token in {hold.token for hold in case.redis.holders("n")}
        with pytest.raises(RuntimeError, match="does not hold"):
            await lock.downgrade()
        with pytest.raises(LockUpgradeError):
            await book.write.acquire()
    for hold in case.redis.holders("n"):
        case.redis.release("n", hold.token)
    async with book.write, book.write:
        with pytest.raises(RuntimeError, match="2 times"):
            await book.write.downgrade()
    await book.write.acquire()
    case.redis.force_release("n")
    assert not await book.write.downgrade()
    with pytest.raises(LockLost):
        await book.read.check()
    assert not await book.read.release()
    assert await asyncio.to_thread(Lock(case.redis, "n").acquire, 0)

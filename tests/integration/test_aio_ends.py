"""Holds of asyncio whose block ends in another task, or whose task or loop is over: none stays for ever."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest

from celery_redislock import LockLost, LockNotHeld
from celery_redislock.locks import aio
from tests.aio import by_a_task, play, until
from tests.facts import wait_until
from tests.servers import EmbeddedServer
from tests.stores import RedisCase

#: Seconds of a hold: it is renewed three times in it.
TTL = 0.9

#: Seconds in which a hold that is renewed no more has expired, on a busy machine.
PATIENCE = 15.0

Block = Callable[[aio.Store], Any]

#: All that an ``async with`` may hold.
BLOCKS: dict[str, Block] = {
    "a lock": lambda store: aio.Lock(store, "n", ttl=TTL),
    "several names": lambda store: aio.Lock(store, ["n", "m"], ttl=TTL),
    "a place": lambda store: aio.Semaphore(store, "n", 2, ttl=TTL),
    "a read": lambda store: aio.ReadWriteLock(store, "n", ttl=TTL).read,
    "a write": lambda store: aio.ReadWriteLock(store, "n", ttl=TTL).write,
}

each_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)


@pytest.fixture
def case(tcp_server: EmbeddedServer) -> Iterator[RedisCase]:
    with closing(RedisCase(tcp_server.url, socket_timeout=0.5)) as case:
        yield case


def is_free(case: RedisCase) -> bool:
    return not case.redis.holders("n")


async def numbers(held: Any, ended: list[int]) -> AsyncIterator[int]:
    try:
        async with held:
            yield 1
            yield 2
    finally:
        ended.append(1)


@each_block
@by_a_task
async def test_a_generator_that_is_left_releases_what_it_holds(
    case: RedisCase, store: aio.Store, block: Block
) -> None:
    """Law 4. asyncio closes it in a task of its own, while the one that has left it goes on."""
    trouble: list[Any] = []
    ended: list[int] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: trouble.append(told))
    async for _ in numbers(block(store), ended):
        break
    gc.collect()
    assert await until(lambda: is_free(case), TTL / 2)
    # Its connection is back as well: who closes the store meanwhile would leave that open.
    assert await until(lambda: ended == [1])
    assert trouble == []


@each_block
@by_a_task
async def test_a_stack_that_another_task_closes_releases_what_it_holds(
    case: RedisCase, store: aio.Store, block: Block
) -> None:
    """As fixtures of tests do, and containers of dependencies."""
    stack = AsyncExitStack()
    await asyncio.create_task(stack.enter_async_context(block(store)))
    assert not is_free(case)
    await asyncio.create_task(stack.aclose())
    assert is_free(case)


@each_block
@pytest.mark.parametrize("whose", ["its task gone is done", "its event loop is closed"])
def test_a_hold_whose_task_or_loop_is_over_is_renewed_no_more(
    case: RedisCase, block: Block, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Law 4: nobody is left to release it, and that is told."""
    kept = []

    async def story(store: aio.Store) -> None:
        kept.append(block(store))
        if "task" in whose:
            await asyncio.create_task(kept[0].__aenter__(), name="gone")
            assert await until(lambda: is_free(case), PATIENCE)
        else:
            await kept[0].__aenter__()

    with caplog.at_level(logging.WARNING, "celery_redislock"):
        play(case, story)
        assert wait_until(lambda: is_free(case), PATIENCE)
    assert [line for line in caplog.messages if f"{whose}; it is left to expire" in line]


@pytest.mark.parametrize(
    "awaited", [lambda call: asyncio.wait_for(call, 20), asyncio.shield, asyncio.gather, asyncio.create_task]
)
@by_a_task
async def test_the_task_that_calls_acquire_holds(
    case: RedisCase, store: aio.Store, awaited: Callable[[Any], Any]
) -> None:
    """Whichever task awaits it: ``wait_for()`` makes one of its own before Python 3.12."""
    lock = aio.Lock(store, "n", ttl=TTL)
    book = aio.ReadWriteLock(store, "m", ttl=TTL)
    for each in lock, lock, book.write, book.read:
        await awaited(each.acquire(10))
        assert each.held
    for each in book.read, book.write, lock, lock:
        await each.check()
        assert await each.release()
    assert is_free(case)


@by_a_task
async def test_a_block_that_has_released_takes_nobody_elses_hold(case: RedisCase, store: aio.Store) -> None:
    """Law 3: the end of a block whose task holds nothing any more is told, also where another task holds."""
    lock = aio.Lock(store, "n", ttl=TTL)
    others, ends = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        async with lock:
            others.set()
            await ends.wait()
            await lock.check()

    await lock.__aenter__()
    await lock.release()
    task = asyncio.create_task(other())
    await others.wait()
    with pytest.raises(LockNotHeld):
        await lock.__aexit__(None, None, None)
    assert not is_free(case)
    ends.set()
    await task


@by_a_task
async def test_where_several_tasks_are_in_blocks_of_one_object_none_loses_its_hold(
    case: RedisCase, store: aio.Store
) -> None:
    """Nobody knows whose block ends in a task that has entered none."""
    read = aio.ReadWriteLock(store, "n", ttl=TTL).read
    places = aio.Semaphore(store, "m", 5, ttl=TTL)
    inside, ends = asyncio.Semaphore(0), asyncio.Event()

    async def stay() -> None:
        async with read, places as permit:
            inside.release()
            await ends.wait()
            await read.check()
            await permit.check()

    tasks = [asyncio.create_task(stay()) for _ in range(2)]
    for _ in tasks:
        await inside.acquire()
    for each in read, places:
        with pytest.raises(LockNotHeld):
            await each.__aexit__(None, None, None)
    ends.set()
    await asyncio.gather(*tasks)


@by_a_task
async def test_the_outer_block_of_a_task_keeps_what_an_inner_one_ends_elsewhere(
    case: RedisCase, store: aio.Store
) -> None:
    book = aio.ReadWriteLock(store, "n", ttl=TTL)
    for outer, inner in (book.read, book.read), (book.write, book.write), (book.write, book.read):
        async with outer:
            ended: list[int] = []
            async for _ in numbers(inner, ended):
                break
            gc.collect()
            assert await until(lambda: bool(ended))  # noqa: B023  called at once
            await outer.check()
            assert not is_free(case)
        assert is_free(case)


@by_a_task
async def test_a_loss_cancels_no_task_that_is_done(case: RedisCase, store: aio.Store) -> None:
    """Where its hold goes on in another task, that is told by its block."""
    lock = aio.Lock(store, "n", ttl=60.0, on_lost="cancel")
    stack = AsyncExitStack()
    await asyncio.create_task(stack.enter_async_context(lock))
    (held,) = lock._holds.values()
    case.client.delete(case.key())
    held.lease.lose("it was deleted")
    with pytest.raises(LockLost):
        await asyncio.create_task(stack.aclose())


@by_a_task
async def test_a_permit_that_nobody_refers_to_is_renewed_no_more(case: RedisCase, store: aio.Store) -> None:
    places = aio.Semaphore(store, "n", 2, ttl=TTL, on_lost=lambda _: None)
    permit = await places.acquire()
    assert permit is not None
    del permit
    gc.collect()
    assert await until(lambda: is_free(case), PATIENCE)

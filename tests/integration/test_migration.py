"""What the lock suites of redis-py 8.1 and python-redis-lock 4.0 check, as docs/locks.md translates it.

Each story is one of a thread with a ``Lock``, and one of a task with an ``aio.Lock``. Each of their tests has
one here or in ``tests/unit/locks/test_lock.py``, but for what a ``Lock`` does not have (``blocking``, pauses,
``client.lock()``, logs), and what differs by docs/locks.md, "Coming from another library".
"""

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any, TypeAlias

import pytest
import redis

from celery_redislock import LockLost, LockOptionError
from celery_redislock.locks import Lock, aio
from tests.aio import play
from tests.integration.programs import run_program
from tests.stores import RedisCase

#: Makes a lock of the name ``n``; its verbs are awaited.
Make: TypeAlias = Callable[..., Any]
Story: TypeAlias = Callable[[Make], Coroutine[Any, Any, None]]
Play: TypeAlias = Callable[[Story], None]


@pytest.fixture
def case(redis_url: str) -> Iterator[RedisCase]:
    with closing(RedisCase(redis_url)) as case:
        case.foreign = (case.key(),)
        yield case


@pytest.fixture(params=["Lock", "aio.Lock"])
def played(request: pytest.FixtureRequest, case: RedisCase) -> Play:
    """Let a thread with Locks, or a task with its own kind of them, play a story."""

    def by_a_thread(story: Story) -> None:
        # Without a loop: nothing in it is awaited for longer than a call takes.
        with pytest.raises(StopIteration):
            story(lambda **terms: _Awaited(Lock(case.redis, "n", **terms))).send(None)

    def by_a_task(story: Story) -> None:
        async def told(store: aio.Store) -> None:
            await story(lambda **terms: aio.Lock(store, "n", **terms))

        play(case, told)

    return by_a_thread if request.param == "Lock" else by_a_task


class _Awaited:
    """A Lock whose verbs are awaited, so that one story serves both kinds."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._lock, name)

        async def called(*args: Any, **terms: Any) -> Any:
            return value(*args, **terms)

        return called if callable(value) else value

    async def __aenter__(self) -> "_Awaited":
        self._lock.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)


def test_a_lock_is_held_by_one_seen_by_all_and_leaves_nothing(played: Play, case: RedisCase) -> None:
    """``held`` is about this one, ``holder()`` about anybody; a wait ends when its time is up."""

    async def story(make: Make) -> None:
        one, other = make(), make()
        fences = []
        for holds, asks in ((one, other), (other, one)):
            assert await holds.acquire(timeout=0)
            fences.append(holds.fence)
            assert not await asks.acquire(timeout=-1)
            asked = time.monotonic()
            assert not await asks.acquire(timeout=0.2)
            assert 0.2 <= time.monotonic() - asked < 1.2
            assert (holds.held, asks.held) == (True, False)
            assert (await holds.holder()).token == (await asks.holder()).token
            assert await holds.release()
            assert (holds.held, await asks.holder(), case.keys()) == (False, None, [])
            for verb in (holds.release, holds.renew, holds.check):
                with pytest.raises(redis.exceptions.LockError, match="acquire it first"):
                    await verb()
        assert 0 < fences[0] < fences[1]

    played(story)


def test_a_ttl_is_kept_and_a_renewal_counts_from_now(played: Play, case: RedisCase) -> None:
    """Without a time, up to the ttl again; with one, to that. A lock whose ttl is not named has one."""

    async def story(make: Make) -> None:
        for ttl in (None, 10, 9.5):
            async with make(**({"ttl": ttl} if ttl else {})):
                assert (ttl or 30) - 5 < (case.remaining() or 0) <= (ttl or 30)
        async with make(ttl=100) as lock:
            case.client.pexpire(case.key(), 50_000)
            assert await lock.renew()
            assert 50 < (case.remaining() or 0) <= 100
            assert await lock.renew(1000.5)
            assert 100 < (case.remaining() or 0) <= 1000.5
        with pytest.raises(LockOptionError):
            await make().acquire(timeout="0")

    played(story)


def test_another_process_continues_a_hold(played: Play, case: RedisCase) -> None:
    """By its token: it is renewed there; its first holder learns of the end as of a loss."""
    told: list[object] = []

    async def story(make: Make) -> None:
        first = make(ttl=20, auto_renew=False, on_lost=lambda lock: told.append(lock.name))
        await first.acquire()
        run_program(
            """
            with Lock(store, "n", ttl=2.0, token=rest[0]) as lock:
                time.sleep(3)
                lock.check()
                assert not Lock(store, "n").acquire(0)
            with Lock(store, "n", wait=0):
                pass
            """,
            case.url,
            case.prefix,
            first.token,
        )
        assert not await first.renew()
        with pytest.raises(LockLost):
            await first.check()
        assert await first.holder() is None

    played(story)
    assert told == ["n"]


def test_a_hold_is_continued_by_the_other_kind_of_lock(played: Play, case: RedisCase) -> None:
    """Thread to thread, and task to thread; the token of a hold that is gone takes nothing."""

    async def story(make: Make) -> None:
        lock = Lock(case.redis, "n")
        assert lock.acquire(0)
        second = make(token=lock.token)
        assert await second.acquire()
        assert (second.token, second.held) == (lock.token, True)
        assert await second.release()
        with pytest.raises(LockLost, match="under the token"):
            await second.acquire()
        assert case.redis.inspect("n") is None
        assert await make(token=lock.token).release() is False

    played(story)


def test_who_holds_a_lock_takes_it_a_second_time_where_that_is_allowed(played: Play) -> None:
    async def story(make: Make) -> None:
        lock, once = make(), make(reentrant=False)
        async with lock, lock:
            assert lock.held
        async with once:
            with pytest.raises(RuntimeError, match="reentrant=False"):
                await once.acquire(timeout=0)
            assert once.held

    played(story)

"""What the lock suites of redis-py 8.1 and python-redis-lock 4.0 check, as docs/locks.md translates it.

Each story is one of a thread with a ``Lock``, and one of a task with an ``aio.Lock``. Which of their tests is
which of these, by a part of the name; "differs" is what docs/locks.md, "Coming from another library", says:

==============================================================  ==============================================
redis-py: test_lock.py, test_asyncio/test_lock.py               here
==============================================================  ==============================================
lock, context_manager                                           same: taken_released; differs: there is a ttl
lock_token, lock_token_thread_local_false                       differs: the token is made here; token=
locked, owned, owned_with_decoded_responses                     same: held_by_one
competing_locks                                                 same: held_by_one
timeout, float_timeout                                          same: lives_as_long
blocking                                                        not: an attribute of the object
blocking_timeout, high_sleep_small_blocking_timeout             same: wait_ends; not: their pauses
context_manager_blocking_timeout                                same: block_that_gets_no_lock
context_manager_raises_when_locked_not_acquired                 same: block_that_gets_no_lock
lock_error_gives_correct_lock_name                              same: block_that_gets_no_lock, busy.name
releasing, extending, reacquiring_unlocked_lock_raises_error    same: never_acquired
releasing, extending, reacquiring_lock_no_longer_owned          differs: lost, which answers False
context_manager_reacquiring_lock_no_longer_owned                same: block_that_lost
context_manager_not_raise_on_release_lock_(not_owned_)error     same: block_that_lost; differs: always raised
extend_lock, extend_lock_float, extend_lock_replace_ttl         differs: renewal_counts_from_now
reacquire_lock                                                  same: renewal_counts_from_now
(context_manager_)extending, reacquiring_lock_with_no_timeout   differs: always_an_end
release_cancellation_preserves_lock_state                       same: cancelled
lock_class_argument                                             not: there is no client.lock()
==============================================================  ==============================================

==============================================================  ==============================================
python-redis-lock: test_redis_lock.py                           here
==============================================================  ==============================================
upgrade                                                         same: block_that_gets_no_lock
simple, plain, no_block                                         same: taken_released, held_by_one
simple_auto_renewal, auto_renewal, timeout_expire_with_renewal  same: renewed; not: their logs and threads
auto_renewal_stops_after_gc                                     same: nobody_keeps_the_lock
no_auto_renewal, expire, timeout_expire, timeout_acquired       same: not_renewed
expire_without_timeout, expire_less_than_timeout                same: not_renewed; a wait may exceed the ttl
timeout                                                         same: wait_ends
timeout_int_conversion, expire_int_conversion, borken_expires   differs: no_number
not_usable_timeout, invalid_timeout                             differs: no_number
strict_check                                                    same: tests/unit/locks/test_lock.py
extend, extend_lock_default_expire                              same: renewal_counts_from_now
extend_lock_without_expire_fail, auto_renewal_bad_values        differs: always_an_end
extend_another_instance, given_id, bogus_release                same with token=: continued; one_owner
extend_another_instance_different_id_fail                       same: one_owner
owner_id, get_owner_id, token                                   differs: one_owner
double_acquire, enter_already_acquired_with_not_blocking        same with reentrant=False: a_second_time
no_overlap, no_overlap2                                         same: test_lock_line.py, and ``make history``
reset, reset_all, reset(_all)_signalizes                        same: operator
release_from_nonblocking_leaving_garbage, signal_expiration     differs: taken_released, leaves nothing
locked_method                                                   same: held_by_one
==============================================================  ==============================================
"""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeAlias

import pytest
import redis

from celery_redislock import LockBusy, LockLost, LockOptionError
from celery_redislock.locks import Lock, aio
from tests.aio import play
from tests.integration.programs import run_program
from tests.stores import RedisCase
from tests.waiters import PATIENCE, in_line

#: Makes a lock of the name ``n``; its verbs are awaited.
Make: TypeAlias = Callable[..., Any]
Story: TypeAlias = Callable[[Make], Coroutine[Any, Any, None]]


@pytest.fixture
def case(redis_url: str) -> Iterator[RedisCase]:
    with closing(RedisCase(redis_url)) as case:
        case.foreign = (case.key(),)
        yield case


@pytest.fixture(params=["Lock", "aio.Lock"])
def played(request: pytest.FixtureRequest, case: RedisCase) -> Callable[[Story], None]:
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


def test_a_lock_is_taken_released_and_leaves_nothing(
    played: Callable[[Story], None], case: RedisCase
) -> None:
    """By one try, and by a block, as often as one likes."""

    async def story(make: Make) -> None:
        for _ in range(10):
            lock = make()
            assert await lock.acquire(timeout=0)
            assert case.client.exists(case.key())
            assert await lock.release()
            assert case.keys() == []
        async with make(wait=0.2):
            assert case.client.exists(case.key())
        assert case.keys() == []

    played(story)


def test_a_lock_is_held_by_one_and_seen_by_all(played: Callable[[Story], None]) -> None:
    """``held`` is about this one, ``holder()`` about anybody."""

    async def story(make: Make) -> None:
        one, other = make(), make()
        for holds, asks in ((one, other), (other, one)):
            assert await holds.acquire(timeout=0)
            assert not await asks.acquire(timeout=0)
            assert (holds.held, asks.held) == (True, False)
            assert (await holds.holder()).token == (await asks.holder()).token
            await holds.release()
            assert (holds.held, await asks.holder()) == (False, None)

    played(story)


@pytest.mark.parametrize("ttl", [10, 9.5])
def test_a_lock_lives_as_long_as_it_is_told(
    played: Callable[[Story], None], case: RedisCase, ttl: float
) -> None:
    async def story(make: Make) -> None:
        async with make(ttl=ttl):
            assert 0 < (case.remaining() or 0) <= ttl

    played(story)


def test_a_wait_ends_when_its_time_is_up(played: Callable[[Story], None]) -> None:
    async def story(make: Make) -> None:
        async with make():
            asked = time.monotonic()
            assert not await make().acquire(timeout=0.2)
            assert time.monotonic() - asked >= 0.2

    played(story)


@pytest.mark.parametrize("value", [b"bar", b"\xd6{\xc93\xe9"], ids=["text", "bytes"])
def test_a_block_that_gets_no_lock_says_which(
    played: Callable[[Story], None], case: RedisCase, value: bytes
) -> None:
    """A foreign lock excludes ours, whatever its value is."""
    case.client.set(case.key(), value)

    async def story(make: Make) -> None:
        with pytest.raises(LockBusy) as busy:
            async with make(wait=0.1):
                pass
        assert busy.value.key == "n"
        assert not await make().acquire(timeout=0)

    played(story)
    assert case.client.get(case.key()) == value


@pytest.mark.parametrize("verb", ["release", "renew", "check"])
def test_what_was_never_acquired_is_neither_released_nor_renewed(
    played: Callable[[Story], None], verb: str
) -> None:
    async def story(make: Make) -> None:
        with pytest.raises(redis.exceptions.LockError, match="acquire it first"):
            await getattr(make(), verb)()

    played(story)


@pytest.mark.parametrize(("verb", "args"), [("release", ()), ("renew", ()), ("renew", (10,))])
def test_what_was_lost_is_told_and_left_to_its_new_holder(
    played: Callable[[Story], None], case: RedisCase, verb: str, args: tuple[float, ...]
) -> None:
    """An answer, no error; and once it is released, this one holds nothing."""

    async def story(make: Make) -> None:
        lock = make(ttl=10)
        await lock.acquire()
        case.client.set(case.key(), "another's")
        assert await getattr(lock, verb)(*args) is False
        assert not lock.held
        if verb == "renew":
            assert await lock.release() is False
        with pytest.raises(RuntimeError, match="acquire it first"):
            await lock.release()

    played(story)
    assert case.client.get(case.key()) == b"another's"


def test_a_block_that_lost_its_lock_or_gave_it_back_itself_raises(
    played: Callable[[Story], None], case: RedisCase
) -> None:
    async def story(make: Make) -> None:
        with pytest.raises(RuntimeError, match="acquire it first"):
            async with make() as lock:
                await lock.release()
        with pytest.raises(LockLost):
            async with make():
                case.client.set(case.key(), "another's")

    played(story)


def test_a_renewal_counts_from_now(played: Callable[[Story], None], case: RedisCase) -> None:
    """Without a time, up to the ttl again; with one, to that."""

    async def story(make: Make) -> None:
        async with make(ttl=100) as lock:
            case.client.pexpire(case.key(), 50_000)
            assert await lock.renew()
            assert 50 < (case.remaining() or 0) <= 100
            assert await lock.renew(1000.5)
            assert 100 < (case.remaining() or 0) <= 1000.5

    played(story)


def test_there_is_always_an_end(played: Callable[[Story], None], case: RedisCase) -> None:
    """A lock whose ttl is not named has one, and can be renewed."""

    async def story(make: Make) -> None:
        async with make() as lock:
            assert 0 < (case.remaining() or 0) <= 30
            assert await lock.renew(40)
        with pytest.raises(LockOptionError):
            make(ttl=None)

    played(story)


def test_a_hold_expires_when_nobody_keeps_the_lock(played: Callable[[Story], None]) -> None:
    """Nobody could release it; it is renewed as long as its object is referred to."""

    async def story(make: Make) -> None:
        kept = make(ttl=1)
        assert await kept.acquire()
        assert not await make().acquire(timeout=2)
        del kept
        gc.collect()
        again = make()
        assert await again.acquire(timeout=PATIENCE)
        await again.release()

    played(story)


def test_another_process_continues_a_hold(played: Callable[[Story], None], case: RedisCase) -> None:
    """By its token: it is renewed there; its first holder learns of the end as of a loss."""
    told: list[object] = []

    async def story(make: Make) -> None:
        first = make(ttl=2, auto_renew=False, on_lost=lambda lock: told.append(lock.name))
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


def test_a_hold_is_continued_by_the_other_kind_of_lock(
    played: Callable[[Story], None], case: RedisCase
) -> None:
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


def test_a_word_of_another_library_is_answered_with_ours(played: Callable[[Story], None]) -> None:
    """redis-py's ``timeout`` is the ttl: copied, it must not become a wait in silence."""

    async def story(make: Make) -> None:
        with pytest.raises(LockOptionError, match=r"ttl= .* wait="):
            make(timeout=300)

    played(story)


def test_a_hold_that_is_not_renewed_ends_while_another_waits(played: Callable[[Story], None]) -> None:
    """Who waits may do so for longer than either lives."""

    async def story(make: Make) -> None:
        assert await make(ttl=0.5, auto_renew=False).acquire()
        second = make(ttl=1)
        assert await second.acquire(timeout=PATIENCE)
        await second.release()

    played(story)


@pytest.mark.parametrize("terms", [{"ttl": 0}, {"ttl": -1}, {"ttl": "1"}, {"ttl": 1, "wait": "2"}], ids=str)
def test_what_is_no_number_of_seconds_is_not_made_one(
    played: Callable[[Story], None], case: RedisCase, terms: dict[str, Any]
) -> None:
    """A wait below nothing is one try."""

    async def story(make: Make) -> None:
        with pytest.raises(LockOptionError):
            make(**terms)
        for soon in ("0", "foobar"):
            with pytest.raises(LockOptionError):
                await make().acquire(timeout=soon)
        async with make():
            assert not await make().acquire(timeout=-1)

    played(story)
    assert case.keys() == []


def test_one_owner_holds_a_lock_once(played: Callable[[Story], None]) -> None:
    """The owner is for those who read it. Nobody holds by his name: the token is each hold's own."""

    async def story(make: Make) -> None:
        first, second = make(owner="me"), make(owner="me")
        assert await first.acquire()
        assert not await second.acquire(timeout=0)
        with pytest.raises(RuntimeError, match="acquire it first"):
            await second.renew(1000)
        holder = await second.holder()
        assert holder.owner == "me"
        assert holder.token.startswith("me/")
        assert await first.release()
        with pytest.raises(LockOptionError):
            make(owner=b"me")

    played(story)


def test_who_holds_a_lock_takes_it_a_second_time_where_that_is_allowed(
    played: Callable[[Story], None],
) -> None:
    async def story(make: Make) -> None:
        lock, once = make(), make(reentrant=False)
        async with lock, lock:
            assert lock.held
        async with once:
            with pytest.raises(RuntimeError, match="reentrant=False"):
                await once.acquire(timeout=0)
            assert once.held

    played(story)


def test_an_operator_takes_a_lock_away_and_whoever_waits_gets_it(
    played: Callable[[Story], None], case: RedisCase
) -> None:
    """The old holder is told so when it releases."""

    async def story(make: Make) -> None:
        lock = make()
        await lock.acquire()
        case.redis.force_release("n")
        assert await lock.release() is False
        assert await lock.acquire()
        with in_line(case, lambda: Lock(case.redis, "n").acquire(PATIENCE)) as (waiter,):
            for name in case.redis.names():
                case.redis.force_release(name)
            assert waiter.result(PATIENCE)
        assert await lock.release() is False

    played(story)


def test_a_release_that_is_cancelled_before_it_begins_can_be_repeated(case: RedisCase) -> None:
    """A task only: a thread has nobody who cancels it."""

    async def story(store: aio.Store) -> None:
        lock = aio.Lock(store, "n")
        await lock.acquire()
        releases = asyncio.create_task(lock.release())
        releases.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releases
        assert lock.held
        assert await lock.release()

    play(case, story)
    assert case.keys() == []


def test_another_thread_does_not_release_what_this_one_holds(case: RedisCase) -> None:
    """There is no ``thread_local=False``."""
    lock = Lock(case.redis, "n")
    with lock, ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="acquire it first"):
            pool.submit(lock.release).result(PATIENCE)
        assert lock.held

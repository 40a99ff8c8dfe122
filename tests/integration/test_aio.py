"""Locks of asyncio: the same locks, held by tasks; one that is cancelled leaves nothing, wherever it was."""

import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from celery_redislock import LockKeyError, LockLost, LockOptionError, LockUnavailable
from celery_redislock.exceptions import LockLoopError
from celery_redislock.locks import Lock, ReadWriteLock, aio, attempt
from celery_redislock.locks.aio.store import Request
from celery_redislock.locks.lease import new_token
from celery_redislock.wire.connection import Connections
from celery_redislock.wire.loop import Wires
from tests.aio import by_a_task, play, until
from tests.facts import wait_until
from tests.faults import Fault, FaultyProxy
from tests.history import Interval, violations
from tests.stores import RedisCase

#: Seconds: the socket timeout of the stores here. A hand-off lives for two of them.
SOCKET_TIMEOUT = 0.5

#: What a look, or a timer of the loop, may be late on two busy cores.
MARGIN = 0.6


@pytest.fixture
def case(redis_url: str) -> Iterator[RedisCase]:
    """One kind of server suffices: what is sent is the same as a thread's."""
    with closing(RedisCase(redis_url, socket_timeout=SOCKET_TIMEOUT)) as case:
        yield case


@pytest.fixture
def faulty(proxy: FaultyProxy, tcp_server: Any) -> Iterator[RedisCase]:
    """A case whose own store and client see the server itself; stories see it through the proxy."""
    with closing(RedisCase(tcp_server.redis_url, socket_timeout=SOCKET_TIMEOUT)) as case:
        yield case


def waiting(case: RedisCase, name: str = "n") -> int:
    return case.redis.waiting(name)[0]


def no_trace(case: RedisCase, socket_timeout: float = SOCKET_TIMEOUT) -> bool:
    """Whether nothing is left on the server, once the bells that have just been rung have expired."""
    return wait_until(lambda: case.keys() == [], 2 * (socket_timeout + MARGIN))


async def finished(task: "asyncio.Task[Any]") -> BaseException | None:
    """The error of a task, once it has ended."""
    await asyncio.wait([task], timeout=20)
    assert task.done()
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def test_tasks_of_one_lock_exclude_each_other_and_children_do_not_inherit(case: RedisCase) -> None:
    async def story(store: aio.Store) -> None:
        lock = aio.Lock(store, "n")

        async def child() -> bool:
            assert not lock.held
            with pytest.raises(RuntimeError, match="does not hold"):
                await lock.release()
            return await lock.acquire(timeout=0)

        async with lock:
            assert (await lock.holder() or pytest.fail("free")).owner.count(":") == 2  # a task, by default
            assert await asyncio.create_task(child()) is False
        assert await asyncio.create_task(child()) is True

    play(case, story)
    with pytest.raises(RuntimeError):  # nobody who could hold it
        _ = aio.Lock(aio.connect(case.url), "n").held


def test_one_that_is_rung_is_told_at_once_though_others_are_read(case: RedisCase) -> None:
    """A bell that is new is read with the others, not after them."""

    async def story(store: aio.Store) -> list[float]:
        took = []
        locks = {name: aio.Lock(store, name) for name in "abc"}
        for lock in locks.values():
            await lock.acquire()
        waits = {}
        for name in "abc":
            waits[name] = asyncio.create_task(aio.Lock(store, name).acquire(timeout=20.0))
            assert await until(lambda name=name: waiting(case, name) == 1)  # type: ignore[misc]
            await asyncio.sleep(0.05)
        for name in "cab":
            before = time.monotonic()
            await locks[name].release()
            assert await waits[name]
            took.append(time.monotonic() - before)
        return took

    # A look comes a second after a waiter came.
    assert max(play(case, story, socket_timeout=5.0)) < 0.5


@by_a_task
async def test_a_hold_that_is_taken_away_is_noticed_and_told_once(case: RedisCase, store: aio.Store) -> None:
    """In the loop's thread; a wait for the loss may be handed to another task."""
    told: list[tuple[bool, aio.Lock]] = []

    async def fails(lock: aio.Lock) -> None:
        async with lock:
            case.redis.force_release("n")
            raise ZeroDivisionError

    loop = asyncio.get_running_loop()

    def on_lost(lost: aio.Lock) -> None:
        told.append((asyncio.get_running_loop() is loop, lost))

    lock = aio.Lock(store, "n", ttl=0.6, on_lost=on_lost)
    await lock.acquire()
    loss = asyncio.create_task(lock.wait_lost())
    await asyncio.sleep(0)
    case.redis.force_release("n")
    assert await asyncio.wait_for(loss, 5) is True
    assert not lock.held
    with pytest.raises(LockLost):
        await lock.check()
    with pytest.raises(LockLost):
        await lock.acquire()
    assert await lock.renew() is False
    assert await lock.release() is False
    assert told == [(True, lock)]
    async with lock:
        over = asyncio.create_task(lock.wait_lost())
        await asyncio.sleep(0)
    assert await over is False
    with pytest.raises(LockLost):
        async with lock:
            case.redis.force_release("n")
    with pytest.raises(ZeroDivisionError):  # the body's own error matters more
        await fails(lock)
    with pytest.raises(RuntimeError, match="acquire it first"):
        lock.wait_lost()


@pytest.mark.parametrize("ends", ["in the block", "swallowed in it", "by hand", "released"])
@by_a_task
async def test_a_loss_cancels_the_task_that_holds(case: RedisCase, store: aio.Store, ends: str) -> None:
    """``async with`` says why, so that nobody takes it for a cancellation from outside."""
    lock = aio.Lock(store, "n", ttl=0.6, on_lost="cancel")

    async def blocks() -> None:
        async with lock, lock:
            case.redis.force_release("n")
            with suppress(asyncio.CancelledError if ends == "swallowed in it" else ()):
                await asyncio.sleep(30)

    async def works() -> None:
        if ends in {"by hand", "released"}:
            await lock.acquire()
            case.redis.force_release("n")
            if ends == "released":
                await lock.release()
            await asyncio.sleep(30 if ends == "by hand" else 0.8)  # a renewal would be due
            return
        with pytest.raises(LockLost) as lost:
            await blocks()
        assert isinstance(lost.value.__cause__, asyncio.CancelledError) is (ends == "in the block")
        await asyncio.sleep(0)  # it is cancelled no more

    error = await finished(asyncio.create_task(works()))
    assert isinstance(error, asyncio.CancelledError) if ends == "by hand" else error is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task does not count who cancels it")
@by_a_task
async def test_a_cancellation_from_outside_is_not_hidden_by_a_loss(case: RedisCase, store: aio.Store) -> None:
    """Both reach the task in one turn of the loop."""
    lock = aio.Lock(store, "n", on_lost="cancel")

    async def body() -> None:
        async with lock:
            await asyncio.sleep(30)

    task = asyncio.create_task(body())
    assert await until(lambda: bool(lock._holds))
    (held,) = lock._holds.values()
    held.lease.lose("a test says so")
    task.cancel()
    assert isinstance(await finished(task), asyncio.CancelledError)


def test_each_state_of_a_hold_is_told_once_in_the_loop(faulty: RedisCase, proxy: FaultyProxy) -> None:
    """A renewal without an answer makes it unsure, the next one held again; a loss is the last state."""
    told: list[tuple[bool, bool, str]] = []

    async def story(store: aio.Store) -> None:
        loop = asyncio.get_running_loop()

        def tell(about: aio.Lock, state: str) -> None:
            told.append((asyncio.get_running_loop() is loop, about is lock, state))

        lock = aio.Lock(store, "n", ttl=6.0, on_state=tell)
        await lock.acquire()
        # Both attempts of a renewal.
        proxy.fail(Fault.REPLY_LOST, of="renew", at=(1, 2))
        assert await until(lambda: len(told) == 2)
        faulty.redis.force_release("n")
        assert await until(lambda: len(told) == 3)
        assert await lock.release() is False

    play(faulty, story, proxy.url)
    assert told == [(True, True, "unsure"), (True, True, "held"), (True, True, "lost")]


def test_another_loop_is_refused_before_anything_is_taken(case: RedisCase) -> None:
    store = aio.connect(case.url, prefix=case.prefix)
    lock = aio.Lock(store, "n")

    async def use() -> None:
        async with store, lock:
            pass

    async def misuse() -> None:
        before = case.client.info("stats")["total_commands_processed"]
        for verb in (lock.acquire, lock.holder, store.__aenter__):
            with pytest.raises(LockLoopError, match=r"aio\.connect\(\) in each loop"):
                await verb()
        assert case.client.info("stats")["total_commands_processed"] == before + 1

    asyncio.run(use())
    asyncio.run(misuse())
    assert case.keys() == []


def test_a_cancelled_task_leaves_nothing_wherever_it_was(case: RedisCase) -> None:
    """At each of its suspensions: while it connects, asks, waits, is told, and releases."""

    async def story(store: aio.Store) -> int:
        async def work() -> None:
            async with aio.Lock(store, "n", wait=20.0):
                await asyncio.sleep(0)

        cancelled = 0
        for turns in range(60):
            for is_held in (False, True):
                other = aio.Lock(store, "n")
                if is_held:
                    await other.acquire()
                task = asyncio.create_task(work())
                for _ in range(turns):
                    await asyncio.sleep(0)
                if is_held:
                    await other.release()
                for _ in range(turns % 7):
                    await asyncio.sleep(0)
                cancelled += task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                assert await until(lambda: case.redis.holders("n") == () and waiting(case) == 0)
        assert await until(lambda: not store.watchdog._debts)
        return cancelled

    assert play(case, story) > 60
    assert no_trace(case)


@pytest.mark.parametrize("operation", ["start", "park", "release", "leave"])
def test_a_request_in_flight_costs_its_connection_and_leaves_nothing(
    faulty: RedisCase, proxy: FaultyProxy, operation: str
) -> None:
    """The server carries it out and its answer is held back: the task is cancelled before it comes."""

    async def story(store: aio.Store) -> None:
        other = aio.Lock(store, "n")
        if operation != "start":
            await other.acquire()
        await store.aclose()
        before = proxy.fired
        proxy.fail(Fault.SILENCE, of=operation)
        lock = aio.Lock(store, "n")
        task = asyncio.create_task(lock.acquire(timeout=0.1 if operation == "leave" else 30.0))
        assert await until(lambda: proxy.fired == before + 1)
        await asyncio.sleep(0.02)
        open_now = _connections(faulty)
        task.cancel()
        assert isinstance(await finished(task), asyncio.CancelledError)
        proxy.heal()
        if operation != "start":
            assert len(faulty.redis.holders("n")) == 1
            assert await until(lambda: waiting(faulty) == 0)
            await other.release()
        assert await until(lambda: faulty.redis.holders("n") == ())
        assert await until(lambda: not store.watchdog._debts)
        assert open_now - _connections(faulty)

    play(faulty, story, proxy.url, socket_timeout=20.0)
    assert no_trace(faulty)


def _connections(case: RedisCase) -> set[str]:
    return {client["id"] for client in case.client.client_list()}


@pytest.mark.parametrize(
    ("verb", "fault", "is_cancelled"),
    [
        ("release", Fault.SLOW, True),
        ("release", Fault.BLACK_HOLE, False),
        ("downgrade", Fault.BLACK_HOLE, True),
    ],
)
def test_what_ends_a_hold_is_carried_out_although_its_task_is_cancelled_or_its_loop_ends(
    faulty: RedisCase, proxy: FaultyProxy, verb: str, fault: Fault, *, is_cancelled: bool
) -> None:
    """Where the server has not seen the request, the watchdog's thread repeats it."""
    proxy.delay = 0.3

    async def story(store: aio.Store) -> None:
        writes = aio.ReadWriteLock(store, "n").write

        async def work() -> None:
            await writes.acquire()
            proxy.fail(fault, of=verb)
            await getattr(writes, verb)()

        task = asyncio.create_task(work())
        assert await until(lambda: proxy.fired == 1)
        assert not task.done()
        if is_cancelled:
            task.cancel()
            assert isinstance(await finished(task), asyncio.CancelledError)

    play(faulty, story, proxy.url, socket_timeout=5.0)
    with ReadWriteLock(faulty.redis, "n", wait=20.0).read as other:
        left = {hold.token for hold in faulty.redis.holders("n")} - {other.token}
        assert len(left) == (verb == "downgrade")
    for token in left:
        faulty.redis.release("n", token)
    assert no_trace(faulty)


def test_a_lock_whose_connection_is_at_rest_takes_no_task_and_no_timer(case: RedisCase) -> None:
    """Law 10: either costs as much as a request does."""

    async def story(store: aio.Store) -> None:
        loop = asyncio.get_running_loop()
        made: list[str] = []

        def task_of(loop: Any, coro: Any, **more: Any) -> Any:
            made.append(f"a task of {coro!r}")
            return asyncio.Task(coro, loop=loop, **more)

        def call_at(when: float, *what: Any, **more: Any) -> Any:
            made.append(f"a timer of {what!r}")
            return at_first(when, *what, **more)

        async with aio.Lock(store, "n"):  # the connection, and its timer
            pass
        at_first = loop.call_at
        loop.call_at = call_at  # type: ignore[method-assign]
        loop.set_task_factory(task_of)
        async with aio.Lock(store, "n") as lock:
            assert await lock.renew()
        loop.set_task_factory(None)
        del loop.call_at
        assert made == []

    play(case, story, socket_timeout=20.0)


def test_answers_that_come_late_or_are_none_cost_no_connection_and_no_wait(case: RedisCase) -> None:
    """One that the loop finds late is taken; one of another shape, and an error, are told at once."""

    def shape(*_: object) -> None:
        raise LookupError

    async def story(store: aio.Store) -> None:
        async with aio.Lock(store, "n"):
            case.client.script_flush()
        async with aio.Lock(store, "n"):
            pass  # what the server has forgotten was sent in full
        made = [*store._wires[0]._idle]
        task = asyncio.create_task(aio.Lock(store, "n").acquire(0))
        await asyncio.sleep(0)
        time.sleep(2 * SOCKET_TIMEOUT)  # the loop stands still
        assert await task
        for _ in range(3):
            with pytest.raises(LockKeyError, match="WRONGTYPE"):
                await aio.Lock(store, "theirs").acquire()
        assert len(made) == 1
        assert store._wires[0]._idle == made
        before = time.monotonic()
        with pytest.raises(LockUnavailable, match="no answer to this"):
            await store.answer(Request("ring", [store.beside.bell("n", "1")], ["1000"], shape, "n"))
        assert time.monotonic() - before < SOCKET_TIMEOUT
        # A token that nobody holds by: that is the answer, and no loss of this task's.
        lock = aio.Lock(store, "n", token=new_token("gone"), on_lost="cancel")
        assert not await lock.renew()
        with pytest.raises(LockLost):
            await lock.check()
        await lock.holder()  # a task that was cancelled meanwhile is told here

    case.client.lpush(case.key("theirs"), "a list")
    play(case, story)
    case.client.delete(case.key("theirs"))


def test_a_turn_that_was_given_to_a_cancelled_task_is_given_on() -> None:
    async def story() -> None:
        wires = Wires(Connections(redis.ConnectionPool(), socket_timeout=1.0))
        wires.free = 0
        tasks = [asyncio.create_task(wires.turn()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        wires.end_turn()
        tasks[1].cancel()
        await asyncio.wait_for(tasks[2], 10)
        for task in tasks[:2]:
            assert isinstance(await finished(task), asyncio.CancelledError)

    asyncio.run(story())


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.RESET_IN_REPLY, Fault.SILENCE])
@pytest.mark.parametrize("operation", ["start", "renew", "release", "park"])
def test_a_lost_answer_is_asked_for_again_under_the_same_token(
    faulty: RedisCase, proxy: FaultyProxy, fault: Fault, operation: str
) -> None:
    async def story(store: aio.Store) -> None:
        other = aio.Lock(store, "n")
        if operation == "park":
            await other.acquire()
        proxy.fail(fault, of=operation)
        lock = aio.Lock(store, "n", auto_renew=False)
        task = asyncio.create_task(lock.acquire(timeout=20.0))
        if operation == "park":
            assert await until(lambda: proxy.fired == 1 and waiting(faulty) == 1)
            assert await other.release()
        assert await task
        assert await lock.holder() is not None
        (held,) = lock._holds.values()
        assert (await store.ask(lambda verbs: verbs.renew([held.lease.term]))).renewed == [True]
        assert await store.drive(attempt.ending(store.beside, held.lease))
        assert proxy.fired == 1

    play(faulty, story, proxy.url)
    assert no_trace(faulty)


def test_a_server_without_an_answer_costs_all_who_ask_a_bounded_time(
    faulty: RedisCase, proxy: FaultyProxy
) -> None:
    """Law 9: those in the queue fail with the first; who waits in line within a second of its own time."""

    async def story(store: aio.Store) -> None:
        held = aio.Lock(store, "held")
        await held.acquire()
        waits = asyncio.create_task(aio.Lock(store, "held").acquire(1.0))
        assert await until(lambda: waiting(faulty, "held") == 1)
        proxy.black_hole()
        before = time.monotonic()
        asks = [asyncio.create_task(aio.Lock(store, f"{each}").acquire()) for each in range(100)]
        for task in (waits, *asks):
            assert isinstance(await finished(task), LockUnavailable)
        assert time.monotonic() - before < 2 * (1 + SOCKET_TIMEOUT) + MARGIN
        proxy.heal()
        assert await until(lambda: not store.watchdog._debts, 20)
        assert waiting(faulty, "held") == 0
        assert await held.release()

    play(faulty, story, proxy.url)
    assert no_trace(faulty)


@pytest.mark.parametrize("options", ["", "protocol=3", "protocol=2&decode_responses=true"])
def test_a_strict_fence_and_both_protocols(case: RedisCase, options: str) -> None:
    async def story(store: aio.Store) -> None:
        lock = aio.Lock(store, "n")
        fences = []
        for _ in range(2):
            async with lock:
                fences.append(lock.fence or 0)
                assert not await asyncio.create_task(aio.Lock(store, "n").acquire(timeout=0.1))
        assert 0 < fences[0] < fences[1]

    play(case, story, f"{case.url}{'&' if '?' in case.url else '?'}{options}", strict_fence=True)


def test_a_factory_says_how_to_connect(case: RedisCase) -> None:
    """A client of either kind; so to the watchdog's connection, which renews while the loop stands still."""

    async def story(store: aio.Store) -> None:
        async with aio.Lock(store, "n", ttl=0.6) as lock:
            time.sleep(1.5)
            await lock.check()

    for factory in (redis.Redis.from_url, redis.asyncio.Redis.from_url):
        play(case, story, lambda factory=factory: factory(case.url, decode_responses=True))


def test_what_nobody_can_connect_to_is_refused_at_once() -> None:
    replicas = redis.asyncio.Sentinel([("127.0.0.1", 1)]).master_for("mine").client
    others = [redis.Redis(), redis.asyncio.Redis(), replicas, "nonsense://", "redis+cluster://127.0.0.1:1/3"]
    for server in (17, lambda: 17, *others):
        with pytest.raises(LockOptionError):
            aio.connect(server)
    with pytest.raises(LockOptionError):
        aio.connect("redis://127.0.0.1", socket_timeout=0)


def test_a_store_that_is_closed_keeps_no_connection_and_can_be_used_again(lone_case: RedisCase) -> None:
    case = lone_case
    before = _connections(case)

    async def story(store: aio.Store) -> None:
        for _ in range(2):
            async with aio.Lock(store, "n"):
                assert not await asyncio.create_task(aio.Lock(store, "n").acquire(0.1))
            await store.aclose()
            assert await until(lambda: _connections(case) <= before)

    play(case, story)


@pytest.mark.parametrize("names", [1, 1000])
def test_a_thousand_tasks_wait_in_order_with_sixteen_connections(lone_case: RedisCase, names: int) -> None:
    """On one name or a thousand: one request reads all their bells."""
    order: list[str] = []
    case = lone_case
    before = _connections(case)

    async def story(store: aio.Store) -> tuple[list[str], int]:
        async def work(each: int) -> None:
            async with aio.Lock(store, f"n{each % names}", owner=f"w{each}", wait=50.0):
                order.append(f"w{each}")

        holders = [aio.Lock(store, f"n{each}") for each in range(names)]
        for holder in holders:
            await holder.acquire()
        tasks = [asyncio.create_task(work(each)) for each in range(1000)]
        assert await until(
            lambda: (waiting(case, "n0"), len(case.redis.lines())) == (1000 // names, names), 30
        )
        if names == 1:
            await asyncio.sleep(2.5)  # each has looked, and parked again
        line = [waiter.hold.owner for waiter in case.redis.waiting("n0")[1]]
        most = len(_connections(case) - before)
        for holder in holders:
            await holder.release()
        await asyncio.gather(*tasks)
        return line, max(most, len(_connections(case) - before))

    line, most = play(case, story, socket_timeout=1.0)
    assert len(order) == 1000
    assert names > 1 or order == line
    assert most <= 16
    assert no_trace(case, 1.0)


@pytest.mark.parametrize(
    ("terms", "said"),
    [({"margin": 0.6}, "margin"), ({"lock_delay": -1}, "lock_delay"), ({"on_state": "tell"}, "on_state"),
     ({"on_lost": "kill"}, "on_lost"), ({"ttl": 0}, "ttl"), ({"name": ["a", "b"]}, "locked together")],
)  # fmt: skip
def test_what_no_lock_can_have_is_refused(case: RedisCase, terms: dict[str, Any], said: str) -> None:
    """Several names, where no step takes them all."""
    with pytest.raises(LockOptionError, match=said):
        aio.Lock(aio.connect(case.url, min_replicas=1), **{"name": "n", **terms})


def test_tasks_and_threads_never_hold_it_at_once_whoever_gives_up_or_is_cancelled(case: RedisCase) -> None:
    """Law 1, by intervals and fences; the leases are short, and the loop stands still at times."""
    history: list[Interval] = []

    def thread(number: int) -> None:
        for turn in range(8):
            lock = Lock(case.redis, "n", ttl=1.0)
            if lock.acquire(timeout=0.01 * (turn % 5)):
                began, fence = time.monotonic(), lock.fence
                history.append(Interval("n", f"thread {number}", fence, began, time.monotonic()))
                lock.release()

    async def story(store: aio.Store) -> None:
        async def task(number: int) -> None:
            async with aio.Lock(store, "n", ttl=1.0, wait=20.0) as lock:
                began, fence = time.monotonic(), lock.fence
                try:
                    await asyncio.sleep(0.001 * (number % 3))
                    time.sleep(0.002 * (number % 4))
                finally:
                    history.append(Interval("n", f"task {number}", fence, began, time.monotonic()))

        async def client(number: int) -> None:
            for turn in range(8):
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(task(number), 0.005 * ((number + 3 * turn) % 20) + 0.005)
            await task(number)

        threads = [asyncio.create_task(asyncio.to_thread(thread, number)) for number in range(4)]
        await asyncio.gather(*map(client, range(20)), *threads)
        assert await until(lambda: not store.watchdog._debts)

    play(case, story)
    assert violations(history) == []
    assert len(history) >= 20
    assert no_trace(case)


def test_a_thread_that_waits_in_a_loop_is_warned_of_once(plain_case: RedisCase, caplog: Any) -> None:
    """It goes on: notebooks live in a running loop."""
    attempt._warn_of_a_loop_that_stands.cache_clear()
    caplog.set_level(logging.WARNING, "celery_redislock")

    async def misuse() -> None:
        assert Lock(plain_case.redis, "free").acquire(5.0)
        assert caplog.messages == []
        for _ in range(2):
            assert not Lock(plain_case.redis, "n").acquire(0.1)

    with Lock(plain_case.redis, "n"):
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(Lock(plain_case.redis, "n").acquire, 0.1).result(10)
        assert caplog.messages == []
        asyncio.run(misuse())
    (message,) = caplog.messages
    assert "celery_redislock.locks.aio" in message
    assert "asyncio.to_thread" in message

"""Several names in one lock: all or none, in one order for all who wait, and never a deadlock."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.exceptions import LockLost, LockOptionError
from celery_redislock.locks import Lock, Semaphore, connect
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.store.joined import joined
from celery_redislock.store.store import Entry, Grant, Refusal
from tests.facts import wait_until
from tests.faults import Fault, FaultyProxy
from tests.integration.programs import waiting_programs
from tests.stores import RedisCase
from tests.waiters import PATIENCE, in_line

#: Seconds: the socket timeout of the stores here.
SOCKET_TIMEOUT = 0.5


@pytest.fixture
def case(redis_url: str) -> Iterator[RedisCase]:
    """A store in which one that waits and dies is soon forgotten."""
    with closing(RedisCase(redis_url, socket_timeout=SOCKET_TIMEOUT)) as case:
        yield case


def _lock(case: RedisCase, *names: str, **options: object) -> Lock:
    return Lock(case.redis, list(names), wait=PATIENCE, **options)  # type: ignore[arg-type]  options of any kind


def _free(case: RedisCase, *names: str) -> bool:
    return [case.holder(name) for name in names] == [None] * len(names)


def test_all_are_held_under_one_token_or_none(case: RedisCase) -> None:
    """Each of the names is the ordinary lock of that name; they may be named in any order, and twice."""
    lock = _lock(case, "b", "n", "b")
    assert lock.acquire(0)
    assert case.holder("b") == case.holder("n") == lock.token
    for name in "bn":
        assert not _lock(case, name).acquire(0)
        assert Semaphore(case.redis, name, 3).acquire(timeout=0) is None
    for names in ("abc", "cba"):
        assert not _lock(case, *names).acquire(0)
        assert _free(case, "a", "c")
    assert lock.release()
    assert _free(case, "b", "n")


def test_nobody_goes_before_one_that_waits_for_several(case: RedisCase) -> None:
    """Also where a lock is free, so that it never starves."""
    holder = _lock(case, "n")
    holder.acquire()
    order: list[str] = []

    def take(*names: str) -> None:
        with _lock(case, *names):
            order.append(" ".join(names))

    with in_line(case, lambda: take("a", "n")) as (several,), ThreadPoolExecutor(2) as pool:
        assert (case.redis.waiting("a")[0], case.holder("a")) == (1, None)
        assert not _lock(case, "a").acquire(0)
        assert Semaphore(case.redis, "a", 3).acquire(timeout=0) is None
        behind = pool.submit(take, "a")
        assert wait_until(lambda: case.redis.waiting("a")[0] == 2, PATIENCE)
        holder.release()
        several.result(PATIENCE)
        behind.result(PATIENCE)
    assert order == ["a n", "a"]


def test_one_that_waits_for_several_does_not_go_before_another(case: RedisCase) -> None:
    """Also where all of its locks are free, and it is the first to wait in one of their lines."""
    holder = _lock(case, "z")
    holder.acquire()
    order: list[str] = []

    def take(*names: str) -> None:
        with _lock(case, *names):
            order.append(" ".join(names))

    with in_line(case, lambda: take("n", "z")) as (first,), ThreadPoolExecutor(2) as pool:
        others = [pool.submit(take, *names) for names in (["a", "n"], ["n", "y"])]
        assert wait_until(lambda: case.redis.waiting("n")[0] == 3, PATIENCE)
        assert order == []
        holder.release()
        first.result(PATIENCE)
        for other in others:
            other.result(PATIENCE)
    assert order[0] == "n z"


@pytest.mark.parametrize("is_killed", [False, True], ids=["gives up", "is killed"])
def test_those_behind_go_on_when_it(case: RedisCase, *, is_killed: bool) -> None:
    """Its entries leave the lines when they have not been refreshed for two socket timeouts."""
    program = f"""
        Lock(store, ["a", "n"], wait=60.0).acquire({60.0 if is_killed else 2.0})
    """
    with _lock(case, "n"), ThreadPoolExecutor(1) as pool, waiting_programs(case, program, 1) as (process,):
        assert wait_until(lambda: case.redis.waiting("n")[0] == 1, PATIENCE)
        behind = pool.submit(_lock(case, "a").acquire, PATIENCE)
        assert wait_until(lambda: case.redis.waiting("a")[0] == 2, PATIENCE)
        if is_killed:
            process.kill()
        assert behind.result(PATIENCE)


def test_locks_of_any_names_in_any_order_exclude_each_other_and_all_end(case: RedisCase) -> None:
    """Eight threads, one to three of five names: no deadlock, and never two in one name."""
    names = "abcde"
    inside = dict.fromkeys(names, 0)
    together: list[tuple[str, ...]] = []
    guard = threading.Lock()

    def count(taken: list[str], change: int) -> None:
        with guard:
            for name in taken:
                inside[name] += change
                if inside[name] > 1:
                    together.append((*taken,))

    def work(seed: int) -> int:
        chance = random.Random(seed)  # noqa: S311  to play the same again
        for _ in range(25):
            taken = chance.sample(names, chance.choice([1, 2, 3]))
            with _lock(case, *taken):
                count(taken, 1)
                count(taken, -1)
        return seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8), timeout=120)) == list(range(8))
    assert together == []
    assert wait_until(lambda: case.keys() == [], PATIENCE)


def _lines(case: RedisCase) -> list[list[str]]:
    return [[waiter.id for waiter in case.redis.waiting(name)[1]] for name in "ab"]


def _hold_ab(case: RedisCase) -> None:
    for name in "ab":
        case.take("holder/1", name=name)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("steps", [2, 4, 6])
def test_one_that_pauses_while_it_waits_enters_all_lines_anew(case: RedisCase, steps: int, name: str) -> None:
    """Wherever it pauses: else it would stand before another in one line, and behind it in the other."""
    _hold_ab(case)
    paused, other = _lock(case, "a", "b"), _lock(case, "a", "b")
    asking = paused._attempt(paused._who()).steps(2 * PATIENCE)
    step = next(asking)
    for _ in range(steps):
        step = asking.send(step(paused._store))
    [[first], _] = _lines(case)
    with ThreadPoolExecutor(2) as pool:
        behind = pool.submit(lambda: other.acquire(PATIENCE) and other.release())
        # It has given no sign of life for longer than it may, and another one is in both lines.
        assert wait_until(lambda: all({*line} - {first} for line in _lines(case)), PATIENCE)
        for each in "ab":
            case.client.zadd(case.key(each, "until"), {first: 1}, xx=True)
        case.redis.release(name, "holder/1")
        ended = pool.submit(wait_until, lambda: list(map(len, _lines(case))) == [2, 2], PATIENCE)
        ended.add_done_callback(lambda _: case.redis.release("ba"["ab".index(name)], "holder/1"))
        with suppress(StopIteration):
            while True:
                step = asking.send(step(paused._store))
        assert ended.result(PATIENCE)
        assert paused.release()
        assert behind.result(PATIENCE)


def test_one_that_a_line_has_lost_enters_all_lines_anew(case: RedisCase) -> None:
    """As when its key was deleted: who comes meanwhile stands before it in all lines."""
    _hold_ab(case)
    both = joined(case.redis)
    for who in "12":
        both.park("a b", f"{who}/1", _entry(case, who), nonce=who)
    case.client.zrem(case.key("b", "line"), "1/1")
    both.park("a b", "1/1", _entry(case, "1"), nonce="3")
    assert _lines(case) == [["2/1", "1/1"]] * 2


def test_all_are_renewed_and_the_loss_of_one_is_the_loss_of_all(case: RedisCase) -> None:
    """By one watchdog, in the request that renews the others."""
    lost = threading.Event()
    lock = _lock(case, "a", "b", ttl=1.5, on_lost=lambda _: lost.set())
    lock.acquire()
    watchdog = watchdog_of(case.redis)
    assert wait_until(lambda: watchdog.renewals >= 4, PATIENCE)
    lock.check()
    assert case.holder("a") == case.holder("b") is not None
    assert min(case.remaining("a") or 0, case.remaining("b") or 0) > 0.5
    case.redis.force_release("b")
    assert lost.wait(PATIENCE)
    with pytest.raises(LockLost):
        lock.check()
    assert not lock.release()
    assert _free(case, "a", "b")


def test_its_fence_is_larger_than_that_of_any_earlier_holder(redis_url: str) -> None:
    """Those of one of the names included, with a counter that one of them has driven far."""
    with closing(RedisCase(redis_url, strict_fence=True)) as case:
        far = 4_000_000_000_000_000
        case.client.set(case.key("b", "fence"), far)
        for before, after in ((["b"], ["a", "b"]), (["a", "b"], ["a"]), (["a"], ["b", "a"])):
            fences = []
            for names in (before, after):
                with _lock(case, *names) as lock:
                    fences.append(lock.fence or 0)
            assert far < fences[0] < fences[1]


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.RESET_IN_REPLY])
@pytest.mark.parametrize("operation", ["acquire_all", "park_all", "release_all"])
def test_a_request_whose_answer_gets_lost_is_carried_out_once(
    operation: str, fault: Fault, tcp_server: EmbeddedServer, proxy: FaultyProxy
) -> None:
    """It is repeated under the same token."""
    with closing(RedisCase(tcp_server.url)) as near, closing(connect(proxy.url, prefix=near.prefix)) as far:
        proxy.fail(fault, of=operation)
        lock = Lock(far, ["a", "n"], wait=PATIENCE)
        holder = _lock(near, "n")
        holder.acquire()
        with in_line(near, lambda: lock.acquire(PATIENCE) and lock.release()) as (taken,):
            holder.release()
            assert taken.result(PATIENCE)
        assert proxy.fired == 1
        assert wait_until(lambda: near.keys() == [], PATIENCE)


def test_a_full_line_leaves_it_in_none(case: RedisCase) -> None:
    """It could never be handed all of them."""
    case.take("holder/1", name="b")
    entry = Entry("ring", "bell", 2.0, '{"owner":"me"}')
    case.redis.park("b", "other/1", Entry("ring", "bell", 2.0, "{}"), nonce="1")
    answer = joined(case.redis).park("a b", "me/1", entry, nonce="2", most=1)
    assert answer.word == "full"
    assert [case.redis.waiting(name)[0] for name in "ab"] == [0, 1]


def _entry(case: RedisCase, bell: str, kind: str = "ring") -> Entry:
    to = case.redis.home if kind == "give" else case.redis.bell("a", bell)
    return Entry(kind, to, 2.0, '{"line":1}', "text")


def test_those_behind_are_handed_the_lock_in_the_step_in_which_it_leaves(case: RedisCase) -> None:
    """Nobody has to look: it was free, and kept for the one that has given up."""
    both = joined(case.redis)
    case.take("holder/1", name="b")
    both.park("a b", "two/1", _entry(case, "1"), nonce="1")
    case.redis.park("a", "one/1", _entry(case, "2"), nonce="2")
    assert case.holder("a") is None
    both.leave("a b", "two/1")
    assert case.holder("a") == "one/1"
    assert case.redis.waiting("b")[0] == 0


def test_who_is_moved_or_taken_out_in_one_line_is_so_in_all(case: RedisCase) -> None:
    """By an operator who names one lock: else two would wait for each other."""
    _hold_ab(case)
    both = joined(case.redis)
    for who in ("first", "second", "third"):
        both.park("a b", f"{who}/1", _entry(case, who), nonce=who)
    assert case.redis.move("b", "second/1", "first")
    assert _lines(case) == [["second/1", "first/1", "third/1"]] * 2
    case.redis.leave("b", "second/1")
    assert _lines(case) == [["first/1", "third/1"]] * 2
    case.redis.drain("b", ids=["third/1"])
    assert _lines(case) == [["first/1"]] * 2


def test_a_copy_that_is_refused_leaves_its_message_in_its_places(case: RedisCase) -> None:
    """In one that it had left it would stand behind one that is behind it elsewhere, and both for ever."""
    case.take("holder/1", name="b")
    both = joined(case.redis)
    case.redis.home = "amqp://elsewhere"
    both.park("a b", "one/1", _entry(case, "1", "give"), nonce="1")
    assert isinstance(both.acquire("a b", "one/run", 30.0, instead_of="one/1", starts_run=True), Refusal)
    both.park("a b", "two/1", _entry(case, "2", "give"), nonce="2")
    assert both.park("a b", "one/1", _entry(case, "1", "give"), nonce="3").word == "repeated"
    assert _lines(case) == [["one/1", "two/1"]] * 2
    case.redis.release("b", "holder/1")
    assert [case.holder(name) for name in "ab"] == ["one/1"] * 2


def test_a_retry_that_came_before_its_run_handed_on_leaves_all_lines_when_it_starts(case: RedisCase) -> None:
    """Left in one, it would be sent again when its own run ends."""
    _hold_ab(case)
    both = joined(case.redis)
    entry = Entry("push", case.queue(), 2.0, '{"line":1}', "text")
    assert both.park("a b", "retry/1", entry, nonce="1").word == "parked"
    assert both.hand_on("a b", "holder/1", "retry/1", 60.0, facts='{"state":"queued"}').released
    terms = {"instead_of": "retry/1", "starts_run": True, "facts": '{"state":"running"}'}
    assert isinstance(both.acquire("a b", "retry/run", 30.0, **terms), Grant)
    assert [case.redis.waiting(name, handed_on=True)[0] for name in "ab"] == [0, 0]


def test_a_message_that_was_handed_all_keeps_all_until_it_is_run(case: RedisCase) -> None:
    """Its publisher settles it by the name of the lock that it was handed last."""
    case.redis.home = "amqp://elsewhere"
    given: list[str] = []
    case.redis.on_promoted = lambda promoted: given.extend(each.name for each in promoted)
    case.take("holder/1", name="b")
    joined(case.redis).park("a b", "two/1", _entry(case, "1", "give"), nonce="1")
    case.redis.release("b", "holder/1")
    assert given == ["b"]
    assert case.redis.settle("b", "two/1", 60.0)
    for name in "ab":
        assert case.holder(name) == "two/1"
        assert (case.remaining(name) or 0.0) > 30.0
        assert case.redis.waiting(name)[0] == 0


def test_a_message_whose_queue_takes_nothing_holds_nothing_and_keeps_its_places(case: RedisCase) -> None:
    """As with one name: its locks would refuse everybody for as long as a claim lives."""
    case.foreign = (case.queue(),)
    case.client.set(case.queue(), "no list")
    case.take("holder/1", name="b")
    entry = _entry(case, "1")._replace(kind="push", to=case.queue())
    joined(case.redis).park("a b", "two/1", entry, nonce="1")
    case.redis.release("b", "holder/1")
    assert _free(case, "a", "b")
    for name in "ab":
        assert [waiter.id for waiter in case.redis.waiting(name)[1]] == ["two/1"]
    case.client.delete(case.queue())
    case.take("holder/2", name="b")
    case.redis.release("b", "holder/2")
    assert [case.holder(name) for name in "ab"] == ["two/1", "two/1"]
    assert [case.redis.waiting(name)[0] for name in "ab"] == [0, 0]
    assert case.pushed() == ["text"]


def test_a_store_that_cannot_take_them_in_one_step_says_so_when_the_lock_is_made(redis_url: str) -> None:
    store = connect(redis_url, min_replicas=1)
    with pytest.raises(LockOptionError, match="cannot be locked together"):
        Lock(store, ["a", "b"])
    assert Lock(store, ["a"]).name == "a"

"""A semaphore: never more holds than its limit, all or none, and who came first is served first."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from celery_redislock import LockBusy, LockLost, LockOptionError
from celery_redislock.locks import Lock, Semaphore
from celery_redislock.locks.watchdog import watchdog_of
from tests.facts import wait_until
from tests.integration.programs import waiting_programs
from tests.stores import RedisCase, StoreCase
from tests.waiters import PATIENCE, in_line


def semaphore(case: StoreCase, limit: int = 3, **options: Any) -> Semaphore:
    """A semaphore named ``n``."""
    return Semaphore(case.store, "n", limit, **options)


def test_as_many_hold_it_as_its_limit_says_each_on_its_own(case: StoreCase) -> None:
    """Law 1; several holds of one thread count each, and several places are taken all or none."""
    three = [semaphore(case).acquire(timeout=0) for _ in range(3)]
    assert semaphore(case).acquire(timeout=0) is None
    assert {hold.token for hold in semaphore(case).holders()} == {permit.token for permit in three}
    assert semaphore(case).available() == 0
    assert three[1].release()
    assert not three[1].release()
    assert semaphore(case).available() == 1
    semaphore(case).acquire(timeout=0).release()
    for permit in (three[0], three[2]):
        permit.check()
        assert permit.release()
    with pytest.raises(LockLost):
        three[0].check()
    assert semaphore(case).holders() == ()
    two = semaphore(case).acquire(2, timeout=0)
    assert semaphore(case).acquire(2, timeout=0) is None
    assert semaphore(case).available() == 1
    assert two.release()
    semaphore(case).acquire(3, timeout=0).release()


def test_who_asks_for_many_is_not_overtaken_by_those_who_ask_for_one(case: StoreCase) -> None:
    """Strictly first come, first served: there is room for one all the time, and it waits behind."""
    seats = semaphore(case)
    one, two = seats.acquire(), seats.acquire()
    order: list[int] = []

    def take(places: int) -> None:
        with seats.acquire(places, timeout=PATIENCE):
            order.append(places)

    with in_line(case, lambda: take(3), lambda: take(1)):
        assert seats.acquire(timeout=0) is None
        assert [hold.facts.get("permits", 1) for hold in seats.waiting()] == [3, 1]
        one.release()
        assert seats.available() == 2
        assert seats.waiting() != ()
        two.release()
    assert order == [3, 1]
    assert seats.holders() == seats.waiting() == ()


def test_a_hold_is_released_from_elsewhere_by_its_token(case: StoreCase) -> None:
    """By another thread, or another process; a hold of this process knows that it has ended."""
    seats = semaphore(case, 1)
    permit = seats.acquire()
    assert semaphore(case, 1).release(permit.token)
    assert not permit.held
    assert not seats.release(permit.token)
    with Semaphore(case.store, "other", 1) as other:
        assert not seats.release(other.token)
        assert other.held
    again = seats.acquire(timeout=0)
    watchdog_of(case.store).forget(again.token)  # as if it were another process's
    assert seats.release(again.token)
    assert again.held
    assert not again.release()


def test_who_asks_for_more_than_there_is_learns_that_at_once(case: StoreCase) -> None:
    """Before anything is taken; and while it waits, when the limit falls below what it asks for."""
    seats = semaphore(case)
    with pytest.raises(LockOptionError, match="permits=4 is more than its limit, 3"):
        seats.acquire(4)
    assert seats.holders() == seats.waiting() == ()
    first = seats.acquire()
    with in_line(case, lambda: seats.acquire(3, timeout=PATIENCE)) as (waits,):
        seats.set_limit(2)
        with pytest.raises(LockOptionError, match="permits=3 is more than its limit, 2"):
            waits.result(PATIENCE)
    assert wait_until(lambda: seats.waiting() == (), PATIENCE)
    first.release()
    with pytest.raises(LockOptionError, match="permits=3"):
        seats.acquire(3)


def test_a_block_holds_one_place_and_says_who_has_them(case: StoreCase) -> None:
    """``with`` raises after the timeout of the semaphore, and each thread leaves its own."""
    seats = semaphore(case, 2, wait=0.0, owner="importer")
    with seats as outer, seats as inner:
        assert outer.token != inner.token
        with pytest.raises(LockBusy, match="importer"), seats:
            pytest.fail("there were three")
        assert seats.available() == 0
    assert seats.holders() == ()
    with pytest.raises(LockLost), seats as permit:
        case.store.release("n", permit.token)


def test_no_other_limit_number_or_time_is_asked_for(plain_case: RedisCase) -> None:
    for limit in (0, 2.5, True):
        with pytest.raises(LockOptionError, match=f"limit={limit} is not a whole number from 1"):
            semaphore(plain_case, limit)  # type: ignore[arg-type]  what is no limit
    for permits in (0, "2", 1.0):
        with pytest.raises(LockOptionError, match=f"permits={permits!r}"):
            semaphore(plain_case).acquire(permits)  # type: ignore[arg-type]  likewise
    with pytest.raises(LockOptionError, match="for_=0"):
        semaphore(plain_case).set_limit(2, for_=0)
    assert plain_case.keys() == []


@pytest.fixture
def quick_case(redis_url: str) -> Iterator[RedisCase]:
    """A store with short socket timeouts."""
    with closing(RedisCase(redis_url, socket_timeout=0.5)) as case:
        yield case


#: Ten threads of one process, which are killed together.
TEN = """
    for _ in range(10):
        threading.Thread(target=Semaphore(store, "n", 3, wait=60.0).acquire, args=(3,)).start()
"""


def test_ten_that_were_killed_at_the_head_cost_two_timeouts_together(quick_case: RedisCase) -> None:
    """Their entries are not refreshed any more, and leave the line unasked; not two timeouts each."""
    case = quick_case
    first = Lock(case.store, "n")
    first.acquire()
    with waiting_programs(case, TEN, 1) as (dead,), ThreadPoolExecutor(1) as pool:
        assert wait_until(lambda: case.store.waiting("n")[0] == 10, 60)
        last = pool.submit(lambda: (semaphore(case).acquire(timeout=60), time.monotonic())[1])
        assert wait_until(lambda: case.store.waiting("n")[0] == 11, PATIENCE)
        dead.kill()
        dead.wait(10)
        killed_at = time.monotonic()
        first.release()
        cost = last.result(PATIENCE) - killed_at
    # Two socket timeouts, and a look that may be late.
    assert cost < 2 * 0.5 + 1.0


def test_the_places_of_a_killed_process_return_with_its_ttl(quick_case: RedisCase) -> None:
    """The others hold theirs meanwhile, and renew them."""
    case = quick_case
    seats = Semaphore(case.store, "n", 3, ttl=1.2)
    mine = seats.acquire()
    with waiting_programs(case, 'Semaphore(store, "n", 3, ttl=1.2).acquire(2)\ntime.sleep(60)', 1) as (dead,):
        assert wait_until(lambda: seats.available() == 0, PATIENCE)
        dead.kill()
        dead.wait(10)
        with seats.acquire(2, timeout=PATIENCE):
            mine.check()
    assert mine.release()


def test_threads_never_hold_more_than_the_limit(case: StoreCase) -> None:
    """Twelve threads take one or two of three places, again and again."""
    guard = threading.Lock()
    taken: list[int] = []
    most: list[int] = []

    def work(each: int) -> None:
        seats = semaphore(case, wait=PATIENCE)
        places = 1 + each % 2
        for _ in range(8):
            with seats.acquire(places, timeout=PATIENCE):
                with guard:
                    taken.append(places)
                    most.append(sum(taken))
                with guard:
                    taken.remove(places)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    assert len(most) == 96
    assert max(most) <= 3
    assert semaphore(case).available() == 3

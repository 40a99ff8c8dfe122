"""What a lock is told that it cannot take: something that is no store, and a time too short for one."""

from typing import Any

import pytest
import redis
import redis.asyncio

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import Lock, MemoryStore, ReadWriteLock, Semaphore, aio, connect
from tests.kinds import BOUNDED

URL = "redis://:secret@127.0.0.1:1/0"


@pytest.mark.parametrize("kind", [Lock, lambda store, name: Semaphore(store, name, 2), ReadWriteLock])
@pytest.mark.parametrize("store", [URL, redis.Redis(), None, aio.connect(URL)], ids=type)
def test_a_lock_says_what_it_takes_in_place_of_a_store(kind: Any, store: Any) -> None:
    with pytest.raises(LockOptionError, match=r"is no store for it; give what connect\(\) returns") as raised:
        kind(store, "n")

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("kind", [aio.Lock, lambda store, name: aio.Semaphore(store, name, 2)])
@pytest.mark.parametrize("store", [URL, redis.asyncio.Redis(), connect(URL)], ids=type)
def test_a_lock_of_a_loop_says_likewise(kind: Any, store: Any) -> None:
    with pytest.raises(LockOptionError, match=r"is no store for it; give what aio\.connect\(\) returns"):
        kind(store, "n")


@pytest.mark.parametrize(
    "semaphore",
    [
        lambda limit: Semaphore(MemoryStore(), "n", limit),
        lambda limit: aio.Semaphore(aio.connect(URL), "n", limit),
    ],
    ids=["of threads", "of a loop"],
)
def test_a_semaphore_has_ten_thousand_places_at_most(semaphore: Any) -> None:
    """Who is refused looks at all holders, which keeps the server from others."""
    assert semaphore(10_000).limit == 10_000

    with pytest.raises(LockOptionError, match="limit=10001 is not a whole number from 1 to 10000"):
        semaphore(10_001)


def test_a_semaphore_is_set_to_no_more_places_and_asked_for_no_more() -> None:
    seats = Semaphore(MemoryStore(), "n", 2)

    with pytest.raises(LockOptionError, match="limit=10001 is not a whole number from 1 to 10000"):
        seats.set_limit(10_001)
    with pytest.raises(LockOptionError, match="permits=10001 is not a whole number from 1 to 10000"):
        seats.acquire(10_001)


def test_a_semaphore_of_a_client_has_a_ttl_that_outlives_its_calls() -> None:
    """As a Lock: three times the longest call."""
    store = connect(redis.Redis(**BOUNDED), through=True)

    with pytest.raises(LockOptionError, match=r"ttl=4.5 is less than three times"):
        Semaphore(store, "n", 2, ttl=4.5)

"""What a lock is told that it cannot take: something that is no store, and a time too short for one."""

from typing import Any

import pytest
import redis
import redis.asyncio

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import Lock, ReadWriteLock, Semaphore, aio, connect
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


def test_a_semaphore_of_a_client_has_a_ttl_that_outlives_its_calls() -> None:
    """As a Lock: three times the longest call."""
    store = connect(redis.Redis(**BOUNDED), through=True)

    with pytest.raises(LockOptionError, match=r"ttl=4.5 is less than three times"):
        Semaphore(store, "n", 2, ttl=4.5)

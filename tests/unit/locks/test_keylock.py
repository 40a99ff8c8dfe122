"""What is done to a hold of a key, by whoever knows the key."""

from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.locks.keylock import LockByName
from celery_redislock.locks.tasklock import Says, TaskLock
from tests.clocks import ManualClock
from tests.scripted import FailingStore


@pytest.mark.parametrize(
    ("ttl", "queue_ttl", "within"), [(30.0, 90.0, 90.0), (90.0, 30.0, 90.0), (None, None, 3600.0)]
)
def test_a_release_without_an_answer_is_tried_until_every_hold_of_its_key_has_expired(
    clock: ManualClock, ttl: Any, queue_ttl: Any, within: float
) -> None:
    """Law 9: a claim lives for ``queue_ttl``, a lease for ``ttl``; for a name alone an hour is assumed."""
    store = FailingStore(clock=clock)
    store.fails = frozenset({"release"})
    owed: list[float] = []

    def owe(*_: object, within: float, **__: object) -> None:
        owed.append(within)

    # In place of one with a thread.
    store.__dict__["watchdog"] = SimpleNamespace(is_server_away=False, owe=owe)
    if ttl is None:
        lock: Any = LockByName(store, "k")
    else:
        lock = TaskLock(store, "shop.sync", ttl, queue_ttl, None, None, Says(), "k", "t1")
    for each in (lock, lock.of_queue(), lock.of_message("m/1")):
        assert each.release("t1/a") is None
    assert owed == [within] * 3

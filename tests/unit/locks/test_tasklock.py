"""What a task's holder writes about itself, and what is done to a hold by whoever knows its key."""

import json
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.locks import MemoryStore
from celery_redislock.locks.keylock import LockByName
from celery_redislock.locks.process import hostname
from celery_redislock.locks.tasklock import Says, TaskLock
from celery_redislock.store.store import QUEUED, RUNNING
from tests.clocks import ManualClock
from tests.scripted import FailingStore


@pytest.mark.parametrize("odd", ["shop.sync", '"', "a\\b\n\0", "☃ \ud800", "%s{}"])
@pytest.mark.parametrize(
    ("is_ignored", "published", "more"),
    [(False, False, {}), (True, False, {"ignored": True}), (False, True, {"published": True})],
)
def test_what_a_holder_writes_is_json_whatever_it_is_called(
    odd: str, is_ignored: bool, published: bool, more: Mapping[str, bool]
) -> None:
    """Who is refused reads it; the token alone tells the owner, and mostly the message."""
    times = {
        "ttl": 30.0,
        "queue_ttl": 60.0,
        "period": None,
        "limit": None,
        "says": Says("skip", "raise", 30.0),
    }
    usual = {"on_conflict": "skip"}
    lock = TaskLock(MemoryStore(), task=odd, key="k", owner="t1", is_ignored=is_ignored, **times)
    claim = json.loads(lock.facts(QUEUED, published=published))
    lease = json.loads(lock.facts(RUNNING, odd, published=published))
    assert claim.pop("since") <= lease.pop("since")
    assert claim == {"task": odd, "host": hostname(), "pid": os.getpid(), "state": "queued", **usual, **more}
    assert len(lease.pop("at", " " * 24)) == 24
    assert lease == {**claim, "state": "running", "message": odd, "ttl": 30, "on_conflict": "raise"}


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

"""What a task's holder writes about itself."""

import json
import os
from collections.abc import Mapping

import pytest

from celery_redislock.locks import MemoryStore
from celery_redislock.locks.process import hostname
from celery_redislock.locks.tasklock import Says, TaskLock
from celery_redislock.store.store import QUEUED, RUNNING


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

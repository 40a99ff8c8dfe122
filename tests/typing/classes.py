"""A user's module with tasks as classes: each attribute and call is checked, also without celery-types."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from celery import Celery
from typing_extensions import assert_type

from celery_redislock import Conflict, DuplicateTask, LockBusy, LockLost, SingletonTask
from celery_redislock.compat.celery_once import AlreadyQueued, QueueOnce
from celery_redislock.compat.celery_singleton import DuplicateTaskError, Singleton
from celery_redislock.publishing.handle import Holder, LockHandle
from celery_redislock.locks import Hold, Lock, MemoryStore, connect
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.locks.lease import InertLease, Lease
from celery_redislock.declaring.types import INHERIT
from celery_redislock.publishing.results import LockEagerResult, LockResult

app = Celery("shop", broker="redis://localhost:6379/0")


def by_feed(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    return (arguments["feed"],)


def choose(conflict: Conflict) -> str:
    assert_type(conflict.expires_in, float)
    return "skip" if conflict.side == "client" else "wait"


class Import(SingletonTask):
    lock = "until_executed"
    lock_key = ("feed",)
    on_conflict = {"client": "raise", "server": "skip"}
    lock_ttl = 20.0
    lock_queue_ttl = timedelta(hours=2)
    lock_max_hold = 600
    on_lock_lost = "terminate"
    on_lock_error = "run"

    def run(self, feed: str, attempt: int = 1) -> str:
        assert_type(self.lease, Lease | InertLease)
        return f"{feed} {attempt}"


class Unlocked(SingletonTask):
    lock = None


class AsTheSettingSays(SingletonTask):
    lock = INHERIT
    lock_key = staticmethod(by_feed)
    on_conflict = staticmethod(choose)


class OfSingleton(Singleton):
    unique_on = ["feed"]
    raise_on_duplicate = True


class OfOnce(QueueOnce):
    once = {"graceful": True, "keys": ["feed"]}


def moved(first: DuplicateTaskError, second: AlreadyQueued) -> None:
    assert_type(first.task_id, str)
    assert_type(second.countdown, float)
    OfSingleton().delay("news")
    OfOnce().apply_async(("news",), once={"timeout": 60})


class Period(SingletonTask):
    lock = "until_expired"
    lock_period = 2880
    lock_key = "feed:{feed}"
    on_conflict = "raise"


import_feed = Import()
app.register_task(import_feed)


def use() -> None:
    result = import_feed.delay("prices")
    assert_type(result, LockResult)
    assert_type(result.is_duplicate, bool)
    assert_type(result.get(timeout=3.0), Any)
    assert_type(import_feed.apply_async(("prices",), lock_ttl=3, on_conflict="skip", countdown=1), LockResult)
    assert_type(import_feed.apply(("prices",)), LockEagerResult)
    import_feed.delay_on_commit("prices")
    handle = import_feed.lock_for("prices")
    assert_type(handle, LockHandle)
    assert_type(handle.key, str)
    assert_type(handle.release(reason="host died", only="queued"), Holder | None)
    if (holder := handle.holder()) is not None:
        assert_type(holder, Holder)
        assert_type(holder.owner, str)
        assert_type(holder.remaining, float)
    try:
        import_feed.delay("prices")
    except DuplicateTask as duplicate:
        assert_type(duplicate.key, str)
        assert_type(duplicate.task_id, str)
        assert_type(duplicate.expires_in, float)
        assert_type(duplicate.retry_after, int | None)


def without_celery() -> None:
    store = connect("redis://localhost:6379/0", socket_timeout=0.5)
    assert_type(store, RedisStore)
    lock = Lock(store, "nightly", ttl=30.0, wait=None, owner="me", on_lost=lambda lost: print(lost.name))
    assert_type(lock.acquire(timeout=0), bool)
    assert_type(lock.fence, int | None)
    assert_type(lock.holder(), Hold | None)
    assert_type(lock.renew(), bool)
    assert_type(lock.release(), bool)
    try:
        with Lock(MemoryStore(), "nightly") as held:
            assert_type(held, Lock)
            held.check()
    except LockBusy as busy:
        assert_type(busy.holder, str)
    except LockLost as lost:
        assert_type(lost.reason, str)

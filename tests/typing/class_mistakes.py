"""A user's mistakes with tasks as classes and with locks, each marked on its line.

"mypy: with celery-types": without them it takes any attribute of Celery's classes for granted.
"""

from celery_redislock import SingletonTask
from celery_redislock.locks import Lock, MemoryStore, connect


def choose(conflict: str) -> str:
    return conflict


class Import(SingletonTask):
    lock = "until_done"  # expect-error
    lock_key = 7  # expect-error
    on_conflict = "queue"  # expect-error
    lock_ttl = "x"  # expect-error
    lock_max_hold = [600]  # expect-error
    on_lock_lost = "ignore"  # expect-error
    on_lock_error = "skip"  # expect-error


class Other(SingletonTask):
    lock = True  # expect-error
    on_conflict = {"publisher": "skip"}  # expect-error
    lock_ttl = None


class Third(SingletonTask):
    on_conflict = staticmethod(choose)  # expect-error


import_feed = Import()
import_feed.dellay("prices")  # expect-error (mypy: with celery-types)
import_feed.delay("prices").is_duplicated  # expect-error (mypy: with celery-types)
import_feed.apply_async(("prices",), lock="until_done")  # expect-error
import_feed.apply_async(("prices",), lock_tll=3)  # expect-error
import_feed.lock_for("prices").release(reason=3)  # expect-error

store = connect("redis://localhost:6379/0", timeout=3)  # expect-error
Lock("redis://localhost:6379/0", "nightly")  # expect-error
Lock(MemoryStore(), 7)  # expect-error
lock = Lock(store, "nightly", ttl="30")  # expect-error
lock.acquire("now")  # expect-error
lock.fence + 1  # expect-error
lock.holder().owner  # expect-error

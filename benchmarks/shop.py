"""The app whose tasks are compared: the same empty body four times."""

import os

from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

from celery_redislock import SingletonTask

__all__ = ["IGNORED", "KINDS", "app"]

_URL = os.environ["CELERY_REDISLOCK_BENCH_URL"]

app = Celery("shop", broker=_URL, backend=_URL)
app.conf.update(
    singleton_backend_url=_URL,
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": _URL, "default_timeout": 3600}},
)


@app.task
def plain(number, full=False):
    return number


@app.task(base=SingletonTask)
def ours(number, full=False):
    return number


@app.task(base=Singleton, lock_expiry=3600)
def singleton(number, full=False):
    return number


@app.task(base=QueueOnce, once={"graceful": True})
def once(number, full=False):
    return number


@app.task(ignore_result=True)
def plain_ignored(number, full=False):
    return number


@app.task(base=SingletonTask, ignore_result=True)
def ours_ignored(number, full=False):
    return number


#: By the name it has in the tables.
KINDS = {"plain": plain, "ours": ours, "celery-singleton": singleton, "celery-once": once}
IGNORED = {"plain": plain_ignored, "ours": ours_ignored}

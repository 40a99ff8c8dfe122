"""The app whose tasks are compared: the same empty body under each package's lock, or under none."""

import os
from functools import cache

import redis
from celery import Celery, Task
from celery_once import QueueOnce
from celery_singleton import Singleton

from celery_redislock import SingletonTask

__all__ = ["DRAINED", "IGNORED", "KINDS", "app", "ping"]

_URL = os.environ["CELERY_REDISLOCK_BENCH_URL"]

app = Celery("shop", broker=_URL, backend=_URL)
app.conf.update(
    singleton_backend_url=_URL,
    ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": _URL, "default_timeout": 3600}},
)


@cache
def _connection(pid):
    return redis.Redis.from_url(_URL).connection_pool.get_connection()


def ping():
    """The least any lock on a server can cost: one trip with nothing in it, on a connection kept open."""
    connection = _connection(os.getpid())
    connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n"], check_health=False)
    connection.read_response()


class Pinging(Task):
    """Makes the two trips of a locked run, with nothing in them."""

    def __call__(self, *args, **kwargs):
        ping()
        try:
            return self.run(*args, **kwargs)
        finally:
            ping()


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


@app.task(base=Pinging)
def pinging(number, full=False):
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
DRAINED = {**KINDS, "with PINGs": pinging}

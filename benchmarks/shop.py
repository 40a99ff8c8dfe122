"""The app whose tasks are compared: the same empty body under each package's lock, or under none."""

import os
from functools import cache

import redis
from celery import Celery, Task
from celery_once import QueueOnce
from celery_once_task import OnceTask, configure, setup_once_task_signals
from celery_singleton import Singleton

from celery_redislock import SingletonTask

__all__ = ["KINDS", "RESULTS", "URL", "app", "open_shop", "ping", "tasks"]

#: Environment variables: where the broker and the locks are, and the results if they are elsewhere.
URL, RESULTS = "CELERY_REDISLOCK_BENCH_URL", "CELERY_REDISLOCK_BENCH_RESULTS"
_broker = os.environ[URL]


@cache
def _connection(pid):
    return redis.Redis.from_url(_broker).connection_pool.get_connection()


def ping(connection=None):
    """The least any lock on a server can cost: one trip with nothing in it, on a connection kept open."""
    connection = connection or _connection(os.getpid())
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


#: How each is declared, by the name it has in the tables.
_DECLARED = {
    "plain": {},
    "ours": {"base": SingletonTask},
    "celery-singleton": {"base": Singleton, "lock_expiry": 3600},
    "celery-once": {"base": QueueOnce, "once": {"graceful": True}},
    "celery-once-task": {"base": OnceTask},
    "with PINGs": {"base": Pinging},
}
#: Those that make a task unique, and plain.
KINDS = tuple(kind for kind in _DECLARED if kind != "with PINGs")


def body(number, full=False, rows=()):
    return number


def open_shop(broker, *, results=None, locks=None):
    """Return an app with all tasks, each also with its results ignored.

    Results are kept at the broker's server unless they are elsewhere, and so are our locks; the others'
    locks are always there.
    """
    app = Celery("shop", broker=broker, backend=results or broker, set_as_current=False)
    app.conf.update(
        singleton_backend_url=broker,
        ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": broker, "default_timeout": 3600}},
    )
    if locks:
        app.conf.redislock_url = locks
    for kind, options in _DECLARED.items():
        for ignored in (False, True):
            app.task(name=_name(kind, ignored), ignore_result=ignored, shared=False, **options)(body)
    return app


def tasks(app, *kinds, ignored=False):
    """Return an app's tasks by kind."""
    app.finalize()
    return {kind: app.tasks[_name(kind, ignored)] for kind in kinds}


def _name(kind, ignored):
    return f"shop.{kind}{' ignored' if ignored else ''}"


configure(redis_url=_broker)
setup_once_task_signals()
app = open_shop(_broker, results=os.environ.get(RESULTS))

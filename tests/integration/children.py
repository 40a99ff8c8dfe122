"""An app in a module that children can import, and what each of them does."""

import os
from typing import Any

from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.locks import Lock
from celery_redislock.locks.watchdog import watchdog_of
from tests.facts import wait_until


def shop_at(url: str, prefix: str) -> Any:
    """A unique task of an app that keeps its locks there."""
    app = Celery("shop", set_as_current=False, broker="memory://")
    app.conf.update(redislock_url=url, redislock_prefix=prefix, redislock_ttl=1.8)

    @app.task(base=SingletonTask, name="sell", shared=False, lock_key="sale:{number}")
    def sell(number: int) -> None:
        pass

    return app.tasks["sell"]


def store_in(task: Any) -> Any:
    """The store its app made."""
    return declaration_of(task).store


def work(task: Any) -> int:
    """Publish, take, renew, give back; return the number the server gave this process's connection."""
    number = os.getpid()
    assert not task.delay(number).is_duplicate
    assert task.delay(number).is_duplicate
    assert task.lock_for(number).release(reason="over", only="queued") is not None
    store = store_in(task)
    with Lock(store, f"child-{number}", ttl=6.0) as lock:
        before = watchdog_of(store).renewals
        assert wait_until(lambda: watchdog_of(store).renewals > before, 20), f"is it held still: {lock.held}"
    connection = store.connections.take()
    connection.send_command("CLIENT", "ID")
    try:
        return int(connection.read_response())
    finally:
        connection.redislock_idle.append(connection)

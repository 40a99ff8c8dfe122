"""The demo's Celery app. Its tasks do what their promise needs, and write down that they did."""

import time
from typing import Any

from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.cli.demo.records import Notebook

__all__ = [
    "SHORT_TTL",
    "TIMES_LONGER",
    "app",
    "charge",
    "configure",
    "decline",
    "export",
    "long_import",
    "notebook",
    "refund",
    "square",
    "thumbnail",
    "total",
]

#: Seconds a body waits at most for what it was told to wait for: no scene takes longer.
PATIENCE = 30.0
#: The time to live of the long task's lock, and how much longer than that its body takes.
SHORT_TTL, TIMES_LONGER = 3.0, 5

# No fixups: a Django project's settings are no concern of the demo.
app = Celery("demo", fixups=(), set_as_current=False)


def configure(url: str, prefix: str) -> None:
    """Use this server for messages, results and locks.

    Args:
        url: as Celery writes it.
        prefix: in front of every key, so that nothing else on the server is touched.
    """
    options = {"global_keyprefix": prefix, "socket_timeout": 10}
    app.conf.update(
        broker_url=url,
        broker_connection_retry_on_startup=True,
        broker_transport_options=options,
        result_backend=url,
        result_backend_transport_options=options,
        result_expires=600,
        task_default_queue="demo",
        # Commands would come through channels without the prefix, from and for anybody's workers.
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        # A third of the shortest lock_ttl below.
        redislock_socket_timeout=SHORT_TTL / 3,
    )


def notebook() -> Notebook:
    """Return where the tasks write down what they do."""
    prefix = app.conf.broker_transport_options["global_keyprefix"]
    return Notebook(app.backend.client, prefix)


@app.task(base=SingletonTask, bind=True, name="demo.thumbnail")
def thumbnail(self: Any, photo: int) -> int:
    """One at a time per photo, queued or running."""
    with notebook().run("thumbnail", self.request.id):
        _wait_for("thumbnail")
    return photo


@app.task(
    base=SingletonTask,
    bind=True,
    name="demo.charge",
    lock="while_executing",
    lock_key="account:{account_id}",
    lock_retry_delay=0.3,
)
def charge(self: Any, account_id: int, amount: int) -> int:
    """Never at the same time as anything else on that account."""
    with notebook().run(f"account {account_id}", self.request.id):
        time.sleep(0.3)
    return amount


@app.task(
    base=SingletonTask,
    bind=True,
    name="demo.refund",
    lock="while_executing",
    lock_key="account:{account_id}",
    lock_retry_delay=0.3,
)
def refund(self: Any, account_id: int, amount: int) -> int:
    """Another task for the same resource."""
    with notebook().run(f"account {account_id}", self.request.id):
        time.sleep(0.3)
    return -amount


# Not shared with other apps of a process, as tasks are by default: their timeouts do not go with this ttl.
@app.task(base=SingletonTask, bind=True, name="demo.long_import", lock_ttl=SHORT_TTL, shared=False)
def long_import(self: Any, feed: str) -> str:
    """Take several times as long as the lock lives without renewal."""
    with notebook().run("long_import", self.request.id):
        time.sleep(TIMES_LONGER * SHORT_TTL)
        _wait_for("long_import")
    return feed


@app.task(base=SingletonTask, bind=True, name="demo.export", lock_ttl=60.0)
def export(self: Any, year: int) -> int:
    """Hang until killed; the next one is let through."""
    with notebook().run("export", self.request.id):
        _wait_for("export")
    return year


@app.task(base=SingletonTask, bind=True, name="demo.decline")
def decline(self: Any, card: int) -> None:
    """Fail, holding the lock while it still can."""
    with notebook().run("decline", self.request.id, held=self.lease.held):
        message = f"card {card} was declined"
        raise ValueError(message)


@app.task(base=SingletonTask, bind=True, name="demo.square")
def square(self: Any, number: int) -> int:
    """Take long enough to meet its duplicate."""
    with notebook().run(f"square {number}", self.request.id):
        time.sleep(0.5)
    return number * number


@app.task(name="demo.total")
def total(numbers: list[int]) -> int:
    """Add up a chord's results: a plain Celery task."""
    return sum(numbers)


def _wait_for(signal: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not notebook().is_let_go(signal) and time.monotonic() < deadline:
        time.sleep(0.02)

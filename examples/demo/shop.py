"""The demo's tasks. Each does what its promise needs, and writes down that it did."""

import os
import time
from typing import Any

from celery import Celery
from celery.signals import beat_init

from celery_redislock import SingletonTask
from examples.demo.notes import Notes

__all__ = [
    "PARCELS", "PULSE", "SHORT_TTL", "TERM", "TIMES_LONGER", "app", "charge", "debit", "decline", "export",
    "load", "long_import", "notes", "pack", "pulse", "refund", "reindex", "report", "square", "thumbnail",
    "total",
]  # fmt: skip

LOCAL = "redis://localhost:6379/0"
#: The time to live of the long task's lock, in seconds.
SHORT_TTL = 3.0
#: How many times longer its body takes.
TIMES_LONGER = 5
#: Seconds between two ticks of the schedule.
PULSE = 2.5
#: The queue of the worker that is killed.
PARCELS = "parcels"
#: Seconds without a sign of life after which what a worker has in hand is restored: the least there may be.
TERM = 6.0

app = Celery(
    __name__,
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)
# A third of the shortest lock_ttl below.
app.conf.redislock_socket_timeout = SHORT_TTL / 3
app.conf.redislock_restore = TERM
app.conf.beat_schedule = {"pulse": {"task": f"{__name__}.pulse", "schedule": PULSE}}
notes = Notes(app)


@beat_init.connect
def note_beat(**_: object) -> None:
    """Write down which processes are beats."""
    notes.write("beats", pid=os.getpid())


@app.task(base=SingletonTask, bind=True)
def thumbnail(self: Any, photo: int) -> int:
    """One at a time per photo, queued or running."""
    with notes.run("thumbnail", self.request.id):
        notes.wait_for("thumbnail")
    return photo


class PerAccount(SingletonTask):
    """Never at the same time as anything else on the same account; nothing is dropped."""

    abstract = True
    lock = "while_executing"
    lock_key = "account:{account_id}"


@app.task(base=PerAccount, bind=True)
def charge(self: Any, account_id: int, amount: int) -> int:
    """Be one task for an account."""
    with notes.run(f"account {account_id}", self.request.id):
        time.sleep(0.3)
    return amount


@app.task(base=PerAccount, bind=True)
def refund(self: Any, account_id: int, amount: int) -> int:
    """Be another task for the same account."""
    with notes.run(f"account {account_id}", self.request.id):
        time.sleep(0.3)
    return -amount


@app.task(base=PerAccount, bind=True)
def debit(self: Any, account_id: int) -> None:
    """Be one of many that stand in line for an account."""
    with notes.run(f"line {account_id}", self.request.id):
        time.sleep(0.1)


@app.task(base=SingletonTask, bind=True, lock_ttl=SHORT_TTL)
def long_import(self: Any, feed: str) -> str:
    """Take several times as long as the lock lives without renewal."""
    with notes.run("long_import", self.request.id):
        time.sleep(TIMES_LONGER * SHORT_TTL)
        notes.wait_for("long_import")
    return feed


@app.task(base=SingletonTask, bind=True, lock_ttl=60.0)
def export(self: Any, year: int) -> int:
    """Hang until it is killed; the next run is let through."""
    with notes.run("export", self.request.id):
        notes.wait_for("export")
    return year


@app.task(base=SingletonTask, bind=True)
def report(self: Any, quarter: str) -> str:
    """Run while somebody asks why the second call does not."""
    with notes.run("report", self.request.id):
        notes.wait_for("report")
    return quarter


@app.task(base=SingletonTask, bind=True, on_conflict="coalesce", lock_key="index:{document}")
def reindex(self: Any, document: int, save: int) -> int:
    """Run while the document is saved again; the newest save waits."""
    with notes.run(f"reindex {document}", self.request.id, save=save):
        notes.wait_for("reindex")
    return save


@app.task(base=SingletonTask, bind=True)
def decline(self: Any, card: int) -> None:
    """Fail while the lock is held."""
    with notes.run("decline", self.request.id, held=self.lease.held):
        message = f"card {card} was declined"
        raise ValueError(message)


@app.task(base=SingletonTask, bind=True)
def pulse(self: Any) -> None:
    """Be over long before a second beat comes with the same tick."""
    with notes.run("pulse", self.request.id, at=time.time()):
        pass


@app.task(bind=True, queue=PARCELS)
def load(self: Any) -> None:
    """Keep a worker of one process busy until it is killed: a plain Celery task."""
    with notes.run("load", self.request.id, worker=os.getppid()):
        notes.wait_for("load")


@app.task(base=SingletonTask, bind=True, queue=PARCELS)
def pack(self: Any, parcel: int) -> int:
    """Wait in the hand of a busy worker."""
    with notes.run(f"pack {parcel}", self.request.id):
        return parcel


@app.task(base=SingletonTask, bind=True)
def square(self: Any, number: int) -> int:
    """Take long enough to meet a duplicate."""
    with notes.run(f"square {number}", self.request.id):
        time.sleep(0.5)
    return number * number


@app.task
def total(numbers: list[int]) -> int:
    """Add up a chord's results: a plain Celery task."""
    return sum(numbers)

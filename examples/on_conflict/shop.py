"""The same job under every strategy there is: what happens to a call that finds another one running."""

import os
import time
from pathlib import Path

from celery import Celery

from celery_redislock import Conflict, SingletonTask

__all__ = ["TASKS", "app"]

LOCAL = "redis://localhost:6379/0"

app = Celery(
    __name__,
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)
# Tasks differ in on_conflict only: whoever comes second is a duplicate while the first is queued or running.
app.conf.update(redislock_lock="until_executed", redislock_retry_delay=0.5)


def urgent_ones_wait(conflict: Conflict) -> str:
    """Decide by the arguments of the call that came second."""
    return "wait" if conflict.kwargs.get("urgent") else "skip"


@app.task(base=SingletonTask, lock_key=("number",), on_conflict="skip")
def skipping(number: int, urgent: bool = False) -> str:
    return invoice("skipping", number, urgent)


@app.task(base=SingletonTask, lock_key=("number",), on_conflict="raise")
def raising(number: int, urgent: bool = False) -> str:
    return invoice("raising", number, urgent)


@app.task(base=SingletonTask, lock_key=("number",), on_conflict="wait")
def retrying(number: int, urgent: bool = False) -> str:
    return invoice("retrying", number, urgent)


@app.task(base=SingletonTask, lock_key=("number",), on_conflict=urgent_ones_wait)
def asking(number: int, urgent: bool = False) -> str:
    return invoice("asking", number, urgent)


@app.task(base=SingletonTask, lock_key=("number",), on_conflict={"client": "raise", "server": "skip"})
def by_side(number: int, urgent: bool = False) -> str:
    return invoice("by_side", number, urgent)


TASKS = (skipping, raising, retrying, asking, by_side)


def invoice(task: str, number: int, urgent: bool) -> str:
    """Write an invoice: work for as long as the printer is busy, which is a file that the story removes."""
    what = f"{task}: {'urgent ' if urgent else ''}invoice {number}"
    print(f"{what} begins", flush=True)
    while Path(os.environ["PRINTER_IS_BUSY"]).exists():
        time.sleep(0.02)
    print(f"{what} ends", flush=True)
    return f"invoice {number}"

"""Two tasks that are called more often than they need to run: of many calls the newest runs."""

import os
import time

from celery import Celery

from celery_redislock import SingletonTask

__all__ = ["PAUSE", "app", "export", "reindex"]

LOCAL = "redis://localhost:6379/0"
#: Seconds without a signal after which an export runs.
PAUSE = 1.0

app = Celery(
    __name__,
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)


@app.task(base=SingletonTask, on_conflict="coalesce", lock_key="index:{document}")
def reindex(document: int, save: int) -> int:
    """Index a document as it was saved; one call runs, and the newest of the others waits."""
    print(f"document {document}: re-index of save {save} begins", flush=True)
    time.sleep(1.0)
    print(f"document {document}: re-index of save {save} ends", flush=True)
    return save


@app.task(base=SingletonTask, lock_debounce=PAUSE, lock_debounce_max=30, lock_key="export:{course}")
def export(course: str, signal: int) -> float:
    """Export a course when the signals have stopped; return when, in seconds since the epoch."""
    print(f"{course}: export after signal {signal}", flush=True)
    return time.time()

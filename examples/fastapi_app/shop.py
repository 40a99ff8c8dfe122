"""The Celery app and its unique tasks: all that the workers know of."""

import os
import time
from pathlib import Path

from celery import Celery

from celery_redislock import SingletonTask

__all__ = ["app", "build_report", "sync_account"]

LOCAL = "redis://localhost:6379/0"

app = Celery(
    "examples.fastapi_app.shop",
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)
app.conf.broker_connection_retry_on_startup = True


@app.task(base=SingletonTask)
def sync_account(account_id: int) -> str:
    """At most one queued or running per account; whoever asks again gets that one's result."""
    wait_for_the_bank("sync", account_id)
    return f"account {account_id} is in sync"


@app.task(base=SingletonTask, on_conflict="raise", lock_period=600.0)
def build_report(account_id: int) -> str:
    """At most one queued or running per account, and one in ten minutes; whoever asks again is told so."""
    wait_for_the_bank("report", account_id)
    return f"report on account {account_id}"


def wait_for_the_bank(what: str, account_id: int) -> None:
    """Take as long as the bank does: until the example has seen what it wants to see."""
    bank = Path(os.environ["BANK"])
    with (bank / f"{what}-{account_id}-asked").open("a") as asked:
        asked.write("asked\n")
    give_up = time.monotonic() + 60
    while not (bank / f"{what}-{account_id}-answered").exists():
        if time.monotonic() > give_up:
            raise TimeoutError("the bank does not answer")
        time.sleep(0.02)

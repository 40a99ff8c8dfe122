"""The Celery app and its unique task: all that the workers know of."""

import os
import time
from pathlib import Path

from celery import Celery

from celery_redislock import SingletonTask

__all__ = ["app", "sync_account"]

LOCAL = "redis://localhost:6379/0"

app = Celery(
    "examples.flask_app.shop",
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)
app.conf.broker_connection_retry_on_startup = True


@app.task(base=SingletonTask, lock_key="account:{account_id}")
def sync_account(account_id: int) -> str:
    """At most one queued or running per account, and a key that tells people which account it is."""
    give_up = time.monotonic() + 60
    while not (Path(os.environ["BANK"]) / str(account_id)).exists():
        if time.monotonic() > give_up:
            raise TimeoutError("the bank does not answer")
        time.sleep(0.02)
    return f"account {account_id} is in sync"

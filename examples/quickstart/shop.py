"""A small shop with three unique tasks: what docker-compose.yml starts, and what the README here explains."""

import os
import time

from celery import Celery
from celery.utils.log import get_task_logger

from celery_redislock import SingletonTask

__all__ = ["app", "charge", "report", "sync_account"]

logger = get_task_logger(__name__)

LOCAL = "redis://localhost:6379/0"

app = Celery(
    "shop",
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)
app.conf.update(
    # None: locks are kept on the broker's Redis, else on the result backend's.
    redislock_url=os.environ.get("REDISLOCK_URL"),
    broker_connection_retry_on_startup=True,
    beat_schedule={"report": {"task": "shop.report", "schedule": 5.0}},
)


@app.task(base=SingletonTask)
def sync_account(account_id: int) -> str:
    """At most one queued or running per account: more presses of the button change nothing."""
    time.sleep(1.0)
    return f"account {account_id} is in sync"


@app.task(base=SingletonTask, lock="while_executing", lock_key="account:{account_id}")
def charge(account_id: int, amount: int) -> dict[str, float]:
    """One at a time per account, none dropped; returns when it began and when it ended."""
    began = time.time()
    time.sleep(0.3)
    return {"account": account_id, "amount": amount, "began": began, "ended": time.time()}


@app.task(base=SingletonTask)
def report() -> None:
    """Once per tick, however many beats."""
    logger.info("reported at %.1f s", time.time())

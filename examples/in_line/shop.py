"""A task that is run one at a time per account, in the order of its calls."""

import os
import time

from celery import Celery

from celery_redislock import SingletonTask

__all__ = ["app", "charge"]

LOCAL = "redis://localhost:6379/0"

app = Celery(
    __name__,
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)


@app.task(base=SingletonTask, lock="while_executing", lock_key="account:{account_id}")
def charge(account_id: int, number: int) -> int:
    """Charge an account; of what is charged only the number of the call is shown."""
    print(f"account {account_id}: charge {number} begins", flush=True)
    time.sleep(0.15)
    print(f"account {account_id}: charge {number} ends", flush=True)
    return number

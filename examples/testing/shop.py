"""A small application with unique tasks: what the tests beside it are about."""

import os

from celery import Celery

from celery_redislock import DuplicateTask, SingletonTask

__all__ = ["app", "charge", "charge_now", "press_sync", "sync_account"]

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")

app = Celery("shop", broker=URL, backend=URL)

#: The balance of each account. (An application has a database here.)
balances: dict[int, int] = {}


def fetch(account_id: int) -> int:
    """Ask the bank, which takes its time."""
    return 100 + account_id


@app.task(base=SingletonTask)
def sync_account(account_id: int) -> int:
    """At most one queued or running per account."""
    balances[account_id] = fetch(account_id)
    return balances[account_id]


@app.task(base=SingletonTask, bind=True, lock="while_executing", lock_key="account:{account_id}")
def charge(self: SingletonTask, account_id: int, amount: int) -> int:
    """One at a time per account."""
    self.lease.check()
    balances[account_id] -= amount
    return balances[account_id]


def press_sync(account_id: int) -> str:
    """What the button says after it was pressed."""
    result = sync_account.delay(account_id)
    return "is on its way already" if result.is_duplicate else "started"


def charge_now(account_id: int, amount: int) -> str:
    """Charge within this call, or say who is at the account."""
    try:
        return f"balance {charge.apply((account_id, amount)).get()}"
    except DuplicateTask as duplicate:
        return f"account in use by {duplicate.task_id}"

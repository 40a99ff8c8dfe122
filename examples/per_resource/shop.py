"""Two tasks that read an account, think, and write it back: only one of them at a time may, per account."""

import os
import time
from pathlib import Path

from celery import Celery, Task

from celery_redislock import SingletonTask
from examples.per_resource.ledger import Ledger

__all__ = ["LateHolder", "app", "deposit", "withdraw"]

LOCAL = "redis://localhost:6379/0"

app = Celery(
    __name__,
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)


class LateHolder(Exception):  # noqa: N818  it is what has happened
    """Somebody else got the lock, and has written the account, since this run read it."""


@app.task(
    base=SingletonTask,
    bind=True,
    lock="while_executing",
    lock_key="account:{account_id}",  # a resource: shared by all tasks that name it
    throws=(LateHolder,),
)
def deposit(self: Task, account_id: int, amount: int, approval: str | None = None) -> int:
    """Put money into an account, when the file ``approval``, if any, is there; return the new balance."""
    return book(self, account_id, amount, approval)


@app.task(
    base=SingletonTask,
    bind=True,
    lock="while_executing",
    lock_key="account:{account_id}",
    throws=(LateHolder,),
)
def withdraw(self: Task, account_id: int, amount: int) -> int:
    """Take money out of an account; return the new balance."""
    return book(self, account_id, -amount, None)


def book(task: Task, account_id: int, amount: int, approval: str | None) -> int:
    """Change a balance as one should not without a lock: read, think, write.

    Raises:
        LateHolder: the lock was lost meanwhile, and another run has written.
    """
    what = f"account {account_id}: {amount:+d}"
    print(f"{what} begins", flush=True)
    ledger = Ledger()
    balance = ledger.balance(account_id) + amount
    time.sleep(0.2)
    while approval and not Path(approval).exists():
        time.sleep(0.02)
    # task.lease.check() would tell here that the lock is lost; a process may stand still after that, too.
    changed = ledger.set_balance(account_id, balance, fence=task.lease.fence)
    print(f"{what} ends, {changed} row changed", flush=True)
    if not changed:
        raise LateHolder(what)
    return balance

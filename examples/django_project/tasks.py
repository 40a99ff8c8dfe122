"""The project's unique tasks."""

import os
import time
from pathlib import Path

from celery import shared_task

from celery_redislock import SingletonTask
from examples.django_project.models import Account, Run

__all__ = ["push_name", "sync_account"]


@shared_task(base=SingletonTask)
def sync_account(account_id: int) -> str:
    """Ask the bank: at most one queued or running per account."""
    name = ask_the_bank(account_id, "sync_account")
    return f"account {account_id} is {name}'s"


@shared_task(base=SingletonTask, lock="until_executing")
def push_name(account_id: int) -> None:
    """Tell the bank what an account is called: at most one queued.

    One asked for while another runs comes too: that one may have read the name before it was changed.
    """
    ask_the_bank(account_id, "push_name")


def ask_the_bank(account_id: int, task: str) -> str:
    """Take as long as the bank does: until the example has seen what it wants to see."""
    account = Account.objects.get(id=account_id)
    Run.objects.create(account=account, task=task, name=account.name)
    answer, give_up = Path(os.environ["BANK"]) / str(account_id), time.monotonic() + 60
    while not answer.exists():
        if time.monotonic() > give_up:
            raise TimeoutError("the bank does not answer")
        time.sleep(0.02)
    return account.name

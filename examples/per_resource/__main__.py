"""The story: see the README beside it."""

import os
from pathlib import Path

from celery.result import AsyncResult

from examples.per_resource.ledger import Ledger
from examples.per_resource.shop import LateHolder, app, deposit, withdraw
from examples.stage import Stage, stage, wait_until

__all__ = ["main"]

#: Accounts, and what is booked on each of them: 100 in all.
ACCOUNTS = (1, 2, 3)
BOOKINGS = (+70, -20, +80, -30)
#: Seconds anything may take.
PATIENCE = 40.0


def main() -> None:
    """Book on three accounts at once, then let a run write that has lost its lock."""
    with stage(app) as here:
        os.environ.setdefault("EXAMPLE_DATABASE_URL", f"sqlite:{here.directory}/accounts.db")
        ledger = Ledger()
        here.say(f"The accounts are in {os.environ['EXAMPLE_DATABASE_URL'].partition(':')[0]}.")
        ledger.create(*ACCOUNTS)
        try:
            here.worker(concurrency=4)
            one_at_a_time_per_account(here, ledger)
            a_late_write_is_refused(here, ledger)
        finally:
            ledger.drop()


def one_at_a_time_per_account(here: Stage, ledger: Ledger) -> None:
    here.say("1. Two tasks, deposit and withdraw, on three accounts; all twelve calls are queued at once.")
    calls = [book(account, amount) for amount in BOOKINGS for account in ACCOUNTS]
    for call in calls:
        call.get(timeout=PATIENCE, propagate=False)
    balances = [ledger.balance(account) for account in ACCOUNTS]
    here.expect(f"none was dropped or overwritten: the balances are {balances}", balances == [100, 100, 100])
    alone = all(is_one_at_a_time(here.lines(f"account {account}: ")) for account in ACCOUNTS)
    here.expect("on each account, one had ended before the next began", alone)
    at_once = most_at_once(here.lines("account "))
    here.expect(f"different accounts did not wait for each other: up to {at_once} at once", at_once > 1)


def a_late_write_is_refused(here: Stage, ledger: Ledger) -> None:
    here.say("2. A deposit of 1000 has read account 1, and waits for its approval inside its body.")
    approval = Path(here.directory, "approval")
    late = deposit.delay(1, 1000, approval=str(approval))
    wait_until(lambda: here.lines("account 1: +1000 begins"), PATIENCE)
    here.say("  an operator takes its lock away, which does not stop it:")
    taken_from = deposit.lock_for(1, 1000).release(reason="looked dead to me")
    here.expect("the lock was the deposit's", taken_from is not None and taken_from.owner == late.id)
    here.say("  somebody else withdraws meanwhile:")
    balance = withdraw.delay(1, 60).get(timeout=PATIENCE, propagate=False)
    here.expect(f"it returned {balance!r}, the new balance", balance == 40)
    here.say("  the approval comes, and the deposit writes what it read, and 1000 more:")
    approval.touch()
    error = late.get(timeout=PATIENCE, propagate=False)
    here.expect("it ended with LateHolder", isinstance(error, LateHolder))
    refused = here.lines("account 1: +1000 ends, 0 row")
    here.expect(
        f"its write changed no row; the balance is {ledger.balance(1)}", refused and ledger.balance(1) == 40
    )


def book(account_id: int, amount: int) -> AsyncResult:
    """Publish one booking; what is negative is withdrawn."""
    if amount > 0:
        return deposit.delay(account_id, amount)
    return withdraw.delay(account_id, -amount)


def is_one_at_a_time(lines: list[str]) -> bool:
    """Whether beginnings and ends take turns: lines stand in the order they were written in."""
    return most_at_once(lines) == 1


def most_at_once(lines: list[str]) -> int:
    """Return how many bodies were on at once."""
    now = most = 0
    for line in lines:
        now += 1 if line.endswith(" begins") else -1
        most = max(most, now)
    return most


if __name__ == "__main__":
    main()

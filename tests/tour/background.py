"""In the background.

One thread of each process renews its leases, and gives back what could not be given back when it should have
been. What is unforeseen comes with its traceback, and costs the other leases nothing.
"""

from typing import Any

from celery_redislock.locks import debts as owed
from tests.clocks import ManualClock
from tests.scripted import Driven, ScriptedRenewer, lease_on
from tests.tour.guide import Guide
from tests.tour.stop import stop

__all__: list[str] = []

KEY = "account:7"


def sync(account_id: int) -> int:
    """What most tasks here do."""
    return account_id


@stop("A lock is held for long")
def held_for_long(guide: Guide) -> None:
    """Told once, so that a run that hangs is seen before it loses its lock; to another one allow more."""
    renewer = ScriptedRenewer(ManualClock())
    watchdog = Driven(renewer)
    watchdog.watch(lease_on(renewer, name=KEY), max_hold=600)
    watchdog.run_until(renewer.clock() + 300)


@stop("A hard time limit's lease cannot be shortened")
def not_shortened(guide: Guide) -> None:
    """The body is dead in a moment; its lock is given back when the server answers, or expires."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY)
    task.apply_async((7,), task_id="t1")
    request = shop.receive()
    shop.store.failures = 1
    request.on_timeout(False, 100)


@stop("What was owed is given back")
def given_back_late(guide: Guide) -> None:
    """The server answers again."""
    _pay(guide, lambda: None)


@stop("What was owed has expired")
def expired_meanwhile(guide: Guide) -> None:
    """The server was away for longer than the holds would have lived; nothing is left to do."""
    clock = ManualClock()
    debts = owed.Debts(clock)
    for number in (7, 8, 9):
        debts.add(lambda: None, within=30.0, what=f"the hold on 'account:{number}'")
    clock.advance(31.0)
    debts.pay_one()


@stop("What was owed cannot be given back")
def not_given_back(guide: Guide) -> None:
    """Something unforeseen; its traceback follows."""

    def fail() -> None:
        message = "something unforeseen"
        raise RuntimeError(message)

    _pay(guide, fail)


def _pay(guide: Guide, release: Any) -> None:
    debts = owed.Debts(ManualClock())
    debts.add(release, within=30.0, what=f"the hold on {KEY!r}")
    debts.pay_one()


@stop("Too much is owed")
def too_much_owed(guide: Guide) -> None:
    """Told once; a process remembers so many, and no more."""
    debts = owed.Debts(ManualClock())
    for number in range(owed.MOST + 2):
        debts.add(lambda: None, within=30.0, what=f"the hold on 'account:{number}'")


@stop("A renewal fails in an unforeseen way")
def renewal_fails(guide: Guide) -> None:
    """It counts as not answered, and is repeated until the lease's deadline. Its traceback follows."""
    renewer = ScriptedRenewer(ManualClock())
    watchdog = Driven(renewer)
    watchdog.watch(lease_on(renewer, name=KEY))
    renewer.then(RuntimeError("something unforeseen"))
    watchdog.run_until(renewer.clock() + 10.0)


@stop("A lease cannot be handled")
def lease_not_handled(guide: Guide) -> None:
    """For instance `on_lock_lost` called `sys.exit`; the other leases are renewed all the same."""
    renewer = ScriptedRenewer(ManualClock())
    watchdog = Driven(renewer)

    def leave(_: object) -> None:
        raise SystemExit(1)

    watchdog.watch(lease_on(renewer, name=KEY, on_lost=leave))
    renewer.then([None])
    watchdog.run_until(renewer.clock() + 10.0)


@stop("The watchdog meets an unforeseen error")
def watchdog_fails(guide: Guide) -> None:
    """It goes on; its traceback follows. Please report it."""
    clock = ManualClock()
    watchdog = Driven(ScriptedRenewer(clock))
    turns = iter((True, False))
    guide.patch.setattr(watchdog, "_wait", lambda: next(turns))

    def fail() -> None:
        message = "something unforeseen"
        raise RuntimeError(message)

    guide.patch.setattr(watchdog, "_do_what_is_due", fail)
    watchdog._run()

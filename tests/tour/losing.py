"""A lost lock.

A running task's lock is gone before the task has ended: another one may be at work beside it. What happens
then is `on_lock_lost`. A database that compares the fence is safe: [long-tasks.md](long-tasks.md).
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from celery_redislock.testing import hold
from tests.clocks import ManualClock
from tests.scripted import Driven, ScriptedRenewer, lease_on
from tests.tour.guide import Guide
from tests.tour.stop import stop
from tests.unit.shop import Shop

__all__: list[str] = []

KEY = "account:7"


def sync(account_id: int) -> int:
    """What most tasks here do."""
    return account_id


def _ask(lease: Any) -> None:
    """Ask for a lease, as the watchdog's thread does."""
    started = threading.Event()
    watchdog = threading.Thread(target=lambda: started.wait(60) and lease._ask())
    watchdog.start()
    # An interruption in the middle of start() comes out of it as a KeyError, and while one is on its way to a
    # thread that sleeps, those that are traced, as here, do not get on (CPython 3.11: threading.py; ceval.c).
    started.set()
    while watchdog.is_alive():
        time.sleep(0.001)


def _release(shop: Shop) -> None:
    shop.store.force_release(KEY)


def _spin() -> None:
    for _ in range(1_000_000):
        pass


def _run_that_loses(
    guide: Guide,
    how: Callable[[Shop], object] = _release,
    *,
    then: Callable[[], object] = lambda: None,
    **options: Any,
) -> None:
    """Run a task whose lock is lost, and noticed to be, while its body is on."""
    shop = guide.shop()
    task = _losing(shop, how, then, **options)
    with shop.running(task, args=(7,)):
        task(7)


def _losing(shop: Shop, how: Callable[[Shop], object], then: Callable[[], object], **options: Any) -> Any:
    def work(self: Any, account_id: int) -> None:
        how(shop)
        _ask(self.lease)
        then()

    return shop.unique(work, bind=True, lock_key=KEY, **options)


@stop("A lock is lost while its task runs")
def lost(guide: Guide) -> None:
    """The process was paused for longer than `lock_ttl`, the server lost its data, or it was released."""
    _run_that_loses(guide)


@stop("Somebody else holds it")
def taken(guide: Guide) -> None:
    """The next one has begun."""

    def take(shop: Shop) -> None:
        _release(shop)
        shop.store.acquire(KEY, "somebody-else/x", 10, about={})

    _run_that_loses(guide, take)


@stop("Nobody could say that it is still held")
def unconfirmed(guide: Guide) -> None:
    """The lock server did not answer until the lease could be trusted no more."""
    _run_that_loses(guide, lambda shop: setattr(shop.store, "failures", 1))


@stop("It was held for as long as is allowed")
def held_for_too_long(guide: Guide) -> None:
    """`lock_max_hold` has passed, or the hard time limit and what killing takes."""
    renewer = ScriptedRenewer(ManualClock())
    watchdog = Driven(renewer)
    lease = lease_on(renewer, name=KEY)
    watchdog.watch(lease, max_hold=600)
    watchdog.run_until(renewer.clock() + 601)
    lease.check()


@stop("`check()` finds it lost")
def check_finds_it_lost(guide: Guide) -> None:
    """Call `self.lease.check()` before what another one must not do at the same time."""
    shop = guide.shop()

    def work(self: Any, account_id: int) -> None:
        shop.store.force_release(KEY)
        self.lease._deadline = 0.0  # it was paused
        self.lease.check()

    task = shop.unique(work, bind=True, lock_key=KEY)
    task.delay(7)
    guide.say(shop.run())


@stop("The body is interrupted")
def interrupted(guide: Guide) -> None:
    """With `on_lock_lost="terminate"` the same error is raised inside the body, wherever it is."""
    _run_that_loses(guide, then=_spin, on_lock_lost="terminate")


@stop("The body is interrupted in a thread")
def interrupted_in_a_thread(guide: Guide) -> None:
    """In the pool `threads` at the next step of the interpreter: not out of a sleep or a socket's call."""
    shop = guide.shop()
    _losing(shop, _release, _spin, on_lock_lost="terminate").delay(7)
    outcomes: list[BaseException] = []
    thread = threading.Thread(target=lambda: outcomes.append(shop.run()))
    thread.start()
    thread.join()
    guide.say(outcomes[0])


@stop("The lock is lost before the body begins")
def lost_before_body(guide: Guide) -> None:
    """With `on_lock_lost="terminate"` the body is not begun."""
    from celery_redislock import lock_acquired

    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY, on_lock_lost="terminate")

    def lose(lease: Any, **_: Any) -> None:
        _release(shop)
        _ask(lease)

    lock_acquired.connect(lose, sender=task, weak=False)
    guide.later.callback(lock_acquired.disconnect, lose, sender=task)
    with shop.running(task, args=(7,)):
        task(7)


@stop("A callable `on_lock_lost` raises")
def callback_raises(guide: Guide) -> None:
    """The body goes on. The traceback of the callable's error follows."""

    def fail(lease: Any) -> None:
        message = "something unforeseen"
        raise RuntimeError(message)

    _run_that_loses(guide, on_lock_lost=fail)


@stop("A lock was gone when its task ended")
def gone_at_the_end(guide: Guide) -> None:
    """Nobody had noticed it earlier."""
    shop = guide.shop()

    def work(account_id: int) -> None:
        shop.store.force_release(KEY)

    task = shop.unique(work, lock_key=KEY)
    with shop.running(task, args=(7,)):
        task(7)


@stop("A lease is asked after its run has ended")
def asked_after_its_end(guide: Guide) -> None:
    """Whoever keeps `self.lease` for longer than the task finds it gone."""
    shop = guide.shop()
    kept: list[Any] = []

    def work(self: Any, account_id: int) -> None:
        kept.append(self.lease)

    task = shop.unique(work, bind=True, lock_key=KEY)
    with shop.running(task, args=(7,)):
        task(7)
    kept[0].check()


@stop("A lock is released by force")
def released_by_force(guide: Guide) -> None:
    """An operator did so, with `lock_for(...).release(reason=...)` or the command; always with a reason."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY)
    with hold(task, 7):
        task.lock_for(7).release(reason="its host died")

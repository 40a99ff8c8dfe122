"""``on_lock_lost``: what a run does when its lease is lost, and ``LockLost`` raised inside its body."""

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from celery_redislock import LockLost, lock_acquired, lock_lost
from celery_redislock.running.interrupt import INTERRUPT_SIGNAL
from celery_redislock.running.run import run_of
from tests.unit.shop import Shop

KEY = "account:7"
ROUNDS = 100_000


def lose(lease: Any) -> None:
    """Declare a lease lost, as the watchdog's thread does."""
    in_thread(lambda: lease.lose("taken away"))


def in_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns, or raises, in another thread."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except BaseException as error:  # noqa: BLE001  handed to the test
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def losing(shop: Shop, **options: Any) -> tuple[Any, list[int]]:
    """Declare a task whose lease is lost while its body runs."""
    steps: list[int] = []

    def work(self: Any, account_id: int) -> str:
        lose(self.lease)
        for step in range(ROUNDS):
            steps.append(step)
        return "went on"

    return shop.unique(work, bind=True, lock_key=KEY, **options), steps


@pytest.fixture(autouse=True)
def _handler() -> Any:
    """Leave the signal's handler as it was."""
    before = signal.signal(INTERRUPT_SIGNAL, signal.SIG_DFL)
    yield
    signal.signal(INTERRUPT_SIGNAL, before)


def test_a_loss_is_logged_and_announced_and_the_body_goes_on(shop: Shop, caplog: Any) -> None:
    """``on_lock_lost="log"``, and the signal ``lock_lost``."""
    task, _ = losing(shop)
    heard = []

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((sender, facts["key"], facts["task_id"], facts["lease"].lost_because))

    lock_lost.connect(listen, sender=task)

    with shop.running(task):
        assert task(7) == "went on"

    assert heard == [(task, KEY, "t1", "taken away")]
    assert "shop.sync[t1] lost its lock on 'account:7' while running: taken away" in caplog.text


def test_a_callable_is_given_the_lost_lease(shop: Shop) -> None:
    """``on_lock_lost`` as a callable."""
    given = []
    task, _ = losing(shop, on_lock_lost=lambda lease: given.append((lease.key, lease.lost)))

    with shop.running(task):
        assert task(7) == "went on"

    assert given == [(KEY, True)]


def test_terminate_raises_inside_a_body_in_the_main_thread(shop: Shop) -> None:
    """With the lease's facts; the next holder's lock is not touched."""
    task, steps = losing(shop, on_lock_lost="terminate")

    with shop.running(task) as request, pytest.raises(LockLost, match="'account:7' was lost: taken away") as e:
        task(7)

    assert len(steps) < ROUNDS
    assert (e.value.key, e.value.fence) == (KEY, run_of(request).lease.fence)  # type: ignore[union-attr]


def test_terminate_interrupts_a_sleep(shop: Shop) -> None:
    """Out of sleeps and socket calls too."""

    def wait(self: Any, account_id: int) -> None:
        lease = self.lease
        threading.Timer(0.05, lambda: lease.lose("taken away")).start()
        assert not threading.Event().wait(60), "nobody sets it"

    task = shop.unique(wait, bind=True, lock_key=KEY, on_lock_lost="terminate")

    with shop.running(task), pytest.raises(LockLost):
        task(7)


def test_elsewhere_only_check_raises(shop: Shop) -> None:
    """A body in a thread or a greenlet goes on until it asks."""
    checked: list[LockLost] = []

    def work(self: Any, account_id: int) -> str:
        lose(self.lease)
        with pytest.raises(LockLost) as raised:
            self.lease.check()
        checked.append(raised.value)
        return "went on"

    task = shop.unique(work, bind=True, lock_key=KEY, on_lock_lost="terminate")

    def run() -> Any:
        with shop.running(task):
            return task(7)

    assert in_thread(run) == "went on"
    assert [error.reason for error in checked] == ["taken away"]


def test_terminate_begins_no_body_whose_lease_is_lost_already(shop: Shop) -> None:
    """Law 1: lost between lock and body, there was nothing yet to interrupt."""
    begun: list[int] = []

    def begin(account_id: int) -> None:
        begun.append(account_id)

    task = shop.unique(begin, lock_key=KEY, on_lock_lost="terminate")

    def lose_it(lease: Any, **_: Any) -> None:
        lose(lease)

    lock_acquired.connect(lose_it, sender=task)

    with shop.running(task), pytest.raises(LockLost, match="'account:7' was lost: taken away"):
        task(7)

    assert (begun, shop.held()) == ([], {})


def test_a_loss_the_body_notices_itself_is_raised_once_and_quietly(shop: Shop, caplog: Any) -> None:
    """``check()`` raises in the body's own thread, which needs no signal."""

    def work(self: Any, account_id: int) -> None:
        shop.store.force_release(KEY)
        self.lease._deadline = 0.0
        self.lease.check()

    task = shop.unique(work, bind=True, lock_key=KEY, on_lock_lost="terminate")

    with shop.running(task), pytest.raises(LockLost, match="it had expired, or was taken away"):
        task(7)

    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN, "a handler"])
def test_an_interrupt_that_comes_after_the_body_hits_nothing(shop: Shop, before: Any) -> None:
    """Neither the release nor the process; a handler that was there before is there again."""
    heard: list[int] = []

    def handler(number: int, _frame: Any) -> None:
        heard.append(number)

    signal.signal(INTERRUPT_SIGNAL, handler if before == "a handler" else before)
    interrupts: list[Any] = []

    def work(self: Any, account_id: int) -> str:
        interrupts.append(run_of(self.request).interrupt)  # type: ignore[union-attr]  # it has one
        return "done"

    task = shop.unique(work, bind=True, lock_key=KEY, on_lock_lost="terminate")

    with shop.running(task):
        assert task(7) == "done"
        in_thread(interrupts[0])
        signal.raise_signal(INTERRUPT_SIGNAL)

    assert heard == [INTERRUPT_SIGNAL] * (before == "a handler")
    assert shop.held() == {}


def test_the_signal_of_somebody_else_is_passed_on_while_the_lease_is_held(shop: Shop) -> None:
    """The handler looks at the lease first."""
    heard: list[int] = []

    def handler(number: int, _frame: Any) -> None:
        heard.append(number)

    signal.signal(INTERRUPT_SIGNAL, handler)

    def work(account_id: int) -> str:
        signal.raise_signal(INTERRUPT_SIGNAL)
        return "done"

    task = shop.unique(work, lock_key=KEY, on_lock_lost="terminate")

    with shop.running(task):
        assert task(7) == "done"

    assert heard == [INTERRUPT_SIGNAL]
    assert signal.getsignal(INTERRUPT_SIGNAL) is handler


def test_the_bodys_own_error_is_its_own(shop: Shop) -> None:
    """``terminate`` changes nothing for a lease that is held."""

    def work(account_id: int) -> None:
        message = "mine"
        raise KeyError(message)

    task = shop.unique(work, lock_key=KEY, on_lock_lost="terminate")

    with shop.running(task), pytest.raises(KeyError, match="mine"):
        task(7)

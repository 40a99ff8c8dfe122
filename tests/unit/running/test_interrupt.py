"""``on_lock_lost``: what a run does when its lease is lost, and ``LockLost`` raised inside its body."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from celery_redislock import LockLost, lock_acquired, lock_lost
from celery_redislock.running.interrupt import INTERRUPT_SIGNAL
from tests.unit.shop import KEY, Shop


def in_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns, or raises, in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def losing(shop: Shop, **options: Any) -> Any:
    """Declare a task whose lease is lost while its body runs, as the watchdog's thread notices."""

    def work(self: Any, account_id: int) -> str:
        lease = self.lease
        in_thread(lambda: lease.lose("taken away"))
        threading.Event().wait(0.01)
        return "went on"

    return shop.unique(work, bind=True, lock_key=KEY, **options)


@pytest.fixture(autouse=True)
def _signal_handler() -> Iterator[None]:
    """Leave the signal's handler as it was."""
    before = signal.signal(INTERRUPT_SIGNAL, signal.SIG_DFL)
    yield
    signal.signal(INTERRUPT_SIGNAL, before)


def test_a_loss_is_logged_and_announced_and_the_body_goes_on(shop: Shop, caplog: Any) -> None:
    """``on_lock_lost`` as ``"log"`` and as a callable, and the signal ``lock_lost``."""
    heard: list[Any] = []
    task = losing(shop, on_lock_lost=lambda lease: heard.append((lease.key, lease.lost)))

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((sender, facts["key"], facts["task_id"], facts["lease"].lost_because))

    lock_lost.connect(listen, sender=task)
    with shop.running(task):
        assert task(7) == "went on"
    assert heard == [(task, KEY, "t1", "taken away"), (KEY, True)]
    assert "shop.sync[t1] lost its lock on 'account:7' while running: taken away" in caplog.text


def test_a_coroutine_that_is_made_of_a_loss_is_warned_of(shop: Shop, caplog: Any) -> None:
    """Nobody awaits it."""

    async def notify() -> None:
        """Nobody gets here."""

    task = losing(shop, on_lock_lost=lambda _: notify())
    with shop.running(task):
        assert task(7) == "went on"
    assert "returned a coroutine, which nobody awaits" in caplog.text


@pytest.mark.parametrize("learns", ["interrupted", "by check()"])
def test_a_body_that_catches_bad_values_does_not_catch_the_loss(shop: Shop, learns: str) -> None:
    """What a ``Lock`` raises is redis-py's error as well, and so a ``ValueError``: what ends a run is not."""

    def parse(self: Any, account_id: int) -> str:
        lease = self.lease
        try:
            if learns == "by check()":
                lease.lose("taken away")
                lease.check()
            threading.Timer(0.05, lambda: lease.lose("taken away")).start()
            assert not threading.Event().wait(60), "nobody sets it"
        except (ValueError, redis.RedisError):
            return "went on"
        return "was not told"

    loss = "log" if learns == "by check()" else "terminate"
    task = shop.unique(parse, bind=True, lock_key=KEY, on_lock_lost=loss)
    with shop.running(task), pytest.raises(LockLost, match="'account:7' was lost: taken away") as raised:
        task(7)

    assert raised.value.key == KEY


def test_in_another_thread_only_check_raises(shop: Shop) -> None:
    """A body in a thread or a greenlet goes on until it asks."""
    task = losing(shop, on_lock_lost="terminate")

    def run() -> Any:
        with shop.running(task) as request:
            value = task(7)
            return value, request.redislock_run.lease

    value, lease = in_thread(run)
    assert value == "went on"
    with pytest.raises(LockLost, match="taken away"):
        lease.check()


def test_terminate_begins_no_body_whose_lease_is_lost_already(shop: Shop) -> None:
    """Law 1: lost between lock and body, there was nothing yet to interrupt."""
    begun: list[int] = []

    def begin(account_id: int) -> None:
        begun.append(account_id)

    task = shop.unique(begin, lock_key=KEY, on_lock_lost="terminate")

    def lose(lease: Any, **_: Any) -> None:
        in_thread(lambda: lease.lose("taken away"))

    lock_acquired.connect(lose, sender=task)
    with shop.running(task), pytest.raises(LockLost, match="'account:7' was lost: taken away"):
        task(7)
    assert (begun, shop.held()) == ([], {})


def test_a_loss_the_body_notices_itself_is_raised_once_and_quietly(shop: Shop, caplog: Any) -> None:
    """``check()`` raises in the body's own thread, which needs no signal."""

    def work(self: Any, account_id: int) -> None:
        shop.store.force_release(KEY)
        self.lease.deadline = 0.0
        self.lease.check()

    task = shop.unique(work, bind=True, lock_key=KEY, on_lock_lost="terminate")
    with shop.running(task), pytest.raises(LockLost, match="it had expired, or was taken away"):
        task(7)
    ours = [record for record in caplog.records if record.name == "celery_redislock"]
    assert [record for record in ours if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN, "a handler"])
@pytest.mark.parametrize("when", ["during the body", "after it"])
def test_a_signal_that_is_not_meant_for_the_body_hits_nothing(shop: Shop, before: Any, when: str) -> None:
    """Neither body, release nor process: the handler looks at the lease first, and passes on the signal."""
    heard: list[int] = []

    def handler(number: int, _frame: Any) -> None:
        heard.append(number)

    signal.signal(INTERRUPT_SIGNAL, handler if before == "a handler" else before)
    interrupts: list[Any] = []

    def work(self: Any, account_id: int) -> str:
        interrupts.append(self.request.redislock_run.interrupt)
        if when == "during the body":
            signal.raise_signal(INTERRUPT_SIGNAL)
        return "done"

    task = shop.unique(work, bind=True, lock_key=KEY, on_lock_lost="terminate")
    with shop.running(task):
        assert task(7) == "done"
        if when == "after it":
            in_thread(interrupts[0])
            signal.raise_signal(INTERRUPT_SIGNAL)

    assert heard == [INTERRUPT_SIGNAL] * (before == "a handler")
    assert shop.held() == {}

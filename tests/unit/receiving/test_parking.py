"""What becomes of a message that waits in line, without a server: its time, its end, and who hears of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery.exceptions import Ignore

from celery_redislock import LockBusy
from celery_redislock.publishing import promote
from celery_redislock.publishing.message import HEADER
from celery_redislock.testing import hold
from tests.unit.shop import KEY, Shop, body, carried

RUNNING_ONLY: dict[str, Any] = {"lock_key": KEY, "lock": "while_executing", "lock_ttl": 1000.0}


def let_pass(shop: Shop, monkeypatch: Any, seconds: float) -> None:
    """Let time pass on the lock server and for messages, and look at the lines that are due."""
    now = time.time() + seconds
    shop.store.let_pass(seconds)
    monkeypatch.setattr(time, "time", lambda: now)
    shop.store.sweep()


@contextmanager
def parked(shop: Shop, **options: Any) -> Iterator[Any]:
    """While the block runs a lock is held, and a message waits for it in line; its task is returned."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, **{**RUNNING_ONLY, **options})
    with hold(task, 7, task_id="first"):
        task.apply_async((7,), task_id="t1")
        shop.run()
        assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1"]
        yield task


class TestLongestWait:
    """``lock_wait_timeout``."""

    def test_a_message_fails_visibly_that_has_waited_for_as_long_as_it_may(
        self, shop: Shop, monkeypatch: Any
    ) -> None:
        """Its body has not run, and the lock stays with its holder."""
        with parked(shop, lock_wait_timeout=60.0) as task:
            let_pass(shop, monkeypatch, 59.0)
            assert shop.messages() == []

            let_pass(shop, monkeypatch, 1.5)
            error = shop.run()

            assert isinstance(error, LockBusy)
            assert (error.key, error.holder, error.waited) == (KEY, "first", pytest.approx(60.5, abs=0.3))
            assert shop.state("t1") == "FAILURE"
            assert [state for _, state in shop.states()] == ["running"]
            assert task.lock_for(7).waiting() == []

    def test_a_time_for_one_call_travels_with_it(self, shop: Shop, monkeypatch: Any) -> None:
        promote.install(shop.app, shop.store)
        task = shop.unique(body, **RUNNING_ONLY)
        with hold(task, 7):
            task.apply_async((7,), lock_wait_timeout=5)
            shop.run()

            let_pass(shop, monkeypatch, 5.5)

            assert isinstance(shop.run(), LockBusy)

    def test_its_time_begins_with_its_first_parking(self, shop: Shop, monkeypatch: Any) -> None:
        """Refused again when its turn was over before it came, it waits for what is left."""
        with parked(shop, lock_wait_timeout=60.0) as task:
            let_pass(shop, monkeypatch, 40.0)
            shop.store.drain()
            shop.run()
            assert len(task.lock_for(7).waiting()) == 1

            let_pass(shop, monkeypatch, 20.5)

            assert isinstance(shop.run(), LockBusy)

    def test_one_that_finds_the_lock_free_runs(self, shop: Shop, monkeypatch: Any) -> None:
        """The holder's run ended meanwhile: nothing is gained by its failure."""
        with parked(shop, lock_wait_timeout=60.0):
            let_pass(shop, monkeypatch, 61.0)
            message = shop.message()

        assert shop.run(shop.receive(message)) == 7

    def test_a_copy_of_a_message_that_runs_never_fails(self, shop: Shop, monkeypatch: Any) -> None:
        """Law 8: the failure would be stored for an id that is running."""
        promote.install(shop.app, shop.store)
        answers: list[Any] = []

        def sync(account_id: int) -> int:
            if not answers:
                answers.append(shop.run(shop.receive(message, redelivered=True)))
                let_pass(shop, monkeypatch, 6.0)
                answers.append(shop.run())
                let_pass(shop, monkeypatch, 12.0)
                answers.append(shop.messages())
            return account_id

        task = shop.unique(sync, acks_late=True, lock_wait_timeout=5, **RUNNING_ONLY)
        task.delay(7)
        message = shop.message()

        assert shop.run(shop.receive(message)) == 7
        assert isinstance(answers[0], Ignore)
        assert isinstance(answers[1], Ignore)
        assert answers[2] == [], "it goes for its time once, and then waits for its turn"

    def test_a_copy_of_a_message_that_has_failed_so_does_nothing(self, shop: Shop, monkeypatch: Any) -> None:
        """A broker, or a publisher that was killed, may send it once more: its errbacks have been called."""
        with parked(shop, lock_wait_timeout=60.0):
            let_pass(shop, monkeypatch, 61.0)
            message = shop.message()
            assert isinstance(shop.run(shop.receive(message)), LockBusy)

        assert isinstance(shop.run(shop.receive(message)), Ignore)
        assert carried(message).token in message.headers[HEADER]

    def test_its_claim_ends_with_it(self, shop: Shop, monkeypatch: Any) -> None:
        """It will not run, so the next call is no duplicate."""
        with parked(shop, lock="until_and_while_executing", lock_wait_timeout=60.0) as task:
            let_pass(shop, monkeypatch, 61.0)
            assert isinstance(shop.run(), LockBusy)

            assert not task.delay(7).is_duplicate

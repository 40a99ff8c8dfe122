"""The application's tests, from the cheapest kind to the most real one."""

import threading
from typing import Any

import pytest
import shop
from shop import app, charge, charge_now, press_sync, sync_account

from celery_redislock import DuplicateTask, lock_conflict
from celery_redislock.locks import LockStore
from celery_redislock.testing import hold


class TestBodies:
    """Direct calls and ``apply()`` run the body; no lock, no server, nothing to set up."""

    def test_a_body_can_be_called(self) -> None:
        assert sync_account(7) == 107

    def test_inside_it_the_lease_is_there_but_holds_nothing(self) -> None:
        shop.balances[7] = 10
        assert charge(7, 4) == 6
        assert not charge.lease.held


class TestWithLocksInMemory:
    """Eager mode with locks: the ``locks`` fixture of conftest.py."""

    def test_a_first_press_starts_it(self, locks: LockStore) -> None:
        assert press_sync(7) == "started"
        assert shop.balances == {7: 107}

    @pytest.mark.parametrize("running", [True, False])
    def test_a_press_while_another_one_is_queued_or_runs_does_not(
        self, locks: LockStore, running: bool
    ) -> None:
        with hold(sync_account, 7, running=running):
            assert press_sync(7) == "is on its way already"
            assert press_sync(8) == "started"

        assert shop.balances == {8: 108}

    def test_who_holds_it_can_be_asked(self, locks: LockStore) -> None:
        with hold(sync_account, 7, task_id="the other click"):
            holder = sync_account.lock_for(7).holder()

            assert (holder.owner, holder.state) == ("the other click", "running")

    def test_the_lock_is_free_afterwards(self, locks: LockStore) -> None:
        sync_account.delay(7)

        assert locks.names() == []

    def test_the_lock_is_free_after_a_failure_too(
        self, locks: LockStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: int) -> int:
            raise OSError("no line to the bank")

        monkeypatch.setattr(shop, "fetch", fail)
        result = sync_account.delay(7)

        assert isinstance(result.result, OSError)
        assert locks.names() == []

    def test_one_that_wants_to_be_told_is_told(self, locks: LockStore) -> None:
        with hold(sync_account, 7), pytest.raises(DuplicateTask, match="duplicate of task somebody-else"):
            sync_account.apply_async((7,), on_conflict="raise")

    def test_an_account_in_use_is_not_charged(self, locks: LockStore) -> None:
        """Waiting means trying again later, and in eager mode there is no later."""
        shop.balances[7] = 10
        with hold(charge, 7, 1, task_id="a refund"):
            assert charge_now(7, 4) == "account in use by a refund"
        assert charge_now(7, 4) == "balance 6"

    def test_duplicates_are_counted(self, locks: LockStore) -> None:
        seen = []

        def count(sender: Any, holder: Any, strategy: str, **_: object) -> None:
            seen.append((sender.name, holder.owner, strategy))

        lock_conflict.connect(count)
        try:
            with hold(sync_account, 7):
                press_sync(7)
        finally:
            lock_conflict.disconnect(count)

        assert seen == [("shop.sync_account", "somebody-else", "skip")]


class TestWithLockingOff:
    """The switch for an incident, and for tests that locks would disturb."""

    def test_by_the_fixture(self, locks: LockStore, redislock_off: None) -> None:
        with hold(sync_account, 7):
            assert press_sync(7) == "started"

    def test_by_the_environment(self, locks: LockStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REDISLOCK_ENABLED", "0")
        with hold(sync_account, 7):
            assert press_sync(7) == "started"

    def test_by_the_setting(self, locks: LockStore) -> None:
        app.conf.redislock_enabled = False
        try:
            with hold(sync_account, 7):
                assert press_sync(7) == "started"
        finally:
            app.conf.redislock_enabled = True


class TestWithARealWorker:
    """The ``worker`` fixture: messages, results and locks on an embedded server."""

    def test_two_clicks_while_it_runs_are_one_run(
        self, worker: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls, may_end = [], threading.Event()

        def slow(account_id: int) -> int:
            calls.append(account_id)
            assert may_end.wait(30)
            return 0

        monkeypatch.setattr(shop, "fetch", slow)
        first, second = sync_account.delay(7), sync_account.delay(7)
        may_end.set()

        assert [first.is_duplicate, second.is_duplicate] == [False, True]
        assert second.id == first.id
        assert [first.get(timeout=30), second.get(timeout=30)] == [0, 0]
        assert calls == [7]

    def test_whoever_has_seen_the_result_finds_the_lock_free(self, worker: None) -> None:
        for _ in range(5):
            result = sync_account.delay(8)
            assert not result.is_duplicate
            assert result.get(timeout=30) == 108

    def test_a_duplicate_nobody_noticed_before_the_worker_is_told_there(self, worker: None) -> None:
        """``send_task`` knows no lock; the worker does."""
        with hold(sync_account, 9, task_id="the other click"):
            result = app.send_task("shop.sync_account", (9,))
            with pytest.raises(Exception, match="duplicate of the other click"):
                result.get(timeout=30)

        assert result.state == "REVOKED"
        assert 9 not in shop.balances

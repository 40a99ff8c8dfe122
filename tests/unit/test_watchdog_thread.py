"""The watchdog's limits and debts, and its thread over its whole life."""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_redislock.locks import LockStore, MemoryStore, Watchdog, debts
from celery_redislock.locks import watchdog as watchdog_module
from celery_redislock.locks.lease import boottime
from celery_redislock.locks.debts import NotYet
from celery_redislock.locks.store import Term
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.receiving.request import LockRequest
from celery_redislock.support import Support
from tests.clocks import ManualClock
from tests.facts import wait_until
from tests.scripted import Driven, ScriptedRenewer, lease_on, unavailable


@pytest.fixture
def renewer() -> ScriptedRenewer:
    return ScriptedRenewer(ManualClock())


@pytest.fixture
def watchdog(renewer: ScriptedRenewer) -> Driven:
    return Driven(renewer)


class TestSettle:
    def test_it_waits_until_everything_is_given_back(self) -> None:
        watchdog, may_go_on = Watchdog(MemoryStore()), threading.Event()
        watchdog.release_later(lambda: may_go_on.wait(10.0), within=60.0, what="a hold")

        assert not watchdog.settle(0.0)
        may_go_on.set()
        assert watchdog.settle(10.0)

    def test_it_waits_no_longer_than_it_is_told(self, watchdog: Driven) -> None:
        watchdog.release_later(lambda: None, within=60.0, what="a hold")

        assert not watchdog.settle(0.01)
        assert watchdog.owes == 1

    def test_what_no_server_can_answer_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Law 9, bounded in time: a body that will not die for seconds would hold up every exit."""
        monkeypatch.setattr(debts, "RETRY_DELAY", 0.01)
        watchdog, is_away = Watchdog(MemoryStore()), threading.Event()

        def not_yet() -> None:
            message = "its body has not ended"
            raise NotYet(message)

        def away_once() -> None:
            if not is_away.is_set():
                is_away.set()
                raise unavailable()

        watchdog.release_later(not_yet, within=60.0, what="the hold of a dying child")
        watchdog.release_later(away_once, within=60.0, what="another")

        assert watchdog.settle(10.0)
        assert is_away.is_set()
        assert watchdog.owes == 1

    def test_nothing_owed_is_no_reason_to_wait(self) -> None:
        assert Watchdog(MemoryStore()).settle(0.0)


class TestMaxHold:
    def test_a_lease_is_renewed_no_longer_and_counts_as_lost(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        told: list[float] = []
        lease = lease_on(renewer, ttl=30.0, on_lost=lambda _: told.append(renewer.clock()))
        watchdog.watch(lease, max_hold=65.0)
        watchdog.run_until(1200.0)

        assert told == [1065.0]
        assert lease.lost_because is not None
        assert "lock_max_hold (65 s)" in lease.lost_because

    def test_it_is_kept_where_it_is_shorter_than_a_third_of_the_ttl(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        told: list[float] = []
        lease = lease_on(renewer, ttl=3600.0, on_lost=lambda _: told.append(renewer.clock()))
        watchdog.watch(lease, max_hold=5.0)
        watchdog.run_until(1100.0)

        assert told == [1005.0]

    def test_half_of_it_is_warned_of_once(
        self, renewer: ScriptedRenewer, watchdog: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        watchdog.watch(lease_on(renewer, ttl=30.0), max_hold=100.0)
        with caplog.at_level(logging.WARNING):
            watchdog.run_until(1049.0)
            assert caplog.records == []
            watchdog.run_until(1099.0)

        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "half of lock_max_hold (100 s; " in caplog.text

    def test_half_of_it_is_told_by_the_run_and_not_by_the_main_process_beside_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Both renew the same hold; two lines would look like two runs."""
        renewer = ScriptedRenewer(ManualClock(boottime()))
        watchdog, request = Driven(renewer), InHand()
        beside = Support(cast("LockStore", renewer), Term("n", "job/n", 30.0), cast("LockRequest", request))
        watchdog.watch(beside, max_hold=100.0)
        with caplog.at_level(logging.WARNING):
            watchdog.run_until(renewer.clock() + 90.0)

        assert watchdog.renewals > 5
        assert caplog.records == []

    def test_an_outage_longer_than_a_lease_ends_no_renewing_by_the_main_process(self) -> None:
        """Law 1: the child may start after it, and then keep the interpreter for minutes."""
        renewer = ScriptedRenewer(ManualClock(boottime()))
        watchdog, request, began = Driven(renewer), InHand(), renewer.clock()
        beside = Support(cast("LockStore", renewer), Term("n", "job/n", 30.0), cast("LockRequest", request))
        watchdog.watch(beside, max_hold=100.0)
        renewer.then(*[unavailable()] * 40)

        watchdog.run_until(began + 60.0)
        away = len(renewer.calls)
        watchdog.run_until(began + 90.0)

        assert 20 < away <= 40
        assert watchdog.renewals
        watchdog.run_until(began + 200.0)
        assert not watchdog.watches(beside)

    def test_a_claim_that_is_gone_is_asked_about_without_haste(self) -> None:
        """It goes on being watched; a third of a millisecond would be no pause at all."""
        renewer = ScriptedRenewer(ManualClock(boottime()))
        watchdog, request, began = Driven(renewer), InHand(), renewer.clock()
        beside = Support(cast("LockStore", renewer), Term("n", "job/n", 0.001), cast("LockRequest", request))
        watchdog.watch(beside)
        renewer.then(*[[None]] * 100)

        watchdog.run_until(began + 1.0)

        assert watchdog.watches(beside)
        assert 10 < len(renewer.calls) <= 21


class InHand:
    """As much of a worker's request as is asked for here."""

    _result_is_in = False


class TestDebts:
    def test_a_release_stays_behind_the_request_that_it_takes_back(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        """Law 2: what was given up may be on its way still, and would take the hold after its release."""
        moments: list[float | None] = []
        given_up = renewer.clock.now
        watchdog.release_later(
            lambda: moments.append(renewer.behind_of),
            within=60.0,
            what="a hold",
            token="mine",  # noqa: S106  not a password
        )

        renewer.clock.advance(5.0)
        assert watchdog.release_now("mine")
        watchdog.run_until(given_up + 10.0)

        assert moments == [given_up, given_up]
        assert renewer.behind_of is None

    def test_a_release_is_tried_until_the_server_answers(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        tries: list[float] = []

        def release() -> None:
            tries.append(renewer.clock())
            if len(tries) < 4:
                raise unavailable()

        watchdog.release_later(release, within=30.0, what="a lock")
        watchdog.run_until(1001.5)
        was_away = watchdog.is_server_away
        watchdog.run_until(1060.0)

        assert tries == [1000.0, 1001.0, 1002.0, 1003.0]
        assert watchdog.owes == 0
        assert (was_away, watchdog.is_server_away) == (True, False)

    def test_it_is_given_up_when_the_hold_has_expired(
        self, watchdog: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            watchdog.release_later(_raising(unavailable()), within=5.0, what="a lock")
            watchdog.run_until(1060.0)

        assert watchdog.owes == 0
        assert "gave up giving back a lock" in caplog.text
        assert not watchdog.is_server_away

    def test_an_unexpected_error_ends_that_debt_only(
        self, watchdog: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        paid: list[str] = []
        with caplog.at_level(logging.ERROR):
            watchdog.release_later(_raising(ValueError("unforeseen")), within=30.0, what="one")
            watchdog.release_later(lambda: paid.append("two"), within=30.0, what="two")
            watchdog.run_until(1000.0)

        assert paid == ["two"]
        assert watchdog.owes == 0

    def test_many_debts_to_a_dead_server_do_not_hold_up_renewals(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        """Each attempt may take two socket timeouts: one per round, not all of them."""

        def release() -> None:
            renewer.clock.advance(2.0)
            raise unavailable()

        lease = lease_on(renewer, ttl=30.0)
        watchdog.watch(lease)
        for _ in range(100):
            watchdog.release_later(release, within=60.0, what="a lock")
        watchdog.run_until(1030.0)

        assert watchdog.renewals >= 2
        assert lease.held

    def test_one_that_cannot_be_given_back_yet_does_not_hold_up_the_others(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        """A body that swallows SIGTERM keeps its own lock, and nobody else's."""
        paid: list[tuple[str, float]] = []

        def stubborn() -> None:
            if renewer.clock() < 1004.0:
                message = "its body has not ended"
                raise NotYet(message)
            paid.append(("stubborn", renewer.clock()))

        watchdog.release_later(stubborn, within=30.0, what="stubborn")
        for number in range(3):
            watchdog.release_later(
                lambda n=number: paid.append((f"n{n}", renewer.clock())),  # type: ignore[misc]
                within=30.0,
                what="another",
            )
        watchdog.run_until(1060.0)

        assert paid == [("n0", 1000.0), ("n1", 1000.0), ("n2", 1000.0), ("stubborn", 1004.0)]

    def test_one_that_says_unavailable_for_ever_delays_the_others_by_a_second_and_no_more(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        paid: list[float] = []
        watchdog.release_later(_raising(unavailable()), within=30.0, what="stubborn")
        for _ in range(3):
            watchdog.release_later(lambda: paid.append(renewer.clock()), within=30.0, what="another")
        watchdog.run_until(1060.0)

        assert paid == [1001.0, 1001.0, 1001.0]

    def test_a_server_that_is_away_gets_one_attempt_a_second_and_then_all_at_once(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        tries: list[float] = []

        def release() -> None:
            tries.append(renewer.clock())
            if renewer.clock() < 1010.0:
                raise unavailable()

        for _ in range(50):
            watchdog.release_later(release, within=600.0, what="a lock")
        watchdog.run_until(1060.0)

        assert tries[:10] == [1000.0 + second for second in range(10)]
        assert tries[10:] == [1010.0] * 50

    def test_what_becomes_due_while_the_server_is_away_does_not_hurry_it(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        tries: list[float] = []

        def release() -> None:
            tries.append(renewer.clock())
            raise unavailable()

        watchdog.release_later(release, within=2.0, what="a lock")
        watchdog.run_until(1000.5)
        watchdog.release_later(release, within=2.0, what="another")
        watchdog.release_later(_raising(NotYet("its body has not ended")), within=2.0, what="a third")
        watchdog.run_until(1010.0)

        assert tries == [1000.0, 1001.0, 1002.0]

    def test_what_has_expired_is_dropped_without_an_attempt(
        self, renewer: ScriptedRenewer, watchdog: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        tries: list[str] = []

        def release() -> None:
            tries.append("long")
            renewer.clock.advance(6.0)
            raise unavailable()

        watchdog.release_later(release, within=60.0, what="a long lock")
        for _ in range(1000):
            watchdog.release_later(lambda: tries.append("short"), within=5.0, what="a short lock")
        with caplog.at_level(logging.WARNING):
            watchdog.run_until(1008.0)

        assert "short" not in tries
        assert watchdog.owes == 1
        assert [record.getMessage() for record in caplog.records] == [
            "gave up giving back a short lock and 999 others: they have expired by now"
        ]

    def test_no_more_than_a_bound_is_owed_and_that_is_said_once(
        self,
        watchdog: Driven,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A worker that publishes for hours without its lock server must not fill its memory."""
        monkeypatch.setattr(debts, "MOST", 3)
        paid: list[int] = []
        with caplog.at_level(logging.WARNING):
            for number in range(10):
                watchdog.release_later(lambda n=number: paid.append(n), within=30.0, what="a lock")  # type: ignore[misc]
            assert watchdog.owes == 3
            watchdog.run_until(1001.0)

        assert paid == [0, 1, 2]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "expire" in caplog.text

        caplog.clear()
        for _ in range(5):
            watchdog.release_later(_raising(unavailable()), within=30.0, what="a lock")
        assert len(caplog.records) == 1

    def test_what_has_expired_makes_room(
        self, renewer: ScriptedRenewer, watchdog: Driven, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(debts, "MOST", 3)
        paid: list[int] = []
        for _ in range(3):
            watchdog.release_later(_raising(unavailable()), within=5.0, what="a lock")
        renewer.clock.advance(5.0)
        watchdog.release_later(lambda: paid.append(1), within=5.0, what="a lock")

        assert watchdog.owes == 1
        watchdog.run_until(1010.0)
        assert paid == [1]


def _raising(error: Exception) -> Callable[[], Any]:
    def release() -> None:
        raise error

    return release


class TestThread:
    """The thread itself; facts are awaited, nothing is slept for."""

    def test_it_is_not_woken_for_every_short_lock(self, renewer: ScriptedRenewer) -> None:
        """Asleep until the first lease was due, it need not know of those that come and go before."""
        watchdog = Watchdog(cast("LockStore", renewer), clock=renewer.clock)
        first = lease_on(renewer)
        watchdog.watch(first)
        watchdog.forget(first)
        assert wait_until(lambda: watchdog._sleeps_until > 0, 10)
        asleep_until = watchdog._sleeps_until
        woken: list[int] = []

        def spy(n: int = 1) -> None:
            woken.append(n)

        watchdog._wake.notify = spy  # type: ignore[method-assign]  # to see whether it is called

        for number in range(5):
            renewer.clock.advance(0.1)
            lease = lease_on(renewer, name=f"n{number}")
            watchdog.watch(lease)
            watchdog.forget(lease)

        assert woken == []
        assert watchdog._sleeps_until == asleep_until

    def test_it_starts_with_the_first_lease_renews_and_ends_when_idle(
        self, renewer: ScriptedRenewer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watchdog_module, "LINGER", 0.01)
        watchdog = Watchdog(cast("LockStore", renewer), clock=renewer.clock)
        threads = [watchdog._thread]
        lease = lease_on(renewer)
        renewer.clock.advance(30.0)
        watchdog.watch(lease)

        assert wait_until(lambda: watchdog.renewals == 1, 10)
        threads.append(watchdog._thread)
        before, thread = threads
        assert before is None
        assert thread is not None
        assert thread.daemon
        watchdog.forget(lease)
        renewer.clock.advance(30.0)
        assert wait_until(lambda: not thread.is_alive(), 10)

        again = lease_on(renewer, name="again")
        renewer.clock.advance(30.0)
        watchdog.watch(again)
        assert wait_until(lambda: watchdog.renewals == 2, 10)
        watchdog.forget(again)

    def test_an_error_nobody_foresaw_does_not_end_it(
        self, renewer: ScriptedRenewer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        watchdog = Watchdog(cast("LockStore", renewer), clock=renewer.clock)
        real, failed = watchdog._do_what_is_due, threading.Event()

        def fail_once() -> None:
            if not failed.is_set():
                failed.set()
                message = "unforeseen"
                raise RuntimeError(message)
            real()

        monkeypatch.setattr(watchdog, "_do_what_is_due", fail_once)
        paid = threading.Event()
        with caplog.at_level(logging.ERROR):
            watchdog.release_later(paid.set, within=30.0, what="a lock")
            assert paid.wait(10)

        assert failed.is_set()
        assert "unforeseen" in caplog.text

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_a_forked_child_watches_nothing_of_its_parents_and_renews_its_own(
        self, renewer: ScriptedRenewer
    ) -> None:
        """No thread survives a fork, and a lock its thread held would stay locked for ever."""
        watchdog = Watchdog(cast("LockStore", renewer), clock=renewer.clock)
        parents, childs = lease_on(renewer, name="parent"), lease_on(renewer, name="child")
        watchdog.watch(parents)
        watchdog.release_later(_raising(unavailable()), within=30.0, what="a lock")
        reader, writer = os.pipe()

        with watchdog._wake:
            pid = os.fork()
        if not pid:
            try:
                inherited = watchdog.watches(parents) or watchdog.owes > 0
                renewer.clock.advance(30.0)
                watchdog.watch(childs)
                renewed = wait_until(lambda: watchdog.renewals == 1, 10)
                names = [term.name for call in renewer.calls for term in call]
                os.write(writer, repr((inherited, renewed, names)).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            told = answer.read()

        assert told == "(False, True, ['child'])"
        assert watchdog.watches(parents)
        watchdog.forget(parents)

    def test_a_store_has_one_watchdog(self) -> None:
        one, other = MemoryStore(), MemoryStore()

        assert watchdog_of(one) is watchdog_of(one)
        assert watchdog_of(one) is not watchdog_of(other)

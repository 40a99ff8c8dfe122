"""What the watchdog renews, when, and what it makes of the answers; driven piece by piece."""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from celery_redislock.locks import Lease
from celery_redislock.locks.schedule import SLACK
from celery_redislock.locks.store import Grant, Term
from tests.clocks import ManualClock
from tests.scripted import Driven, ScriptedRenewer, lease_on, unavailable


@pytest.fixture
def renewer(clock: ManualClock) -> ScriptedRenewer:
    return ScriptedRenewer(clock)


@pytest.fixture
def watchdog(renewer: ScriptedRenewer) -> Driven:
    return Driven(renewer)


class Unhandled(Lease):
    """A lease of which some part raises."""

    failing: Mapping[str, BaseException] = MappingProxyType({})

    @property
    def held(self) -> bool:
        self._fail("held")
        return super().held

    def learn(self, *args: Any, **kwargs: Any) -> None:
        self._fail("learn")
        super().learn(*args, **kwargs)

    def lose(self, reason: str) -> None:
        super().lose(reason)
        self._fail("lose")

    def _fail(self, step: str) -> None:
        if step in self.failing:
            raise self.failing[step]


def _now(renewer: ScriptedRenewer) -> Grant:
    return Grant(1, False, renewer.clock(), renewer.clock())


def _names(renewer: ScriptedRenewer) -> list[list[str]]:
    return [[term.name for term in call] for call in renewer.calls]


class TestRenewing:
    def test_a_lease_is_renewed_every_third_of_its_ttl(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        lease = lease_on(renewer, ttl=30.0)
        watchdog.watch(lease)
        watchdog.run_until(1095.0)

        assert len(renewer.calls) == watchdog.renewals == 9
        assert lease.held

    def test_what_is_due_within_a_tenth_of_its_ttl_joins_the_call(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        for number in range(4):
            watchdog.watch(lease_on(renewer, ttl=30.0, name=f"n{number}"))
            renewer.clock.advance(1.0)
        watchdog.watch(lease_on(renewer, ttl=30.0, name="later"))
        watchdog.run_until(1010.0)

        assert _names(renewer) == [["n0", "n1", "n2", "n3"]]

    def test_a_lease_granted_slowly_is_renewed_sooner(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        """Half of what is left, where that is less than a third of the ttl."""
        lease = lease_on(renewer, ttl=30.0)
        renewer.clock.advance(25.0)
        watchdog.watch(lease)

        assert watchdog._next_due() < lease.deadline - 2.0

    def test_a_lease_found_gone_is_lost_and_asked_about_no_more(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        told: list[Lease] = []
        gone, stays = lease_on(renewer, name="gone", on_lost=told.append), lease_on(renewer, name="stays")
        watchdog.watch(gone)
        watchdog.watch(stays)
        renewer.then([None, True])
        watchdog.run_until(1025.0)

        assert told == [gone]
        assert not watchdog.watches(gone)
        assert _names(renewer) == [["gone", "stays"], ["stays"]]

    def test_a_late_watchdog_asks_before_it_declares_a_loss(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        """The process was paused for an hour; the main process, say, renewed meanwhile."""
        lease = lease_on(renewer, ttl=30.0)
        watchdog.watch(lease)
        renewer.clock.advance(3600.0)
        watchdog._do_what_is_due()

        assert lease.held
        assert renewer.withins == [None]

    def test_a_late_watchdog_without_an_answer_declares_the_loss(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        lease = lease_on(renewer, ttl=30.0)
        watchdog.watch(lease)
        renewer.clock.advance(31.0)
        renewer.then(unavailable())
        watchdog._do_what_is_due()

        assert lease.lost_because is not None
        assert "no answer" in lease.lost_because

    def test_an_unanswered_renewal_is_repeated_until_the_deadline_and_the_loss_told_at_it(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        """Never later: at its ttl the server may give the lock away."""
        told: list[float] = []
        lease = lease_on(renewer, ttl=30.0, on_lost=lambda _: told.append(renewer.clock()))
        watchdog.watch(lease)
        renewer.then(*[unavailable()] * 100)
        watchdog.run_until(1060.0)

        assert told == [lease.deadline]
        assert len(renewer.calls) == 14
        assert min(within for within in renewer.withins if within is not None) < 1.5
        assert len(renewer.withins) == len([within for within in renewer.withins if within is not None])

    def test_an_answer_at_the_last_moment_saves_the_lease(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        lease = lease_on(renewer, ttl=30.0)
        watchdog.watch(lease)
        renewer.then(*[unavailable()] * 13)
        watchdog.run_until(1060.0)

        assert lease.held
        assert lease.expires_in > 19.0

    def test_an_unexpected_error_counts_as_no_answer(
        self, renewer: ScriptedRenewer, watchdog: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Else the leases of the batch would silently never be asked about again."""
        lease = lease_on(renewer, ttl=30.0)
        watchdog.watch(lease)
        renewer.then(ValueError("unforeseen"))
        with caplog.at_level(logging.ERROR):
            watchdog.run_until(1025.0)

        assert "unforeseen" in caplog.text
        assert lease.held
        assert watchdog.renewals == 2

    def test_on_lost_that_raises_costs_the_others_nothing(
        self, renewer: ScriptedRenewer, watchdog: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_lease: Lease) -> None:
            message = "the callback's own"
            raise ValueError(message)

        watchdog.watch(lease_on(renewer, name="gone", on_lost=fail))
        stays = lease_on(renewer, name="stays")
        watchdog.watch(stays)
        renewer.then([None, True])
        with caplog.at_level(logging.ERROR):
            watchdog.run_until(1065.0)

        assert stays.held
        assert watchdog.renewals == 6

    @pytest.mark.parametrize("step", ["held", "learn", "lose"])
    @pytest.mark.parametrize("error", [ValueError, SystemExit])
    def test_a_lease_that_cannot_be_handled_costs_the_others_nothing(
        self,
        renewer: ScriptedRenewer,
        watchdog: Driven,
        caplog: pytest.LogCaptureFixture,
        step: str,
        error: type[BaseException],
    ) -> None:
        """The others of its batch were taken out with it: an error on the way loses all that come after."""
        bad = Unhandled(renewer, Term("bad", "job/bad", 30.0), _now(renewer), clock=renewer.clock)
        stays = lease_on(renewer, name="stays")
        watchdog.watch(bad)
        watchdog.watch(stays)
        bad.failing = {step: error("unforeseen")}
        renewer.then([None, True] if step == "lose" else [True, True])
        with caplog.at_level(logging.ERROR):
            renewer.clock.advance(10.0)
            watchdog._do_what_is_due()
        bad.failing = {}
        caught = caplog.text
        watchdog.run_until(1095.0)

        assert "unforeseen" in caught
        assert "'bad'" in caught
        assert stays.held
        assert [call.count("stays") for call in _names(renewer)].count(1) == 9
        assert _names(renewer)[1:2] == ([["stays"]] if step == "lose" else [["bad"]])
        assert watchdog.watches(bad) is (step != "lose")

    def test_a_lease_that_can_never_be_handled_is_no_busy_loop(
        self, renewer: ScriptedRenewer, watchdog: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad = Unhandled(renewer, Term("bad", "job/bad", 30.0), _now(renewer), clock=renewer.clock)
        watchdog.watch(bad, max_hold=40.0)
        bad.failing = {"held": ValueError("unforeseen")}
        with caplog.at_level(logging.ERROR):
            watchdog.run_until(1100.0)

        assert 10 < len(caplog.records) < 70

    def test_a_callback_that_exits_does_not_end_the_thread(
        self, renewer: ScriptedRenewer, watchdog: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        """``on_lost=lambda _: sys.exit(1)``: in a thread that ends nothing but the thread, without a word."""

        def leave(_lease: Lease) -> None:
            raise SystemExit(1)

        gone, stays = lease_on(renewer, name="gone", on_lost=leave), lease_on(renewer, name="stays")
        watchdog.watch(gone)
        watchdog.watch(stays)
        renewer.then([None, True])
        with caplog.at_level(logging.ERROR):
            watchdog.run_until(1025.0)

        assert gone.lost
        assert not watchdog.watches(gone)
        assert _names(renewer) == [["gone", "stays"], ["stays"]]
        assert "SystemExit" in caplog.text

    def test_an_answer_that_is_too_short_counts_as_none_for_the_rest(
        self, renewer: ScriptedRenewer, watchdog: Driven, caplog: pytest.LogCaptureFixture
    ) -> None:
        first, second = lease_on(renewer, name="first"), lease_on(renewer, name="second")
        watchdog.watch(first)
        watchdog.watch(second)
        renewer.then([True])
        with caplog.at_level(logging.ERROR):
            watchdog.run_until(1015.0)

        assert _names(renewer) == [["first", "second"], ["second"]]

    def test_a_lease_given_another_term_meanwhile_counts_by_the_term_that_was_sent(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        lease = lease_on(renewer, ttl=3.0)
        watchdog.watch(lease)
        renewer.then(lambda: setattr(lease, "term", type(lease.term)("n", lease.token, 3600.0)))
        watchdog.run_until(1001.0)

        assert lease.expires_in <= 3.0


class TestForgetting:
    def test_a_forgotten_lease_is_not_renewed(self, renewer: ScriptedRenewer, watchdog: Driven) -> None:
        lease = lease_on(renewer)
        watchdog.watch(lease)
        watchdog.forget(lease)
        watchdog.run_until(1060.0)

        assert renewer.calls == []
        assert not watchdog.watches(lease)

    def test_a_lease_that_is_owed_is_not_renewed(self, renewer: ScriptedRenewer, watchdog: Driven) -> None:
        """Law 4: one whose start was interrupted would be kept for ever, once its debt has expired."""
        lease = lease_on(renewer, ttl=30.0)
        watchdog.watch(lease)

        watchdog.release_later(lambda: None, within=30.0, what="it", token=lease.token)

        assert not watchdog.watches(lease)

    def test_watching_twice_renews_once(self, renewer: ScriptedRenewer, watchdog: Driven) -> None:
        lease = lease_on(renewer)
        watchdog.watch(lease)
        watchdog.watch(lease)
        watchdog.run_until(1010.0)

        assert len(renewer.calls) == 1

    def test_forgetting_twice_or_the_unknown_is_harmless(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        lease = lease_on(renewer)
        watchdog.forget(lease)
        watchdog.watch(lease)
        watchdog.forget(lease)
        watchdog.forget(lease)

        assert not watchdog.watches(lease)

    def test_a_lease_forgotten_during_its_renewal_stays_forgotten(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        lease = lease_on(renewer)
        watchdog.watch(lease)
        renewer.then(lambda: watchdog.forget(lease))
        watchdog.run_until(1060.0)

        assert len(renewer.calls) == 1

    def test_a_loss_the_holder_learnt_by_itself_leaves_nothing_behind(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        lease = lease_on(renewer)
        watchdog.watch(lease)
        lease.lose("the holder asked first")
        watchdog.run_until(1010.0)

        assert not watchdog.watches(lease)
        assert renewer.calls == []

    def test_leases_released_long_before_they_are_due_do_not_pile_up(
        self, renewer: ScriptedRenewer, watchdog: Driven
    ) -> None:
        for number in range(10 * SLACK):
            lease = lease_on(renewer, name=f"n{number}", ttl=3600.0)
            watchdog.watch(lease)
            watchdog.forget(lease)

        assert len(watchdog._schedule._heap) <= SLACK + 1

"""The watchdog: what it renews, and when; what it owes; and its thread over its whole life."""

import logging
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_redislock.exceptions import LockKeyError
from celery_redislock.locks import Lease, LockStore, Watchdog
from celery_redislock.locks import watchdog as watchdog_module
from celery_redislock.store.store import Grant, Renewal, Term
from tests.facts import wait_until
from tests.scripted import Driven, ScriptedRenewer, lease_on, unavailable


def _raising(error: Exception) -> Callable[..., Any]:
    def release(*_: object) -> None:
        raise error

    return release


class TestRenewing:
    def test_a_lease_is_renewed_every_third_of_its_ttl(self, watchdog: Driven) -> None:
        """Also one that is watched twice, and after an error that passes."""
        lease = watchdog.watched(ttl=30.0)
        watchdog.watch(lease)
        watchdog.run_until(1095.0)
        assert len(watchdog.renewer.calls) == watchdog.renewals == 9
        watchdog.renewer.then(MemoryError())
        watchdog.run_until(1195.0)
        assert lease.held

    def test_what_is_due_within_a_tenth_of_its_ttl_joins_the_call(self, watchdog: Driven) -> None:
        for number in range(4):
            watchdog.watched(ttl=30.0, name=f"n{number}")
            watchdog.manual.advance(1.0)
        watchdog.watched(ttl=30.0, name="later")
        watchdog.run_until(1010.0)
        assert watchdog.asked() == [["n0", "n1", "n2", "n3"]]

    def test_a_lease_granted_slowly_is_renewed_sooner(self, watchdog: Driven) -> None:
        """Half of what is left, where that is less than a third of the ttl."""
        lease = lease_on(watchdog.renewer, ttl=30.0)
        watchdog.manual.advance(25.0)
        watchdog.watch(lease)
        assert watchdog._next_due() < lease.deadline - 2.0

    @pytest.mark.parametrize("on_lost", [None, _raising(ValueError("the callback's own"))])
    def test_a_lease_found_gone_is_lost_and_asked_about_no_more(
        self, watchdog: Driven, on_lost: Callable[..., Any] | None
    ) -> None:
        """Its loss is told once; an ``on_lost`` that raises costs the others nothing."""
        told: list[Lease] = []

        def lose(lease: Lease) -> None:
            told.append(lease)
            if on_lost is not None:
                on_lost()

        gone = watchdog.watched(name="gone", on_lost=lose)
        stays = watchdog.watched(name="stays")
        watchdog.renewer.then([None, True])
        watchdog.run_until(1065.0)
        assert told == [gone]
        assert gone.token not in watchdog._watched
        assert watchdog.asked() == [["gone", "stays"], *[["stays"]] * 5]
        assert stays.held

    @pytest.mark.parametrize(("late", "answers"), [(3600.0, True), (31.0, False)])
    def test_a_late_watchdog_asks_first(self, watchdog: Driven, late: float, *, answers: bool) -> None:
        """The process was paused; the main process, say, renewed meanwhile."""
        lease = watchdog.watched(ttl=30.0)
        watchdog.manual.advance(late)
        watchdog.renewer.then([True] if answers else unavailable())
        watchdog._do_what_is_due()
        assert lease.held is answers
        assert watchdog.renewer.withins == [None]
        assert answers or "no answer" in (lease.lost_because or "")

    def test_an_unanswered_renewal_is_repeated_until_the_deadline_and_the_loss_told_at_it(
        self, watchdog: Driven
    ) -> None:
        """Never later: at its ttl the server may give the lock away."""
        told: list[float] = []
        lease = watchdog.watched(ttl=30.0, on_lost=lambda _: told.append(watchdog.manual()))
        watchdog.renewer.then(*[unavailable()] * 100)
        watchdog.run_until(1060.0)
        assert told == [lease.deadline]
        bounds = [within for within in watchdog.renewer.withins if within is not None]
        assert len(watchdog.renewer.calls) == len(bounds) == 14
        assert min(bounds) < 1.5
        saved = watchdog.watched(ttl=30.0, name="saved at the last moment")
        watchdog.renewer._next.clear()
        watchdog.renewer.then(*[unavailable()] * 13)
        watchdog.run_until(1120.0)
        assert saved.held

    def test_a_silent_node_costs_the_leases_of_the_others_nothing(self, watchdog: Driven) -> None:
        """On a Cluster: theirs are renewed as ever; those of that node are lost at their deadline."""
        away, well = watchdog.watched(name="away"), watchdog.watched(name="well")
        watchdog.renewer.silent = {"away"}
        watchdog.run_until(1012.0)
        assert (away.state, well.state) == ("unsure", "held")
        assert well.expires_in > 25.0
        watchdog.run_until(1040.0)
        assert away.lost_because == "it could not be confirmed by its deadline (no answer)"
        well.check()

    def test_a_shorter_term_given_meanwhile_is_renewed_in_time(self, watchdog: Driven) -> None:
        """Law 1: the answer to a renewal of the longer one must not put off the next."""
        lease = watchdog.watched(ttl=30.0)

        def change(ttl: float) -> None:
            lease.term = Term("n", lease.token, ttl)
            watchdog.watch(lease)

        watchdog.renewer.then(lambda: change(3.0), lambda: change(3600.0))
        watchdog.run_until(1010.0)
        assert watchdog._next_due() == pytest.approx(1011.0)
        watchdog.run_until(1011.0)  # the longer term was not sent
        assert lease.expires_in <= 3.0


@pytest.mark.parametrize(
    ("end", "renewals"),
    [
        (lambda watchdog, lease: watchdog.forget(lease.token), 0),
        (lambda watchdog, lease: watchdog.renewer.then(lambda: watchdog.forget(lease.token)), 1),
        (lambda _, lease: lease.lose("the holder asked first"), 0),
    ],
    ids=["forgotten", "forgotten during its renewal", "lost"],
)
def test_what_is_forgotten_or_lost_is_renewed_no_more(
    watchdog: Driven, end: Callable[[Driven, Lease], object], renewals: int
) -> None:
    """And nothing of it is kept."""
    lease = watchdog.watched()
    end(watchdog, lease)
    watchdog.run_until(1060.0)
    assert len(watchdog.renewer.calls) == renewals
    assert lease.token not in watchdog._watched


def test_a_lease_that_ends_takes_no_other_watch_of_its_token_with_it(watchdog: Driven) -> None:
    """In pools of threads a run and its worker's main process watch the same token."""
    first = watchdog.watched()
    second = lease_on(watchdog.renewer)

    def replace() -> None:
        first.end()
        watchdog.watch(second)

    watchdog.renewer.then(replace)
    watchdog.run_until(1060.0)
    assert second.token in watchdog._watched
    assert watchdog.renewals > 3


class TestMaxHold:
    @pytest.mark.parametrize(
        ("begun", "ttl", "max_hold"),
        [(1000.0, 30.0, 65.0), (1000.0, 3600.0, 5.0), (113.03, 30.0, 0.1)],
        ids=["renewed before", "shorter than a third of the ttl", "(begun + max_hold) - begun < max_hold"],
    )
    def test_a_lease_is_renewed_no_longer_and_counts_as_lost(
        self, watchdog: Driven, caplog: pytest.LogCaptureFixture, begun: float, ttl: float, max_hold: float
    ) -> None:
        """At that moment, for any float: sums are compared. Half of it is warned of once."""
        told: list[float] = []
        caplog.set_level(logging.WARNING)
        watchdog.manual.now = begun
        lease = watchdog.watched(ttl=ttl, max_hold=max_hold, on_lost=lambda _: told.append(watchdog.manual()))
        watchdog.run_until(begun + max_hold * 0.49)
        assert caplog.records == []
        watchdog.run_until(begun + max_hold)
        watchdog.run_until(begun + 200.0)
        assert told == [begun + max_hold]
        assert f"lock_max_hold ({max_hold:g} s)" in (lease.lost_because or "")
        assert caplog.text.count(f"half of lock_max_hold ({max_hold:g} s; ") == (max_hold > ttl)


class Beside(Lease):
    """A lease that goes on when it is found gone: a worker's main process watches a claim in this way."""

    def lose(self, reason: str) -> None:
        pass


def test_a_claim_that_is_gone_is_asked_about_without_haste(watchdog: Driven) -> None:
    """It goes on being watched; a third of a millisecond would be no pause at all."""
    now = watchdog.manual()
    beside = Beside(
        watchdog.renewer, Term("n", "job/n", 0.001), Grant(1, False, now, now), clock=watchdog.manual
    )
    watchdog.watch(beside)
    watchdog.renewer.then(*[[None]] * 100)
    watchdog.run_until(1001.0)
    assert beside.token in watchdog._watched
    assert 10 < len(watchdog.renewer.calls) <= 21


class TestDebts:
    def test_a_release_is_tried_until_the_server_answers(self, watchdog: Driven) -> None:
        """Each attempt is made on a new connection: an open one may be read before the first request."""
        tries: list[float] = []

        def release() -> None:
            tries.append(watchdog.manual())
            assert watchdog.renewer.closed == len(tries)
            if len(tries) < 4:
                raise unavailable()

        watchdog.owe(release, within=30.0, what="a lock")
        watchdog.run_until(1001.5)
        was_away = watchdog.is_server_away
        watchdog.run_until(1060.0)
        assert tries == [1000.0, 1001.0, 1002.0, 1003.0]
        assert len(watchdog._debts) == 0
        assert (was_away, watchdog.is_server_away) == (True, False)

    @pytest.mark.parametrize(
        ("error", "left", "told"),
        [
            (ValueError("unforeseen"), 0, [True]),
            (LockKeyError("n", "WRONGTYPE: it is a list"), 0, [False]),
            (unavailable(), 1, []),
        ],
        ids=["unexpected", "another program's key", "stubborn"],
    )
    def test_an_error_holds_up_no_other_debt(
        self, watchdog: Driven, caplog: pytest.LogCaptureFixture, error: Any, left: int, told: list[bool]
    ) -> None:
        """One that nobody expects ends its debt, told with where it came from; an answer does, in one line.

        A server that is away is asked for the next one, and again.
        """
        paid: list[float] = []
        watchdog.owe(_raising(error), within=30.0, what="'n'")
        for _ in range(3):
            watchdog.owe(lambda: paid.append(watchdog.manual()), within=30.0, what="another")
        watchdog.run_until(1000.0)
        assert paid == [1000.0, 1000.0, 1000.0]
        assert len(watchdog._debts) == left
        assert [bool(record.exc_info) for record in caplog.records] == told
        assert told != [False] or caplog.messages == ["could not release 'n': WRONGTYPE: it is a list"]

    def test_many_debts_to_a_dead_server_do_not_hold_up_renewals(self, watchdog: Driven) -> None:
        """Each attempt may take two socket timeouts: one per round, not all of them."""

        def release() -> None:
            watchdog.manual.advance(2.0)
            raise unavailable()

        lease = watchdog.watched(ttl=30.0)
        for _ in range(100):
            watchdog.owe(release, within=60.0, what="a lock")
        watchdog.run_until(1030.0)
        assert watchdog.renewals >= 2
        assert lease.held

    def test_what_has_expired_is_dropped_without_an_attempt(self, watchdog: Driven, caplog: Any) -> None:
        tries: list[str] = []

        def release() -> None:
            tries.append("long")
            watchdog.manual.advance(6.0)
            raise unavailable()

        watchdog.owe(release, within=60.0, what="a long lock")
        for _ in range(1000):
            watchdog.owe(lambda: tries.append("short"), within=5.0, what="a short lock")
        with caplog.at_level(logging.WARNING):
            watchdog.run_until(1008.0)
        assert "short" not in tries
        assert len(watchdog._debts) == 1
        assert [record.getMessage() for record in caplog.records] == [
            "could not release a short lock and 999 others in time: expired by now"
        ]


class TestUnexpectedErrors:
    def test_one_broken_term_costs_itself_only(self, watchdog: Driven, caplog: Any) -> None:
        """Law 1: a token that no server can be asked about must not cost the others their locks."""
        leases = {name: watchdog.watched(name=name) for name in ("one", "broken", "two")}
        renew = watchdog.renewer.renew

        def fail_for_one(terms: Sequence[Term], *, within: float | None = None) -> Renewal:
            if any(term.name == "broken" for term in terms):
                message = "no such character"
                raise ValueError(message)
            return renew(terms, within=within)

        watchdog.renewer.renew = fail_for_one  # type: ignore[method-assign]
        with caplog.at_level(logging.ERROR):
            watchdog.run_until(1095.0)
        assert [name for name, lease in leases.items() if lease.held] == ["one", "two"]
        assert "deadline (ValueError('no such character'))" in (leases["broken"].lost_because or "")
        assert [record.getMessage() for record in caplog.records] == [
            "renewing 'broken' failed unexpectedly; it is tried until its deadline"
        ]


class TestThread:
    """The thread itself; facts are awaited, nothing is slept for."""

    def test_it_is_woken_for_what_its_look_missed(self, renewer: ScriptedRenewer, watchdog: Driven) -> None:
        """Watched without a lock, and due before the thread would wake by itself."""
        rung, look, bell, lease = [], watchdog._next_due, watchdog._bell, lease_on(renewer)
        watchdog._sleeps_until = lease.answered_at + 1.0  # as it was left when the thread woke

        def miss() -> float:
            due = look()
            if not watchdog._watched:
                watchdog.watch(lease)
            return due

        def get(timeout: float) -> None:
            rung.append(bell.qsize())
            renewer.clock.advance(timeout)

        watchdog._next_due = miss  # type: ignore[method-assign]
        watchdog._bell = SimpleNamespace(put=bell.put, get=get)
        assert watchdog._wait()
        assert rung[0] == 1

    def test_it_starts_with_the_first_lease_renews_and_ends_when_idle(
        self, renewer: ScriptedRenewer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watchdog_module, "LINGER", 0.01)
        watchdog = Watchdog(cast("LockStore", renewer), clock=renewer.clock)
        had_thread = watchdog._has_thread
        lease = lease_on(renewer)
        renewer.clock.advance(30.0)
        watchdog.watch(lease)
        assert wait_until(lambda: watchdog.renewals == 1, 10)
        assert (had_thread, watchdog._has_thread) == (False, True)
        watchdog.forget(lease.token)
        renewer.clock.advance(30.0)
        assert wait_until(lambda: not watchdog._has_thread, 10)
        again = lease_on(renewer, name="again")
        renewer.clock.advance(30.0)
        watchdog.watch(again)
        assert wait_until(lambda: watchdog.renewals == 2, 10)
        watchdog.forget(again.token)

    @pytest.mark.parametrize("error", [RuntimeError("unforeseen"), SystemExit("unforeseen")], ids=repr)
    def test_an_error_nobody_foresaw_does_not_end_it(
        self,
        renewer: ScriptedRenewer,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        error: BaseException,
    ) -> None:
        """Neither ``on_lost=lambda _: sys.exit(1)``, which would end the thread without a word."""
        watchdog = Watchdog(cast("LockStore", renewer), clock=renewer.clock)
        real, failed = watchdog._do_what_is_due, threading.Event()

        def fail_once() -> None:
            if not failed.is_set():
                failed.set()
                raise error
            real()

        monkeypatch.setattr(watchdog, "_do_what_is_due", fail_once)
        paid = threading.Event()
        with caplog.at_level(logging.ERROR):
            watchdog.owe(paid.set, within=30.0, what="a lock")
            assert paid.wait(10)
        assert failed.is_set()
        assert "unforeseen" in caplog.text

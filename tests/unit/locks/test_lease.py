"""A lease: until when it can be trusted, and how its states, and its loss, are learnt and told."""

import logging
from typing import Any

import pytest

from celery_redislock.exceptions import LockLost, LockOptionError
from celery_redislock.locks import Lease, Lock
from celery_redislock.store.store import Grant, Hold, Release, Term
from tests.clocks import ManualClock
from tests.scripted import Driven, FailingStore, ScriptedRenewer, lease_on, lock_on, unavailable


class TestDeadline:
    @pytest.mark.parametrize(
        ("ttl", "answered_at", "deadline"),
        [
            (30.0, 1000.0, 1000 + 30.0 - 0.302),
            (30.0, 1002.0, 1028.0),
            (0.001, 1000.0, 1000 - 0.00101),
            (0.25, 1000.0, 1000 + 0.25 - 0.0045),
            (3600.0, 1000.0, 1000 + 3600 - 36.002),
        ],
    )
    def test_it_counts_from_the_sending_less_a_margin(
        self, renewer: ScriptedRenewer, ttl: float, answered_at: float, deadline: float
    ) -> None:
        """1 % of the ttl and 2 ms, or a slow answer's round trip: never beyond the server's own.

        The server began to count later than the request was sent.
        """
        lease = Lease(
            renewer, Term("n", "t/1", ttl), Grant(1, False, 1000.0, answered_at), clock=renewer.clock
        )
        assert lease.deadline == pytest.approx(deadline, abs=1e-6)
        assert lease.deadline < 1000.0 + ttl
        assert lease.expires_in == pytest.approx(max(0.0, deadline - 1000.0), abs=1e-6)

    def test_an_answer_to_an_earlier_request_makes_none_longer(self, renewer: ScriptedRenewer) -> None:
        """Law 1: the watchdog's renewal was on its way when the holder asked for less, and got no answer."""
        lease = lease_on(renewer, ttl=30.0)
        renewer.clock.advance(10.5)
        lease.trust_for(5.0)
        lease.learn(True, 1010.0, 1011.0, ttl=lease.term.ttl)
        assert lease.deadline < 1015.5

    def test_a_later_renewal_moves_it_to_either_side(self, renewer: ScriptedRenewer) -> None:
        for at, ttl, deadline in ((1010.0, 30.0, 1039.698), (1001.0, 1.0, 1001.988)):
            lease = lease_on(renewer, ttl=30.0)
            lease.learn(True, at, at, ttl=ttl)
            assert lease.deadline == pytest.approx(deadline)

    def test_of_two_overlapping_renewals_the_sooner_end_counts(self, renewer: ScriptedRenewer) -> None:
        """Thread and watchdog at once, with different ttls: nobody knows which one the server took last."""
        for order in ((60.0, 10.0), (10.0, 60.0)):
            lease = lease_on(renewer, ttl=30.0)
            for ttl in order:
                lease.learn(True, 1010.0, 1010.5, ttl=ttl)
            assert lease.deadline < 1020.0


class TestCheck:
    def test_it_asks_once_after_the_deadline_and_believes_the_answer(self, renewer: ScriptedRenewer) -> None:
        """It stands in inner loops: before, it costs no trip. A paused process is late, not dispossessed."""
        lease = lease_on(renewer)
        renewer.clock.advance(29.0)
        lease.check()
        assert renewer.calls == []
        assert lease.trusted
        renewer.clock.advance(3600.0)
        assert (lease.trusted, lease.held) == (False, True)
        lease.check()
        lease.check()
        assert len(renewer.calls) == 1
        assert lease.held
        assert lease.expires_in > 29.0

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [([None], "expired"), ([False], "another holder"), (unavailable(), "could not be confirmed")],
    )
    def test_it_raises_when_the_server_says_no_or_nothing(
        self, renewer: ScriptedRenewer, answer: list[bool | None] | Exception, reason: str
    ) -> None:
        lease = lease_on(renewer)
        renewer.clock.advance(30.0)
        renewer.then(answer)
        with pytest.raises(LockLost, match=reason) as caught:
            lease.check()
        assert (caught.value.key, caught.value.fence) == ("n", 1)
        assert (lease.held, lease.lost, lease.expires_in) == (False, True, 0.0)

    def test_what_is_lost_stays_lost(self, renewer: ScriptedRenewer) -> None:
        lease = lease_on(renewer)
        lease.lose("gone")
        lease.learn(True, 1001.0, 1001.0, ttl=lease.term.ttl)
        for _ in range(2):
            with pytest.raises(LockLost, match="gone"):
                lease.check()
        assert renewer.calls == []

    def test_a_released_lease_does_not_pass(self, renewer: ScriptedRenewer) -> None:
        """A thread left behind by its run must not write under the next holder."""
        lease = lease_on(renewer)
        lease.end()
        with pytest.raises(LockLost, match="released"):
            lease.check()
        assert not lease.lost


class TestLoss:
    def test_it_is_announced_once_when_the_lease_says_so(self, renewer: ScriptedRenewer) -> None:
        told: list[tuple[bool, bool]] = []
        lease = lease_on(renewer, on_lost=lambda lease: told.append((lease.held, lease.lost)))
        lease.lose("first")
        lease.lose("second")
        lease.learn(None, 1001.0, 1001.0, ttl=lease.term.ttl)
        assert told == [(False, True)]
        assert lease.lost_because == "first"

    def test_nothing_is_announced_after_the_end(self, renewer: ScriptedRenewer) -> None:
        """A renewal on its way while the lease is given back finds it missing: that is no loss."""
        told: list[object] = []
        lease = lease_on(renewer, on_lost=told.append, on_state=told.append)
        lease.end()
        lease.doubt()
        lease.lose("it is gone")
        lease.learn(None, 1001.0, 1001.0, ttl=lease.term.ttl)
        assert told == []
        assert (lease.held, lease.lost) == (False, False)


class TestGaveBack:
    THEIRS = Hold("n", b"other/1", 5.0)

    @pytest.mark.parametrize(
        ("answer", "trusted", "gave_back"),
        [
            (Release(released=True), True, True),
            (Release(released=True), False, True),
            (Release(released=False), True, False),
            (Release(released=False, held_by=THEIRS), True, False),
            # The first request was carried out, and its answer got lost; perhaps the next one came already.
            (Release(released=False, repeated=True), True, True),
            (Release(released=False, held_by=THEIRS, repeated=True), True, True),
            # It had expired before: nobody can say, and the careful answer is no.
            (Release(released=False, repeated=True), False, False),
        ],
    )
    def test_a_repeated_release_is_judged_by_time(
        self, answer: Release, trusted: bool, gave_back: bool
    ) -> None:
        assert answer.gave_back(trusted=trusted) is gave_back


def test_a_lease_is_unsure_until_the_server_answers_again(watchdog: Driven) -> None:
    """Each state is told once, in order, and a loss is the last."""
    told: list[str] = []
    lease = watchdog.watched(ttl=30.0, on_state=told.append)
    watchdog.renewer.then(unavailable(), unavailable())
    watchdog.run_until(1010.5)
    assert (told, lease.state) == (["unsure"], "unsure")
    watchdog.run_until(1020.0)
    assert (told, lease.state) == (["unsure", "held"], "held")
    watchdog.renewer.then(*[unavailable() for _ in range(100)])
    watchdog.run_until(1100.0)
    assert (told, lease.state) == (["unsure", "held", "unsure", "lost"], "lost")


def test_one_that_slept_is_unsure_before_it_asks(watchdog: Driven) -> None:
    """Its deadline is near, or has passed: the machine stood still."""
    told: list[str] = []
    lease = watchdog.watched(ttl=30.0, on_state=told.append)
    watchdog.renewer.then(lambda: told.append("asks"))
    watchdog.manual.advance(29.6)
    watchdog._do_what_is_due()
    assert (told, lease.state) == (["unsure", "asks", "held"], "held")


def test_a_change_that_is_learnt_while_one_is_told_is_told_after_it(renewer: ScriptedRenewer) -> None:
    """By whom ever it is learnt: never out of order, never two at once."""
    told: list[str] = []

    def tell(state: str) -> None:
        if state == "unsure":
            lease.lose("it is gone")
        told.append(state)

    lease = lease_on(renewer, on_state=tell)
    lease.doubt()
    lease.doubt()
    assert told == ["unsure", "lost"]
    lease.learn(True, 1000.0, 1000.0, ttl=30.0)
    assert (told, lease.state) == (["unsure", "lost"], "lost")


def test_an_error_of_a_callback_is_logged_and_the_next_change_is_told(
    renewer: ScriptedRenewer, caplog: pytest.LogCaptureFixture
) -> None:
    """The watchdog has other leases to renew, and a check tells of the loss."""
    told: list[str] = []

    def tell(state: Any) -> None:
        told.append(state)
        raise ValueError(state)

    lease = lease_on(renewer, on_state=tell, on_lost=tell)
    with caplog.at_level(logging.ERROR):
        lease.doubt()
        lease.lose("it is gone")
    assert told == ["unsure", "lost", lease]
    assert [record.message for record in caplog.records] == [
        f"{what} raised for the lease on 'n', which is {state}"
        for what, state in (
            ("on_state", "unsure"),
            ("on_state", "lost"),
            ("on_lock_lost (or on_lost)", "lost"),
        )
    ]
    with pytest.raises(LockLost):
        lease.check()


@pytest.mark.parametrize(
    ("options", "trusted", "renewed_after"),
    [
        ({}, 29.698, 10.0),
        ({"margin": 0.1}, 26.998, 10.0),
        ({"margin": 0.25}, 22.498, 7.5),
        ({"margin": 0.5}, 14.998, 7.5),
        ({"delay": 20.0}, 9.898, 10 / 3),
        ({"delay": 20.0, "margin": 0.5}, 4.998, 2.5),
    ],
    ids=str,
)
def test_a_lease_is_trusted_for_its_ttl_less_margin_and_delay_and_renewed_in_time(
    watchdog: Driven, options: Any, trusted: float, renewed_after: float
) -> None:
    """Also by the renewals: the server keeps it for 30 s each time."""
    lease = watchdog.watched(ttl=30.0, **options)
    assert lease.expires_in == pytest.approx(trusted)
    due = 1000.0 + min(renewed_after, trusted / 2)
    assert watchdog._next_due() == pytest.approx(due)
    watchdog.run_until(due)
    assert watchdog.renewer.calls[0][0].ttl == 30.0
    assert lease.expires_in == pytest.approx(trusted)
    watchdog.renewer.then(*[unavailable() for _ in range(100)])
    watchdog.run_until(1100.0)
    assert lease.lost


def test_a_lease_whose_grant_was_sent_nobody_knows_when_is_trusted_for_less(renewer: ScriptedRenewer) -> None:
    """Never for more: a run's, which is to be terminated when it is lost."""
    exact = lease_on(renewer, margin=1 / 3)
    other = lease_on(renewer)
    other.limit_trust(1 / 3)
    assert exact.deadline - 0.1 < other.deadline <= exact.deadline


def test_a_delay_keeps_others_out_for_longer_than_the_lock_is_trusted(
    store: FailingStore, clock: ManualClock
) -> None:
    """What it has sent may be on its way; a release ends both."""
    lock = lock_on(store, clock, ttl=10.0, lock_delay=5.0)
    lock.acquire()
    (hold,) = store.holders("n")
    assert hold.expires_in == pytest.approx(15.0)
    assert hold.facts["delay"] == 5.0
    assert lock.renew()
    assert lock.renew(20.0)
    assert store.holders("n")[0].expires_in == pytest.approx(25.0)
    clock.advance(20.0)
    assert store.holders("n") != ()
    clock.advance(5.1)
    assert store.holders("n") == ()
    assert not lock.release()
    again = lock_on(store, clock, ttl=10.0, lock_delay=5.0)
    again.acquire()
    assert again.release()
    assert store.holders("n") == ()


@pytest.mark.parametrize(
    "terms", [{"margin": 0.0}, {"margin": 0.6}, {"margin": "much"}, {"lock_delay": -1}, {"lock_delay": None}]
)
def test_a_margin_or_delay_out_of_range_is_refused(store: FailingStore, terms: Any) -> None:
    with pytest.raises(LockOptionError, match=next(iter(terms))):
        Lock(store, "n", **terms)

"""What a holder knows of its lease: held, unsure or lost; and how long it trusts it."""

import logging
from typing import Any

import pytest

from celery_redislock import LockLost, LockOptionError
from celery_redislock.locks import Lock
from tests.clocks import ManualClock
from tests.scripted import Driven, FailingStore, ScriptedRenewer, lease_on, lock_on, unavailable


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

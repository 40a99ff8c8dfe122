"""A message that was published under one scope, and runs, or ends otherwise, under another."""

from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from celery_redislock.publishing.message import HEADER
from celery_redislock.receiving import line
from tests.unit.running.lives import SCOPES, TWO_LOCKS, Life, raising
from tests.unit.shop import KEY, Shop, carried, revoke

CHANGES = list(permutations(SCOPES, 2))


def changed(shop: Shop, monkeypatch: pytest.MonkeyPatch, old: str, new: str, **options: Any) -> Life:
    """A life that begins under the old scope, and reaches a worker that knows the new one."""
    life = Life(shop, monkeypatch, old, **options)
    period = SCOPES[new].get("lock_period", options.get("lock_period"))
    return life.redeclare(lock=SCOPES[new]["lock"], lock_period=period)


def retry(task: Any) -> None:
    """Retry once."""
    if not task.request.retries:
        task.retry(countdown=0)


def requeue(_task: Any) -> None:
    """Have the message delivered again."""
    raise Reject("not now", requeue=True)


#: Each way in which the job of a message comes to its end.
ENDS: Mapping[str, Callable[[Life], object]] = {
    "returns": lambda life: life.run(),
    "raises": lambda life: life.run(raising(ValueError())),
    "before_start Ignore": lambda life: life.run(start_by=raising(Ignore())),
    "revoked": lambda life: revoke(life.request),
    "expired": lambda life: life.expire(),
    "rejected": lambda life: life.be_rejected(),
    "killed in before_start": lambda life: life.be_killed("before_start").tell(),
    "killed in its body": lambda life: life.be_killed("body").tell(),
    "retried": lambda life: life.run(retry).run_queue(),
    "retried by before_start": lambda life: life.run(start_by=retry).run_queue(),
    "requeued": lambda life: life.run(requeue).deliver_again(),
    "put off": lambda life: life.cut_off().run().run_queue(),
}

#: Those in which its body has done its work: then its period stands.
SUCCEEDS = {"returns", "retried", "retried by before_start", "requeued", "put off"}


#: Each change with four of the ends, and each end with six changes at least.
PLAYED = [
    (old, new, end)
    for number, (old, new) in enumerate(CHANGES)
    for at, end in enumerate(ENDS)
    if (number + at) % 3 == 0
]


@pytest.mark.parametrize(("old", "new", "end"), PLAYED)
def test_whatever_the_scope_is_by_now_nothing_but_a_period_is_left(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, old: str, new: str, end: str
) -> None:
    """Law 4: the claim is released where its header says that it is."""
    life = changed(shop, monkeypatch, old, new, acks_late=end == "requeued")

    ENDS[end](life)

    assert life.held() == ""
    assert old != "until_expired" or end not in SUCCEEDS or life.has_period


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_failed_job_ends_its_period_whatever_the_scope_is_by_now(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """``lock_period_on_failure`` is ``"release"``."""
    life = changed(shop, monkeypatch, old, new, lock_period=50)

    life.run(raising(ValueError()))

    assert (life.held(), life.has_period) == ("", False)


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_one_of_several_places_is_left_as_a_lock_is(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """With ``lock_limit`` above 1 in each scope that can have it."""
    limits = {scope: 1 if scope == "until_expired" else 3 for scope in (old, new)}
    life = changed(shop, monkeypatch, old, new, lock_limit=limits[old]).redeclare(lock_limit=limits[new])

    life.run()

    assert life.held() == ""


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_claim_is_released_when_the_body_begins_and_a_lease_is_there_then(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """Law 1: no other run comes in between; a period, of which no run has a lease, keeps others out."""
    life = changed(shop, monkeypatch, old, new)
    seen: list[str] = []

    life.run(lambda _task: seen.append(life.held()))

    has_lease = new in {"until_executed", "while_executing", TWO_LOCKS} and old != "until_expired"
    assert seen == ["lease" if has_lease else ""]


@pytest.mark.parametrize("new", ["until_executing", "until_expired"])
@pytest.mark.parametrize("header", [{"parked_at": 1.0}, {"was_delivered": True}])
def test_the_lock_is_released_that_a_run_of_the_old_scope_would_have_taken_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, new: str, header: Mapping[str, Any]
) -> None:
    """Handed the run's lock in line, or requeued by a run, it holds that beside its claim."""
    life = changed(shop, monkeypatch, TWO_LOCKS, new)
    message = carried(life.message)
    life.message.headers[HEADER] = message._replace(**header).dumps()
    life.request = shop.receive(life.message)
    shop.store.acquire(KEY, message.token, 200, facts='{"state":"queued"}')

    life.run()

    assert life.held() == ""


def test_a_run_is_accepted_where_its_own_scope_keeps_claims(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is kept, although it was published under a scope that claims nothing."""
    life = changed(shop, monkeypatch, "while_executing", TWO_LOCKS, lock_period=50)
    seen: list[str] = []

    life.run(lambda _task: seen.append(life.held()))

    assert seen == ["lease"]
    assert shop.store.periods() == [f"queued:{KEY}"]


def test_nothing_is_claimed_ahead_for_a_message_that_stands_for_a_period(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is parked behind it waits for the period, which the end of its run does not release."""
    life = changed(shop, monkeypatch, "until_expired", "while_executing")

    assert line.claim_ahead(life.request) == ""

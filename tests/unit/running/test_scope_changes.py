"""A message that was published under one scope, and runs, or ends otherwise, under another."""

from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from celery_redislock.publishing.message import HEADER
from celery_redislock.receiving import line
from tests.unit.running.lives import SCOPES, TWO_LOCKS, Life, raising
from tests.unit.shop import KEY, Shop, carried, let_nobody_look, open_shop, revoke

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


def note(life: Life) -> Callable[[Any], None]:
    """Note what is held while the body runs."""
    return lambda _task: life.seen.append(life.held())


#: Each way in which the job of a message comes to its end.
ENDS: Mapping[str, Callable[[Any], object]] = {
    "returns": lambda life: life.run(note(life)),
    "raises": lambda life: life.run(raising(ValueError())),
    "raises, with a period": lambda life: life.run(raising(ValueError())),
    "has one of several places": lambda life: life.run(),
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


@pytest.mark.parametrize("end", ENDS)
def test_whatever_the_scope_is_by_now_nothing_but_a_period_is_left(end: str) -> None:
    """Law 4: the claim is released where its header says that it is. A failed job ends its period.

    Law 1: it is released when the body begins, and a lease is there then, so that no other run comes in
    between; but a period, of which no run has a lease, keeps others out itself.
    """
    let_nobody_look()
    for old, new in CHANGES:
        options: dict[str, Any] = {"acks_late": True} if end == "requeued" else {}
        if end == "raises, with a period":
            options["lock_period"] = 50
        limits = {scope: 1 if scope == "until_expired" or "places" not in end else 3 for scope in (old, new)}
        with open_shop() as shop, pytest.MonkeyPatch.context() as patch:
            life: Any = changed(shop, patch, old, new, lock_limit=limits[old], **options)
            life.redeclare(lock_limit=limits[new]).seen = []
            ENDS[end](life)

            has_lease = new in {"until_executed", "while_executing", TWO_LOCKS} and old != "until_expired"
            assert life.held() == "", (old, new)
            assert life.seen == (["lease" if has_lease else ""] if end == "returns" else []), (old, new)
            assert old != "until_expired" or end not in SUCCEEDS or life.has_period, (old, new)
            assert end != "raises, with a period" or not life.has_period, (old, new)


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


def test_a_run_is_accepted_where_its_own_scope_keeps_claims(shop: Shop, monkeypatch: Any) -> None:
    """Its lease is kept, although it was published under a scope that claims nothing."""
    life = changed(shop, monkeypatch, "while_executing", TWO_LOCKS, lock_period=50)
    seen: list[str] = []
    life.run(lambda _task: seen.append(life.held()))
    assert seen == ["lease"]
    assert shop.store.periods() == [f"queued:{KEY}"]


def test_nothing_is_claimed_ahead_for_what_stands_for_a_period(shop: Shop, monkeypatch: Any) -> None:
    """What is parked behind it waits for the period, which the end of its run does not release."""
    life = changed(shop, monkeypatch, "until_expired", "while_executing")
    assert line.claim_ahead(life.request) == ""

"""``lock_period_on_failure``, and what a duplicate within a period sees.

What becomes of the period however a job ends: ``tests/unit/running/test_lives.py``.
"""

import pickle
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery import Task
from celery.exceptions import TaskRevokedError

from celery_redislock import DuplicateTask
from celery_redislock.store.memory import MemoryStore
from tests.unit.shop import KEY, SCOPES, Shop, body, einfo

#: Every scope with a period.
PERIODS: Mapping[str, dict[str, Any]] = {
    name: {"lock_key": KEY, **options, "lock_period": 50} for name, options in SCOPES.items()
}
in_every_scope = pytest.mark.parametrize("scope", PERIODS)


def ending(error: BaseException | None) -> Callable[..., Any]:
    """Return a body that ends so."""

    def sync(account_id: int) -> int:
        if error is not None:
            raise error
        return account_id

    return sync


def test_a_call_may_say_what_becomes_of_its_period(shop: Shop) -> None:
    """It travels with the message."""
    shop.unique(ending(ValueError("x")), **PERIODS["until_executed"]).apply_async(
        (7,), lock_period_on_failure="keep"
    )
    shop.run()
    assert shop.store.periods() == [KEY]


@in_every_scope
def test_a_retry_in_place_keeps_the_period(shop: Shop, scope: str) -> None:
    """In eager mode Celery runs it when the first run has ended."""
    shop.app.conf.redislock_eager = True

    def sync(self: Any, account_id: int) -> None:
        assert self.request.retries == 0 or shop.store.periods()
        if not self.request.retries:
            raise self.retry()

    shop.unique(sync, bind=True, **PERIODS[scope]).apply((7,)).get()

    assert shop.store.periods() == [KEY]


@in_every_scope
def test_no_job_ends_the_period_of_another_one(shop: Shop, scope: str) -> None:
    """Law 3: an operator freed the key while it ran, and the next one was accepted."""

    def sync(account_id: int) -> None:
        shop.store.force_release(KEY)
        shop.store.acquire(KEY, "next/x", 30, facts='{"state":"queued"}', period=90)
        raise ValueError(account_id)

    shop.unique(sync, **PERIODS[scope]).delay(7)
    shop.run()

    MemoryStore.release(shop.store, KEY, "next/x")
    hold = shop.holder(KEY)
    assert (hold and hold.token) == "next/x"


@in_every_scope
@pytest.mark.parametrize("acks_late", [True, False])
def test_without_a_period_a_failure_asks_no_more(shop: Shop, scope: str, *, acks_late: bool) -> None:
    """Law 10; and with one, a scope that holds while it runs ends it with the release."""
    asked = {}
    for error in (None, ValueError("x")):
        for period in (None, 50):
            if scope == "until_expired" and period is None:
                continue
            name = f"shop.{error}.{period}"
            options = {**SCOPES[scope], "lock_period": period, "lock_key": name, "acks_late": acks_late}
            shop.unique(ending(error), name=name, **options).delay(7)
            shop.store.calls.clear()
            shop.run()
            asked[error is None, period] = list(shop.store.calls)

    if scope != "until_expired":
        assert asked[True, None] == asked[False, None]
    more = asked[False, 50].count("release") - asked[True, 50].count("release")
    assert more == (scope in {"until_executing", "until_expired"})


@pytest.mark.skipif(not hasattr(Task, "retry_on_worker_lost"), reason="this Celery does not know it")
@in_every_scope
def test_the_retry_for_a_lost_child_knows_under_which_token_its_period_began(shop: Shop, scope: str) -> None:
    """It fails after that, and ends it."""

    def sync(self: Any, account_id: int) -> None:
        if self.request.retries < 2:
            shop.die_here()
        raise ValueError(account_id)

    shop.unique(sync, bind=True, retry_on_worker_lost=True, default_retry_delay=0, **PERIODS[scope]).delay(7)
    for _ in range(2):
        request = shop.receive()
        shop.begin(request)
        request.on_failure(einfo(WorkerLostError("killed")))
        assert shop.store.periods() == [KEY]

    shop.run()
    assert (shop.store.periods(), shop.held()) == ([], {})


# --- what a duplicate's caller sees ----------------------------------------------------------


refusing = pytest.mark.parametrize("scope", [name for name in PERIODS if name != "while_executing"])


def skipped(shop: Shop, scope: str, error: Exception | None, **options: Any) -> tuple[Any, Any]:
    """Publish, run and publish once more; return both results."""
    task = shop.unique(ending(error), **{**PERIODS[scope], "lock_period_on_failure": "keep", **options})
    first = task.delay(7)
    shop.run()
    return first, task.delay(7)


@refusing
def test_a_duplicate_of_a_success_has_its_value_and_its_period(shop: Shop, scope: str) -> None:
    """At most once per period is a cache; a run ends, and is waited for. What it says it says by itself."""
    first, again = skipped(shop, scope, None)
    queued = shop.unique(body, name="shop.queued").delay(7)
    of_run = shop.app.tasks["shop.queued"].delay(7)
    assert (of_run.period, repr(of_run)) == (None, f"<LockResult: {queued.id} (duplicate)>")
    assert (again.id, again.is_duplicate) == (first.id, True)
    assert repr(again) == f"<LockResult: {first.id} (duplicate, by period)>"
    assert repr(first) == f"<LockResult: {first.id}>"
    assert (again.state, again.get(timeout=1)) == ("SUCCESS", 7)
    assert again.period.key == KEY
    assert again.period.ends_at - again.period.skipped_at == pytest.approx(50, abs=1)
    assert pickle.loads(pickle.dumps(again)).period == again.period  # noqa: S301  our own bytes


@refusing
def test_an_old_failure_is_no_new_one(shop: Shop, scope: str) -> None:
    """``get()`` says who stands for the period, how and when that ended, and how long the period lasts."""
    first, again = skipped(shop, scope, ValueError("no bank"))
    with pytest.raises(DuplicateTask) as raised:
        again.get(timeout=1)
    error = raised.value
    assert (error.key, error.task_id, error.state, error.is_period) == (KEY, first.id, "FAILURE", True)
    assert error.ended_at == pytest.approx(time.time(), abs=5)
    assert error.expires_in == pytest.approx(50, abs=2)
    assert isinstance(error.__cause__, ValueError)
    assert isinstance(again.get(timeout=1, propagate=False), ValueError)
    with pytest.raises(ValueError, match="no bank"):
        first.get(timeout=1)


def test_a_failure_that_follows_a_call_is_the_calls_too(shop: Shop) -> None:
    """The call joined a run that was still queued: its end is news to both."""
    task = shop.unique(ending(ValueError("no bank")), **PERIODS["until_expired"])
    task.delay(7)
    again = task.delay(7)
    shop.run()
    with pytest.raises(ValueError, match="no bank"):
        again.get(timeout=1)
    assert again.period is not None


def test_a_failure_without_a_date_is_old_and_one_without_a_zone_in_utc(shop: Shop) -> None:
    """As Celery's backends keep them."""
    _, again = skipped(shop, "until_expired", TaskRevokedError("revoked"))
    hour, now = timedelta(hours=1), datetime.now(timezone.utc)
    elsewhere = now.astimezone(timezone(timedelta(hours=9)))
    naive = now.replace(tzinfo=None)
    for done, is_old in (
        *((date, True) for date in (None, naive - hour, elsewhere - hour)),
        *((date, False) for date in (now + hour, naive + hour)),
    ):
        again._cache = {**shop.meta(again.id), "date_done": done}
        with pytest.raises(DuplicateTask if is_old else TaskRevokedError) as raised:
            again.get()
        assert raised.value.__cause__ is (again._cache["result"] if is_old else None)


def test_a_duplicate_that_nobody_stores_a_result_for_returns_at_once(shop: Shop) -> None:
    """However the holder's run ended."""
    _, again = skipped(shop, "until_expired", ValueError("x"), ignore_result=True)
    assert (again.get(), again.period is not None) == (None, True)

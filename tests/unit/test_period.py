"""``lock_period_on_failure``: what becomes of a job's period when the job ends, on every side of it."""

import pickle
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from threading import Thread
from typing import Any

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import Task
from celery.exceptions import Ignore, Reject, TaskRevokedError

from celery_redislock import DuplicateTask, SingletonTask
from celery_redislock.locks.memory import MemoryStore
from celery_redislock.locks.store import ACCEPTED
from tests.unit.shop import KEY, SCOPES, Shop, body, einfo

#: Every scope with a period.
PERIODS: Mapping[str, dict[str, Any]] = {
    name: {"lock_key": KEY, **options, "lock_period": 50} for name, options in SCOPES.items()
}
in_every_scope = pytest.mark.parametrize("scope", PERIODS)


class GreenletExit(BaseException):
    """By its name: what ends a greenlet that is revoked."""


def ending(error: BaseException | None) -> Callable[..., Any]:
    """Return a body that ends so."""

    def sync(account_id: int) -> int:
        if error is not None:
            raise error
        return account_id

    return sync


def is_accepted(shop: Shop) -> bool:
    """Whether the period is over, and nobody holds the key."""
    return shop.holder(KEY) is None


def has_period(shop: Shop) -> bool:
    """Whether a period goes on, whoever holds the key."""
    hold = shop.holder(KEY)
    stands = hold is not None and hold.state == ACCEPTED
    return stands or shop.store._live(shop.store._periods, KEY) is not None


# --- where the body ends ---------------------------------------------------------------------


@in_every_scope
@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("acks_late", [True, False])
@pytest.mark.parametrize("on_failure", [None, "release", "keep"])
@pytest.mark.parametrize(
    "error",
    [None, ValueError("x"), Ignore(), Reject("x", requeue=False), DuplicateTask("k", "t", 1.0)],
    ids=repr,
)
def test_every_end_but_success_ends_the_period_unless_it_is_kept(
    shop: Shop, scope: str, error: Exception | None, on_failure: str | None, *, claimed: bool, acks_late: bool
) -> None:
    """Law 5: it is over when the outcome is stored. ``release`` is the default."""
    options = {**PERIODS[scope], "acks_late": acks_late, "lock_period_on_failure": on_failure}
    task = shop.unique(ending(error), **options)
    if claimed:
        task.delay(7)
    else:
        shop.app.send_task(task.name, (7,))
    seen: list[bool] = []
    for name in ("mark_as_done", "mark_as_failure", "mark_as_revoked"):
        setattr(task.backend, name, lambda *_, **__: seen.append(is_accepted(shop)))

    shop.run()

    is_over = error is not None and on_failure != "keep"
    assert is_accepted(shop) is is_over
    assert set(seen) <= {is_over}
    assert seen or isinstance(error, Ignore | Reject)  # which some Celerys store


@in_every_scope
@pytest.mark.parametrize("on_failure", ["release", "keep"])
def test_a_result_that_cannot_be_stored_ends_the_period_too(shop: Shop, scope: str, on_failure: str) -> None:
    """The body returned, and Celery stores a failure."""

    def sync(account_id: int) -> object:
        return object()

    task = shop.unique(sync, lock_period_on_failure=on_failure, **PERIODS[scope])
    result = task.delay(7)

    shop.run()

    assert shop.state(result.id) == "FAILURE"
    assert is_accepted(shop) is (on_failure == "release")


@in_every_scope
def test_a_call_may_say_what_becomes_of_its_period(shop: Shop, scope: str) -> None:
    """It travels with the message."""
    task = shop.unique(ending(ValueError("x")), **PERIODS[scope])
    task.apply_async((7,), lock_period_on_failure="keep")

    shop.run()

    assert not is_accepted(shop)


@in_every_scope
@pytest.mark.parametrize("succeeds", [True, False])
def test_a_retry_keeps_the_period_until_the_last_one_has_ended(
    shop: Shop, scope: str, *, succeeds: bool
) -> None:
    """The job is not over. Its retries know under which token its period began."""

    def sync(self: Any, account_id: int) -> None:
        if self.request.retries < 2 or not succeeds:
            raise self.retry(exc=ValueError("x"), max_retries=2)

    shop.unique(sync, bind=True, **PERIODS[scope]).delay(7)
    for _ in range(2):
        shop.run()
        assert not is_accepted(shop)
    ended = shop.run()

    assert isinstance(ended, ValueError) is not succeeds
    assert is_accepted(shop) is not succeeds


@in_every_scope
def test_a_retry_in_place_keeps_the_period(shop: Shop, scope: str) -> None:
    """In eager mode Celery runs it when the first run has ended."""
    shop.app.conf.redislock_eager = True

    def sync(self: Any, account_id: int) -> None:
        assert self.request.retries == 0 or has_period(shop)
        if not self.request.retries:
            raise self.retry()

    shop.unique(sync, bind=True, **PERIODS[scope]).apply((7,)).get()

    assert has_period(shop)


@in_every_scope
def test_a_job_that_asked_for_a_retry_and_then_failed_keeps_its_period(shop: Shop, scope: str) -> None:
    """Its retry is published and runs."""

    def sync(self: Any, account_id: int) -> None:
        if not self.request.retries:
            self.retry(throw=False)
        raise ValueError(account_id)

    shop.unique(sync, bind=True, **PERIODS[scope]).delay(7)
    shop.run()
    assert not is_accepted(shop)

    shop.run()
    assert is_accepted(shop)


@pytest.mark.parametrize("scope", ["until_executed", "until_executing", "until_expired"])
def test_a_requeued_message_keeps_the_period_until_it_has_failed(shop: Shop, scope: str) -> None:
    """It runs again."""
    errors: list[Exception] = [Reject("x", requeue=True), ValueError("x")]

    def sync(account_id: int) -> None:
        raise errors.pop(0)

    shop.unique(sync, acks_late=True, **PERIODS[scope]).delay(7)
    message = shop.message()
    shop.run(shop.receive(message))
    assert not is_accepted(shop)

    shop.run(shop.receive(message, redelivered=True))
    assert is_accepted(shop)


@in_every_scope
def test_a_replaced_job_keeps_the_period(shop: Shop, scope: str) -> None:
    """Another task does the rest of it."""

    def sync(self: Any, account_id: int) -> None:
        self.replace(other.si(account_id))

    other = shop.unique(body, name="shop.other", lock=None)
    shop.unique(sync, bind=True, **PERIODS[scope]).delay(7)

    shop.run()

    assert not is_accepted(shop)


@in_every_scope
def test_no_job_ends_the_period_of_another_one(shop: Shop, scope: str) -> None:
    """Law 3: an operator freed the key while it ran, and the next one was accepted."""
    task: Any = None

    def sync(account_id: int) -> None:
        shop.store.force_release(KEY)
        shop.store.acquire(KEY, "next/x", 30, facts='{"state":"queued"}', period=90)
        raise ValueError(account_id)

    task = shop.unique(sync, **PERIODS[scope])
    task.delay(7)

    shop.run()

    MemoryStore.release(shop.store, KEY, "next/x")
    hold = shop.holder(KEY)
    assert (hold and hold.token) == "next/x"


@in_every_scope
@pytest.mark.parametrize("error", [GreenletExit(), SystemExit(1)], ids=repr)
def test_what_ends_a_greenlet_ends_the_job_and_what_ends_a_child_may_not(
    shop: Shop, scope: str, error: BaseException
) -> None:
    """For a greenlet no main process settles; for a child it knows whether the message comes again."""
    task = shop.unique(ending(error), **PERIODS[scope])

    with shop.running(task), pytest.raises(type(error)):
        task(7)

    assert is_accepted(shop) is isinstance(error, GreenletExit)


@in_every_scope
@pytest.mark.parametrize("acks_late", [True, False])
def test_a_task_without_a_period_asks_no_more_when_it_fails(
    shop: Shop, scope: str, *, acks_late: bool
) -> None:
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


# --- copies ----------------------------------------------------------------------------------


@in_every_scope
@pytest.mark.parametrize(
    "how", ["delivered again", "its child dies before it starts", "revoked", "hard limit"]
)
def test_a_late_copy_does_not_end_the_period_of_its_message(shop: Shop, scope: str, how: str) -> None:
    """Law 8: the message has run with success, and what stands for that stays."""
    shop.unique(ending(None), acks_late=True, **PERIODS[scope]).delay(7)
    message = shop.message()
    shop.run(shop.receive(message))

    copy = shop.receive(message, redelivered=True)
    if how == "delivered again":
        assert isinstance(shop.run(copy), Ignore)
    elif how == "revoked":
        copy._announce_revoked("revoked", False, None, False)
    else:
        copy.on_accepted(2**22 + 1, time.monotonic())
        error = TimeLimitExceeded(1) if how == "hard limit" else WorkerLostError("killed")
        copy.on_failure(einfo(error), return_ok=True)

    assert not is_accepted(shop)


# --- where the main process ends it ----------------------------------------------------------


@in_every_scope
@pytest.mark.parametrize("error", [WorkerLostError("killed"), Terminated(15), TimeLimitExceeded(1)], ids=repr)
@pytest.mark.parametrize("acks_late", [True, False])
@pytest.mark.parametrize("redelivered", [True, False])
@pytest.mark.parametrize("on_failure", ["release", "keep"])
def test_a_killed_child_ends_the_period_before_its_outcome_is_stored(
    shop: Shop, scope: str, error: Exception, on_failure: str, *, acks_late: bool, redelivered: bool
) -> None:
    """Law 5, for deaths and hard limits. A copy that had started is the run that counts."""
    seen: list[bool] = []

    def sync(self: Any, account_id: int) -> None:
        # What a child has done when it is killed here; it does nothing more.
        for name in ("mark_as_failure", "mark_as_revoked"):
            setattr(task.backend, name, lambda *_, **__: seen.append(has_period(shop)))
        request.on_failure(einfo(error), return_ok=True)
        seen.append(has_period(shop))
        self.request.redislock_run.followed_by = ((request.id, float),)  # so that this run ends nothing

    options = {**PERIODS[scope], "acks_late": acks_late, "lock_period_on_failure": on_failure}
    task = shop.unique(sync, bind=True, **options)
    task.delay(7)
    request = shop.receive(redelivered=redelivered)
    shop.run(request)

    assert set(seen) == {on_failure == "keep"}


@pytest.mark.parametrize("scope", ["until_executed", "until_executing", "until_expired"])
def test_a_revoked_retry_ends_the_period_of_its_job(shop: Shop, scope: str) -> None:
    """The job is over, and has not succeeded."""

    def sync(self: Any, account_id: int) -> None:
        raise self.retry(countdown=300)

    shop.unique(sync, bind=True, **PERIODS[scope]).delay(7)
    shop.run()

    shop.receive()._announce_revoked("revoked", False, None, False)

    assert is_accepted(shop)


@in_every_scope
def test_a_retry_whose_before_start_fails_ends_the_period_of_its_job(shop: Shop, scope: str) -> None:
    class Checked(SingletonTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            if self.request.retries:
                raise ValueError(self.request.retries)

    def sync(self: Any, account_id: int) -> None:
        raise self.retry(countdown=0)

    shop.unique(sync, bind=True, base=Checked, **PERIODS[scope]).delay(7)
    shop.run()
    assert not is_accepted(shop)

    shop.run()
    assert is_accepted(shop)


@in_every_scope
def test_the_retry_for_a_lost_child_knows_under_which_token_its_period_began(shop: Shop, scope: str) -> None:
    """It fails after that, and ends it."""
    if not hasattr(Task, "retry_on_worker_lost"):
        pytest.skip("this Celery does not know retry_on_worker_lost")
    request: Any = None

    def sync(self: Any, account_id: int) -> None:
        if self.request.retries == 2:
            raise ValueError(account_id)
        # In a thread of its own, which runs no task.
        dying = Thread(target=request.on_failure, args=(einfo(WorkerLostError("killed")),))
        dying.start()
        dying.join()
        self.request.redislock_run.followed_by = ((request.id, float),)  # the child is dead
        raise Ignore

    options = {**PERIODS[scope], "retry_on_worker_lost": True, "default_retry_delay": 0, "max_retries": 3}
    shop.unique(sync, bind=True, **options).delay(7)
    for _ in range(2):
        request = shop.receive()
        shop.run(request)
        assert not is_accepted(shop)

    shop.run()
    assert is_accepted(shop)


# --- what a duplicate's caller sees ----------------------------------------------------------


refusing = pytest.mark.parametrize("scope", [name for name in PERIODS if name != "while_executing"])


def skipped(shop: Shop, scope: str, error: Exception | None, **options: Any) -> tuple[Any, Any]:
    """Publish, run and publish once more; return both results."""
    task = shop.unique(ending(error), **{**PERIODS[scope], "lock_period_on_failure": "keep", **options})
    first = task.delay(7)
    shop.run()
    return first, task.delay(7)


@refusing
def test_a_duplicate_of_a_success_has_its_value_and_says_that_a_period_skipped_it(
    shop: Shop, scope: str
) -> None:
    """At most once per period is a cache. What it says it says without a request."""
    first, again = skipped(shop, scope, None)

    assert (again.id, again.is_duplicate) == (first.id, True)
    assert repr(again) == f"<LockResult: {first.id} (duplicate, by period)>"
    assert repr(first) == f"<LockResult: {first.id}>"
    assert (again.state, again.get(timeout=1)) == ("SUCCESS", 7)
    assert again.period.key == KEY
    assert again.period.ends_at - again.period.skipped_at == pytest.approx(50, abs=1)
    assert pickle.loads(pickle.dumps(again)).period == again.period  # noqa: S301  our own bytes


def test_a_duplicate_of_a_run_was_not_skipped_by_a_period(shop: Shop) -> None:
    """It will end: nothing has to pass then."""
    task = shop.unique(body, **PERIODS["until_executed"])
    first, again = task.delay(7), task.delay(7)

    assert (again.period, repr(again)) == (None, f"<LockResult: {first.id} (duplicate)>")


@refusing
@pytest.mark.parametrize("cached", [True, False])
def test_an_old_failure_is_no_new_one(shop: Shop, scope: str, *, cached: bool) -> None:
    """``get()`` says who stands for the period, how and when that ended, and how long the period lasts."""
    first, again = skipped(shop, scope, ValueError("no bank"))
    assert (again.state if cached else "FAILURE") == "FAILURE"

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


@pytest.mark.parametrize(
    ("done", "is_old"),
    [
        (None, True),
        (datetime.now(timezone.utc) + timedelta(hours=1), False),
        (datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(hours=1), False),
        (datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(hours=1), True),
        (datetime.now(timezone(timedelta(hours=9))) - timedelta(hours=1), True),
    ],
    ids=["kept by no backend", "later", "later, in UTC", "before, in UTC", "before, elsewhere"],
)
def test_a_failure_without_a_date_is_old_and_one_without_a_zone_in_utc(
    shop: Shop, done: datetime | None, *, is_old: bool
) -> None:
    """As Celery's backends keep them."""
    _, again = skipped(shop, "until_expired", TaskRevokedError("revoked"))
    meta = {**shop.meta(again.id), "date_done": done}
    again._cache = meta

    with pytest.raises(DuplicateTask if is_old else TaskRevokedError) as raised:
        again.get()

    assert raised.value.__cause__ is (meta["result"] if is_old else None)


def test_a_duplicate_that_nobody_stores_a_result_for_returns_at_once(shop: Shop) -> None:
    """However the holder's run ended."""
    _, again = skipped(shop, "until_expired", ValueError("x"), ignore_result=True)

    assert (again.get(), again.period is not None) == (None, True)

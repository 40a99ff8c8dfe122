"""Claims of messages that were revoked before any worker had them."""

import time
from typing import Any

import pytest

from celery_redislock import revoked
from celery_redislock.revoked import APART, YOUNG, LookedAt
from tests.unit.shop import Shop

KEY = "account:7"


@pytest.fixture(autouse=True)
def looked_at(monkeypatch: Any) -> LookedAt:
    """Each test has looked at nothing yet."""
    fresh = LookedAt()
    monkeypatch.setattr(revoked, "_looked_at", fresh)
    return fresh


def body(account_id: int) -> int:
    return account_id


class Clock:
    """The wall clock, which a test can set forward."""

    def __init__(self, monkeypatch: Any) -> None:
        self.ahead = 0.0
        real = time.time
        monkeypatch.setattr("celery_redislock.revoked.time.time", lambda: real() + self.ahead)


@pytest.fixture
def clock(monkeypatch: Any) -> Clock:
    return Clock(monkeypatch)


def claimed(shop: Shop, clock: Clock, *, age: float = YOUNG + 1.0, **options: Any) -> Any:
    """Publish a task, and let its claim grow old."""
    task = shop.unique(body, lock_key=KEY, **options)
    task.apply_async((7,), task_id="first")
    clock.ahead += age
    return task


def revoke(shop: Shop, task_id: str = "first") -> None:
    """Write what a worker's control command writes at once."""
    shop.app.backend.mark_as_revoked(task_id, "revoked", store_result=True)


def test_a_revoked_messages_claim_stands_in_nobodys_way(shop: Shop, clock: Clock) -> None:
    """Law 4: a lock dies with its holder, also with one that no worker has seen."""
    task = claimed(shop, clock)
    revoke(shop)

    second = task.apply_async((7,), task_id="second")

    assert not second.is_duplicate
    assert shop.holder(KEY).owner == "second"  # type: ignore[union-attr]  # it is held
    assert [message.headers["id"] for message in shop.messages()] == ["first", "second"]


def test_its_window_goes_with_it(shop: Shop, clock: Clock) -> None:
    """Nothing ran in it."""
    task = claimed(shop, clock, lock_period=500)
    revoke(shop)

    assert not task.delay(7).is_duplicate


def test_a_revoked_message_that_is_delivered_all_the_same_disturbs_nobody(shop: Shop, clock: Clock) -> None:
    """Laws 1 and 3: a worker that has forgotten the revocation finds the key held."""
    task = claimed(shop, clock)
    revoke(shop)
    task.apply_async((7,), task_id="second")
    first, _ = shop.messages()

    shop.run(shop.receive(first))

    assert shop.state("first") == "REVOKED"
    assert shop.holder(KEY).owner == "second"  # type: ignore[union-attr]  # it is held


def test_a_workflows_member_waits_for_no_revoked_message(shop: Shop, clock: Clock) -> None:
    """Law 6: Celery drops one with an ETA when that has come, perhaps hours later."""
    task = claimed(shop, clock, age=0.0)
    shop.messages()
    task.si(7).apply_async(task_id="second", group_id="all")
    revoke(shop)
    clock.ahead += YOUNG + 1.0

    assert shop.run() == 7
    assert shop.held() == {}


@pytest.mark.parametrize("strategy", ["skip", "raise", "retry"])
@pytest.mark.parametrize("period", [None, 50.0])
def test_no_scope_is_kept_from_running_by_a_revoked_message(
    shop: Shop, clock: Clock, strategy: str, period: float | None
) -> None:
    """Law 2: dropped for a message that never runs, the job would be lost."""
    options = {"lock": "until_executing", "on_conflict": strategy, "lock_period": period}
    task = claimed(shop, clock, **options)
    shop.messages()
    revoke(shop)

    shop.app.send_task(task.name, (7,), task_id="second")

    assert shop.run() == 7
    assert shop.held() == {}


def test_a_message_without_a_header_is_no_duplicate_of_a_revoked_one(shop: Shop, clock: Clock) -> None:
    """Law 2: nobody stands for it, so it is not skipped."""
    claimed(shop, clock)
    shop.messages()
    revoke(shop)
    shop.app.send_task("shop.sync", (7,), task_id="second")

    assert shop.run() == 7


@pytest.mark.parametrize("state", ["nothing", "STARTED", "RETRY", "SUCCESS"])
def test_any_other_state_leaves_the_claim_alone(shop: Shop, clock: Clock, state: str) -> None:
    task = claimed(shop, clock)
    if state != "nothing":
        shop.app.backend.store_result("first", None, state)

    assert task.delay(7).is_duplicate


def test_a_skipped_duplicates_state_is_no_revocation(shop: Shop, clock: Clock) -> None:
    """A message of an id may be skipped while another of the same id is on its way."""
    task = claimed(shop, clock)
    shop.app.backend.mark_as_revoked("first", "duplicate of another", store_result=True)

    assert task.delay(7).is_duplicate


def test_a_revocation_of_an_earlier_job_of_the_same_id_does_not_count(shop: Shop, clock: Clock) -> None:
    """A message's identity is its token: an id may be published again."""
    revoke(shop)
    task = shop.unique(body, lock_key=KEY)
    held = shop.store.acquire(KEY, "first/claim", 100, about={"state": "queued", "since": time.time() + 30})
    assert held
    clock.ahead = 60

    assert task.delay(7).is_duplicate


@pytest.mark.parametrize(
    "about",
    [{"state": "running", "since": 1.0}, {"state": "window", "since": 1.0}, {"state": "queued"}, {}],
    ids=str,
)
def test_only_a_claim_is_looked_at(shop: Shop, about: dict[str, Any]) -> None:
    """A run that was revoked may go on; what was accepted stands for its window."""
    revoke(shop)
    task = shop.unique(body, lock_key=KEY)
    shop.store.acquire(KEY, "first/run", 100, about=about)

    assert task.delay(7).is_duplicate


def test_a_young_claim_costs_no_look(shop: Shop, clock: Clock, looked_at: LookedAt) -> None:
    """Law 10: one trip for a refused claim."""
    task = claimed(shop, clock, age=0.0)
    revoke(shop)

    assert task.delay(7).is_duplicate
    assert looked_at.is_due(KEY, now=time.monotonic())


def test_a_flood_of_duplicates_looks_once_a_second(shop: Shop, clock: Clock, monkeypatch: Any) -> None:
    """Law 10."""
    task = claimed(shop, clock)
    looks: list[str] = []
    backend = shop.app.backend
    monkeypatch.setattr(
        backend, "get_task_meta", lambda task_id, **_: looks.append(task_id) or {"status": "PENDING"}
    )

    for _ in range(20):
        task.delay(7)

    assert looks == ["first"]


def test_a_key_is_due_again_after_a_second_and_few_are_remembered() -> None:
    looked_at = LookedAt(at_most=2)

    assert looked_at.is_due("a", now=0.0)
    assert not looked_at.is_due("a", now=APART / 2)
    assert looked_at.is_due("a", now=APART)
    assert looked_at.is_due("b", now=APART)
    assert looked_at.is_due("c", now=APART)
    assert looked_at.is_due("a", now=APART)


def test_a_backend_that_cannot_be_asked_leaves_the_claim_alone(
    shop: Shop, clock: Clock, monkeypatch: Any
) -> None:
    task = claimed(shop, clock)
    revoke(shop)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError

    monkeypatch.setattr(shop.app.backend, "get_task_meta", broken)

    assert task.delay(7).is_duplicate

"""What a run publishes for its own task id: retries and replacements."""

from typing import Any

import pytest

from celery_redislock import SingletonTask
from celery_redislock.publishing.message import Message
from celery_redislock.store.store import owner_name
from tests.unit.shop import Shop, body, carried

WAYS = {
    "retry": lambda task: task.retry(countdown=50),
    "retry that does not raise": lambda task: task.retry(countdown=50, throw=False),
    "replace": lambda task: task.replace(task.si(7).set(countdown=50)),
    "publish": lambda task: task.apply_async((7,), task_id=task.request.id, countdown=50),
}


def followed(
    shop: Shop, monkeypatch: Any, way: str, *, before: Any = None, task_id: str = "same", **options: Any
) -> dict[str, Any]:
    """Run a task that publishes its own id; return what was there when that was sent, and after the run."""
    seen: dict[str, Any] = {}

    def again(self: Any, account_id: int) -> None:
        if before is not None:
            before()
        run, sending = self.request.redislock_run, shop.app.send_task

        def send(*args: Any, **kwargs: Any) -> Any:
            seen.update(
                noted_before=[token for token, _ in run.followed_by],
                requests=len(shop.store.calls),
                held=[hold.state for hold in shop.held().values()],
            )
            return sending(*args, **kwargs)

        monkeypatch.setattr(shop.app, "send_task", send)
        shop.store.calls.clear()
        try:
            WAYS[way](self)
        finally:
            seen["noted"] = [token for token, _ in run.followed_by]

    task = shop.unique(again, bind=True, lock_key="account:{account_id}", lock_period=90, **options)
    task.apply_async((7,), task_id=task_id)
    first = shop.message()
    seen["first"] = carried(first)
    shop.run(shop.receive(first))
    seen["after"] = shop.held().get("account:7")
    return seen


@pytest.mark.parametrize("task_id", ["same", "sa\0me"], ids=repr)
@pytest.mark.parametrize("way", WAYS)
def test_a_retry_is_published_at_once_under_its_own_token_and_noted_after_that(
    shop: Shop, monkeypatch: Any, way: str, task_id: str
) -> None:
    """Law 7: no death of the child loses it. It asks nothing; its claim is made when the body has unwound."""
    seen = followed(shop, monkeypatch, way, task_id=task_id)
    header = carried(shop.message())
    first = seen["first"].token
    assert header == Message("account:7", header.token, claimed=True, must_run=True, opened_by=first)
    assert header.token.startswith(f"{owner_name(task_id)}/")
    assert header.token != seen["first"].token
    assert (seen["noted_before"], seen["noted"]) == ([], [header.token])
    assert (seen["requests"], seen["held"]) == (0, ["running"])
    assert (seen["after"].token, seen["after"].state) == (header.token, "queued")
    assert seen["after"].expires_in == pytest.approx(3650, abs=1)


@pytest.mark.parametrize(
    ("lock", "requests", "held", "after"),
    [
        ("until_executed", 0, ["running"], True),
        ("while_executing", 0, ["running"], True),
        ("until_executing", 1, ["queued"], True),
        ("until_expired", 0, [], False),
    ],
)
def test_what_follows_a_run_travels_as_claimed_in_every_scope(
    shop: Shop, monkeypatch: Any, lock: str, requests: int, held: list[str], *, after: bool
) -> None:
    """What was accepted once is never a duplicate. Where the run holds nothing, its retry takes a claim."""
    seen = followed(shop, monkeypatch, "retry", lock=lock)
    header = carried(shop.message())
    assert (header.claimed, header.must_run) == (True, True)
    assert header.stands_for_period is (lock == "until_expired")
    assert (seen["requests"], [state for state in seen["held"] if state != "period"]) == (requests, held)
    assert (seen["after"] is not None and seen["after"].token == header.token) is after


@pytest.mark.parametrize("trouble", ["a newcomer", "no server"])
def test_a_retry_that_can_have_no_claim_goes_without_one(shop: Shop, monkeypatch: Any, trouble: str) -> None:
    """Law 7 before law 9: a retry is never lost, and never skipped, for the lock's sake."""

    def before() -> None:
        if trouble == "no server":
            shop.store.failures = 1
        else:
            shop.store.acquire("account:7", "newcomer/x", 30, facts='{"state": "queued"}')

    seen = followed(shop, monkeypatch, "retry", before=before, lock="until_executing")
    header = carried(shop.message())
    assert (header.claimed, header.must_run) == (False, True)
    assert (seen["after"] and seen["after"].owner) == (None if trouble == "no server" else "newcomer")


def other_key(task: Any, account_id: int) -> None:
    if account_id == 7:
        task.replace(task.si(8))


@pytest.mark.parametrize("lock", ["until_executed", "until_executing", "while_executing"])
@pytest.mark.parametrize("meets", ["nobody", "a run", "a period"])
def test_a_replacement_with_another_key_takes_its_own_lock(shop: Shop, lock: str, meets: str) -> None:
    """Where its scope claims at publish. Refused, its message waits; the replaced task's lock is released."""
    task = shop.unique(other_key, bind=True, lock=lock, lock_key="account:{account_id}", lock_period=90)
    task.apply_async((7,), task_id="same")
    request = shop.receive()
    if meets != "nobody":
        shop.store.acquire("account:8", "somebody/x", 30, facts='{"state": "running"}', period=90)
    if meets == "a period":
        shop.store.release("account:8", "somebody/x")
    shop.run(request)

    claims = lock != "while_executing" and meets == "nobody"
    holder = {"nobody": "same" if claims else None, "a run": "somebody", "a period": None}[meets]
    header = carried(shop.message())
    assert header == Message("account:8", header.token, claimed=claims, must_run=True)
    assert {key: hold.owner for key, hold in shop.held().items()} == ({"account:8": holder} if holder else {})


class Again(SingletonTask):
    """Publishes its own id before its body, or after it."""

    when = ""

    def before_start(self, *_: Any) -> None:
        if self.when == "before":
            self.retry(countdown=50)

    def on_success(self, *_: Any) -> None:
        if self.when == "after":
            self.retry(countdown=50, throw=False)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_published_beside_the_body_keeps_or_gets_a_claim(shop: Shop, when: str) -> None:
    """Law 7: before the body, the message's own claim goes on; after it, the message is done.

    Under its old token a retry would meet its own done mark, and be dropped.
    """
    task = shop.unique(body, base=Again, lock_key="account:{account_id}", when=when)
    task.apply_async((7,), task_id="same")
    first = shop.message()
    shop.run(shop.receive(first))
    header = carried(shop.message())
    assert header == Message("account:7", header.token, claimed=True, must_run=True)
    assert (header.token == carried(first).token) is (when == "before")
    assert shop.held()["account:7"].token == header.token
    assert shop.store.calls.count("release") == (when == "after")

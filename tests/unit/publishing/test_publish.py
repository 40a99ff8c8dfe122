"""Publishing: a claim first, then the message; and what becomes of the claim where either fails."""

from contextlib import nullcontext
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from celery_redislock import DuplicateTask, LockKeyError, LockUnavailable, lock_acquired
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.testing import hold, locks_off
from tests.unit.shop import Down, Shop, body, carried, debts, raising


def test_the_claim_is_there_before_the_message_that_carries_it(shop: Shop, monkeypatch: Any) -> None:
    """Law 1: a message on its way without its claim could be overtaken. Law 10: one request."""
    task, seen, sending, mine = shop.unique(body), [], shop.app.send_task, {"trace": "abc"}

    def send(*args: Any, **kwargs: Any) -> Any:
        seen.append(shop.held())
        return sending(*args, **kwargs)

    monkeypatch.setattr(shop.app, "send_task", send)
    result = task.apply_async((7,), task_id="mine", headers=mine)

    (held,) = seen
    ((key, claim),) = held.items()
    message = shop.message()
    header = carried(message)
    assert (claim.owner, claim.state, claim.message) == ("mine", "queued", claim.token)
    assert header == Message(key, claim.token, claimed=True)
    assert (result.id, result.is_duplicate, shop.store.calls) == ("mine", False, ["acquire"])
    assert (message.headers["trace"], mine) == ("abc", {"trace": "abc"})  # the user's own stay


@pytest.mark.parametrize("is_held", [False, True])
def test_a_claim_is_announced_where_there_is_one(shop: Shop, *, is_held: bool) -> None:
    """``lock_acquired``, with no lease yet."""
    task, heard = shop.unique(body, on_conflict="retry"), []

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((sender, facts["task_id"], facts["key"], facts["lease"]))

    lock_acquired.connect(listen, sender=task)
    if is_held:
        shop.store.acquire(task.lock_for(7).key, "somebody/x", 30, facts="{}")
    result = task.delay(7)
    assert heard == ([] if is_held else [(task, result.id, *shop.held(), None)])


@pytest.mark.parametrize("error", [OSError("gone"), KeyboardInterrupt(), Down()], ids=repr)
@pytest.mark.parametrize("lock", ["until_executed", "until_expired"])
def test_a_failed_publish_releases_claim_and_period(
    shop: Shop, monkeypatch: Any, lock: str, error: BaseException
) -> None:
    """Law 2: no message is on its way, so nothing may stand in the next one's way."""
    task = shop.unique(body, lock=lock, lock_period=50)
    with monkeypatch.context() as patch:
        patch.setattr(shop.app, "send_task", raising(error))
        with pytest.raises(type(error)) as raised:
            task.delay(7)
    assert raised.value is error
    assert shop.held() == {}
    assert not task.delay(7).is_duplicate


def test_a_failed_publish_without_a_server_owes_the_release(shop: Shop, monkeypatch: Any) -> None:
    """Law 9: what cannot be released now is released later; the publish raises its own error."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body)

    def fail(*_: Any, **__: Any) -> None:
        shop.store.failures = 1
        raise OSError("gone")

    monkeypatch.setattr(shop.app, "send_task", fail)
    with pytest.raises(OSError, match="gone"):
        task.delay(7)
    (release,) = owed
    release()
    assert shop.held() == {}


@pytest.mark.parametrize("policy", ["raise", "run"])
@pytest.mark.parametrize("was_sent", [True, False])
def test_without_a_lock_server_the_publish_does_as_its_task_says(
    shop: Shop, monkeypatch: Any, caplog: Any, was_sent: bool, policy: str
) -> None:
    """Law 9, ``on_lock_error``: the claim that a failed one may have taken is released later."""
    owed = debts(shop, monkeypatch)
    monkeypatch.setattr(LockUnavailable, "was_sent", was_sent)
    shop.store.failures = 1
    task = shop.unique(body, on_lock_error=policy)
    if policy == "raise":
        with pytest.raises(LockUnavailable):
            task.delay(7)
        assert (shop.messages(), len(owed)) == ([], was_sent)
        return
    result = task.delay(7)
    assert (result.is_duplicate, carried(shop.message()).claimed, shop.held()) == (False, False, {})
    assert f"publishing {task.name}[{result.id}] without a claim" in caplog.text


def test_a_key_of_another_kind_is_an_error_and_nothing_is_sent(shop: Shop) -> None:
    """That is an answer, and no outage: ``on_lock_error`` does not apply."""
    task = shop.unique(body, on_lock_error="run")
    shop.store.has_wrong_type("shop.sync")
    with pytest.raises(LockKeyError, match="holds a list, not a lock"):
        task.delay(7)
    assert shop.messages() == []


def grants_and_then(shop: Shop, error: BaseException) -> Any:
    """Return what grants what is asked for, and raises this instead of saying so."""
    acquire = shop.store.acquire

    def interrupted(*args: Any, **kwargs: Any) -> None:
        acquire(*args, **kwargs)
        raise error

    return interrupted


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SoftTimeLimitExceeded()], ids=repr)
def test_a_claim_whose_answer_none_awaited_is_released(shop: Shop, monkeypatch: Any, error: Any) -> None:
    """Laws 2 and 4: it was granted, and no message is on its way that would ever take it over."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock_period=50)
    with monkeypatch.context() as patch:
        patch.setattr(shop.store, "acquire", grants_and_then(shop, error))
        with pytest.raises(type(error)) as raised:
            task.delay(7)
    assert raised.value is error
    assert (len(shop.held()), shop.messages()) == (1, [])
    (release,) = owed
    release()
    assert shop.held() == {}
    assert not task.delay(7).is_duplicate


@pytest.mark.parametrize("options", [{}, {"group_id": "g"}])
@pytest.mark.parametrize("lock", ["until_executed", "until_executing", "until_expired"])
def test_a_claim_whose_answer_got_lost_does_not_stand_in_its_own_messages_way(
    shop: Shop, monkeypatch: Any, lock: str, options: dict[str, Any]
) -> None:
    """Law 2: the message's own run finds it by its token, and it is not released before."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock=lock, lock_period=50, on_lock_error="run")
    with monkeypatch.context() as patch:
        no_answer = LockUnavailable("memory", "acquire", "no answer")
        patch.setattr(shop.store, "acquire", grants_and_then(shop, no_answer))
        task.apply_async((7,), **options)
    message = shop.message()
    assert (len(shop.held()), carried(message).claimed, owed) == (1, False, [])
    assert shop.run(shop.receive(message)) == 7
    assert shop.messages() == []
    assert shop.held() == {} or lock == "until_expired"
    assert task.delay(7).is_duplicate  # within its period


@pytest.mark.parametrize("way", ["setting", "environment"])
def test_switched_off_everything_is_published_as_celery_does(shop: Shop, way: str) -> None:
    """The switch for an incident: no request, no header, and options of a call are still taken out."""
    task = shop.unique(body)
    shop.app.conf.redislock_enabled = way != "setting"
    with locks_off() if way == "environment" else nullcontext():
        results = [task.delay(7), task.apply_async((7,), lock_ttl=5)]
    assert [result.is_duplicate for result in results] == [False, False]
    assert [HEADER in message.headers for message in shop.messages()] == [False, False]
    assert shop.store.calls == []


@pytest.mark.parametrize(
    ("locks", "strategy", "outcome"),
    [
        (False, "skip", 7),
        (True, "skip", "first"),
        (True, "raise", DuplicateTask),
        (True, "retry", DuplicateTask),
    ],
)
def test_eager_mode_finds_duplicates_where_redislock_eager_is_set(
    shop: Shop, strategy: str, outcome: Any, *, locks: bool
) -> None:
    """Otherwise it asks nothing. What would run later raises: nobody would run it."""
    shop.app.conf.update(task_always_eager=True, redislock_eager=locks)
    task = shop.unique(body, on_conflict=strategy)
    with hold(task, 7, task_id="first"):
        shop.store.calls.clear()
        if outcome is DuplicateTask:
            with pytest.raises(DuplicateTask):
                task.delay(7)
        else:
            result = task.delay(7)
            assert (result.is_duplicate, result.id if locks else result.get()) == (locks, outcome)
        assert bool(shop.store.calls) is locks
    accepted = task.delay(7)

    assert (accepted.get(), accepted.is_duplicate, shop.held()) == (7, False, {})


def test_eager_mode_goes_by_the_calls_own_options(shop: Shop) -> None:
    """They travel in the header, in place as on the way."""
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    seen: list[Any] = []

    def terms(_task: Any) -> dict[str, int]:
        return {name: round(held.expires_in) for name, held in shop.held().items()}

    shop.noting(seen, terms).apply_async((7,), lock_key="account:{account_id}", lock_ttl=90)
    assert (seen, shop.held()) == ([{"account:7": 90}], {})


def test_eager_mode_runs_without_a_server_where_that_is_asked_for(shop: Shop, caplog: Any) -> None:
    """Law 9: ``on_lock_error="run"``, as everywhere."""
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    shop.store.failures = 2
    assert shop.unique(body, on_lock_error="run").delay(7).get() == 7
    assert "could not ask who holds" in caplog.text
    assert "without its lock" in caplog.text

"""How a run ends: its lock is released or handed on, and later copies of its message know of it."""

import time
from typing import Any

import pytest
from celery.exceptions import Ignore

from celery_redislock import SingletonTask, lock_acquired, lock_released
from celery_redislock.running.delivery import IN_HAND_OF
from celery_redislock.store.memory import MemoryStore
from tests.unit.shop import KEY, SCOPES, Shop, body, carried, debts, revoke


@pytest.mark.parametrize("scope", SCOPES)
def test_the_lock_is_released_before_what_follows_is_published(shop: Shop, scope: str) -> None:
    """Law 5: who is the next link finds the lock free."""
    seen: list[Any] = []
    task = shop.unique(body, lock_key=KEY, acks_late=True, **SCOPES[scope])
    link = shop.app.task(body, name="shop.link", shared=False)
    task.apply_async((7,), link=link.si(1))
    request = shop.receive()
    sending = shop.app.send_task

    def send(*args: Any, **kwargs: Any) -> Any:
        seen.append([state for _, state in shop.states()])
        return sending(*args, **kwargs)

    shop.app.send_task = send
    shop.run(request)
    assert seen == [["period"] * (scope == "until_expired")]


@pytest.mark.parametrize("way", ["a link", "a chain"])
def test_a_run_is_done_after_what_follows_it_is_published(shop: Shop, way: str) -> None:
    """Law 2: a worker that dies in between leaves a copy that runs, and no chain without its next link."""
    seen: list[Any] = []
    task = shop.unique(body, lock_key=KEY, acks_late=True)
    follows = shop.app.task(body, name="shop.follows", shared=False).si(1)
    if way == "a link":
        task.apply_async((7,), link=follows)
    else:
        (task.s(7) | follows).apply_async()
    request = shop.receive()
    sending = shop.app.send_task

    def send(*args: Any, **kwargs: Any) -> Any:
        seen.extend(shop.store.marks().values())
        return sending(*args, **kwargs)

    shop.app.send_task = send
    shop.run(request)
    assert (seen, [*shop.store.marks().values()]) == (["ending"], ["done"])


def test_trouble_with_the_release_changes_no_outcome(shop: Shop, caplog: Any) -> None:
    """Law 9: the body has run; what somebody else has made of its lock's key is not touched."""

    def sync(account_id: int) -> int:
        shop.store.has_wrong_type(KEY)
        return account_id

    task = shop.unique(sync, lock_key=KEY)
    with shop.running(task):
        assert task(7) == 7
    assert "could not release the hold on 'account:7'" in caplog.text


def test_a_lock_that_was_gone_at_the_end_is_warned_of_and_stays_anothers(shop: Shop, caplog: Any) -> None:
    """Law 3: only the holder releases."""

    def sync(account_id: int) -> None:
        shop.store.force_release(KEY)
        shop.store.acquire(KEY, "thief/x", 10, facts="{}")

    task = shop.unique(sync, lock_key=KEY)
    with shop.running(task):
        task(7)
    assert shop.held()[KEY].owner == "thief"
    assert "shop.sync[t1] no longer held 'account:7' when it ended" in caplog.text


def test_acquiring_and_releasing_are_announced(shop: Shop) -> None:
    """The signals ``lock_acquired`` and ``lock_released``, with their documented facts."""
    task = shop.unique(body, lock_key=KEY)
    heard: list[Any] = []

    def listen(signal: Any, sender: Any, **facts: Any) -> None:
        heard.append((signal, sender, facts["key"], facts["task_id"], facts["lease"].held))

    lock_acquired.connect(listen, sender=task)
    lock_released.connect(listen, sender=task)
    with shop.running(task):
        task(7)
    assert heard == [(lock_acquired, task, KEY, "t1", True), (lock_released, task, KEY, "t1", False)]


def test_the_first_of_several_messages_gets_the_claim_and_the_others_run_after_it(shop: Shop) -> None:
    """Law 7: several ``retry(throw=False)``; a retry takes over a queued claim of its own task id."""
    runs: list[int] = []

    def sync(self: Any, account_id: int) -> None:
        runs.append(self.request.retries)
        if not self.request.retries:
            self.retry(countdown=1, throw=False)
            self.retry(countdown=2, throw=False)

    shop.unique(sync, bind=True, lock_key=KEY).delay(7)
    shop.run()
    first, second = shop.messages()
    assert shop.states() == [(carried(first).token, "queued")]
    shop.run(shop.receive(second))
    shop.run(shop.receive(first))

    assert (runs, shop.held()) == ([0, 1, 1], {})


@pytest.mark.parametrize("thief", [False, True])
def test_a_lease_that_is_gone_becomes_no_claim_and_its_retry_waits(shop: Shop, *, thief: bool) -> None:
    """Law 3: nothing is acquired for a message that may be done by then."""

    def sync(self: Any, account_id: int) -> str:
        if self.request.retries:
            return "done"
        MemoryStore.force_release(shop.store, KEY)
        if thief:
            MemoryStore.acquire(shop.store, KEY, "thief/x", 10, facts="{}")
        raise self.retry(countdown=50)

    shop.unique(sync, bind=True, lock_key=KEY).delay(7)
    shop.run()

    assert [token for token, _ in shop.states()] == ["thief/x"] * thief
    if thief:
        assert isinstance(shop.run(), Ignore)
        shop.store.force_release(KEY)
    assert shop.run() == "done"


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("reason", ["revoked", "before_start fails", "its start is cut short"])
def test_a_retry_that_was_dropped_before_the_body_ended_gets_no_claim(
    shop: Shop, monkeypatch: Any, scope: str, reason: str
) -> None:
    """Law 4: whoever drops it marks it done, so that the lease is released instead."""
    debts(shop, monkeypatch)

    class Checked(SingletonTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            if self.request.retries and reason == "before_start fails":
                raise ValueError(reason)

    def sync(self: Any, account_id: int) -> None:
        self.retry(countdown=50, throw=False)
        retry = shop.receive()
        if reason == "revoked":
            revoke(retry)
        else:
            shop.store.failures = reason == "its start is cut short"
            shop.store.error = lambda _verb: ValueError(reason)
            shop.run(retry)

    shop.unique(sync, bind=True, base=Checked, lock_key=KEY, **SCOPES[scope]).delay(7)
    message = shop.message()
    shop.run(shop.receive(message))

    assert shop.states() == []


#: What may have put a copy of a message on its way that comes late.
COPIED: dict[str, dict[str, Any]] = {
    "nothing has": {},
    "no worker's name leads to it": {"is_named": False},
    "the worker restores nothing": {"restores": False},
    "it was delivered before": {"redelivered": True},
    "its publisher calls it a copy": {"said": {"was_delivered": True}},
    "another beat may send it": {"said": {"is_tick": True}},
    "it has waited by the clock": {"said": {"was_told": True}},
    "it has waited in line": {"said": {"parked_at": 1.0}},
    "its run took half the visibility timeout": {"took": 251.0},
}


@pytest.mark.parametrize("case", COPIED)
def test_done_lives_fifty_minutes_less_if_no_copy_can_come(shop: Shop, monkeypatch: Any, case: str) -> None:
    """Law 8: what its worker could not acknowledge any more is restored at once, and at last by kombu.

    Kombu does that by the visibility timeout and 400 s, if a worker was killed that was about to.
    """
    usual = {"is_named": True, "restores": True, "redelivered": False, "said": {}, "took": 249.0}
    how: dict[str, Any] = {**usual, **COPIED[case]}
    shop.app.conf.redislock_restore = how["restores"]
    shop.app.conf.broker_transport_options = {"visibility_timeout": 500}
    clock = time.time

    def work(account_id: int) -> int:
        monkeypatch.setattr(time, "time", lambda: clock() + how["took"])
        return account_id

    shop.unique(work, lock_key=KEY, acks_late=True).delay(7)
    message = shop.message()
    message.headers = carried(message)._replace(**how["said"]).added_to(message.headers)
    if how["is_named"]:
        message.properties[IN_HAND_OF] = "a worker"
    shop.run(shop.receive(message, redelivered=how["redelivered"]))

    lives = 500 + (600 if case == "nothing has" else 3600)
    shop.store.let_pass(lives - 1)
    assert list(shop.store.marks().values()) == ["done"]
    shop.store.let_pass(2)
    assert list(shop.store.marks().values()) == []


@pytest.mark.parametrize(
    ("scope", "acks_late", "calls"),
    [
        ("until_executed", False, ["acquire", "release"]),
        ("until_executed", True, ["acquire", "release", "mark_done"]),
        ("until_executing", False, ["release"]),
        ("until_expired", False, []),
    ],
)
def test_a_run_takes_one_request_to_start_and_one_to_release_and_one_for_its_mark(
    shop: Shop, scope: str, acks_late: bool, calls: list[str]
) -> None:
    """Law 10: nothing is asked for what the scope does not hold. A claim that is a period stays as it was."""
    shop.unique(body, lock_key=KEY, acks_late=acks_late, **SCOPES[scope]).delay(7)
    shop.store.calls.clear()
    shop.run()
    assert shop.store.calls == calls

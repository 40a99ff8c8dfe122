"""A tick of a schedule: the same message, whichever beat sends it, and however often."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import pytest
from celery import Task
from kombu import Queue

from celery_redislock.publishing.message import TICK, tick_id, tick_token
from celery_redislock.publishing.tick import Tick
from tests.unit.shop import KEY, SCOPES, Shop, body, carried

A_TICK = "shop/nightly@2026-06-01T12:00:00+00:00"
TASK_ID = tick_id(A_TICK)


def send(task: Any, **options: Any) -> Any:
    """Publish as a beat does."""
    return task.apply_async((7,), task_id=TASK_ID, headers={TICK: A_TICK}, **options)


def test_a_tick_has_an_identity_of_its_own_and_only_its_message_has_that(shop: Shop) -> None:
    """It follows from the entry and the moment. A body that passes its own headers on publishes a new job."""
    assert tick_id(A_TICK) == TASK_ID != tick_id(A_TICK.replace("nightly", "hourly"))
    assert tick_token({TICK: A_TICK}, TASK_ID) == f"{TASK_ID}/{TASK_ID[-12:]}"
    for headers, task_id in (
        ({TICK: A_TICK}, "another"),
        ({TICK: 5}, TASK_ID),
        ({}, TASK_ID),
        (None, TASK_ID),
    ):
        assert tick_token(headers, task_id) is None
    task = shop.unique(body)
    task.apply_async((8,), headers={TICK: A_TICK})
    # An id is its caller's word on what is the same.
    task.apply_async((9,), headers={TICK: A_TICK}, task_id="mine")
    task.apply_async((10,), headers={TICK: Tick(A_TICK)}, task_id="mine too")
    assert Tick.of({"headers": {TICK: Tick(A_TICK)}, "task_id": "mine"}) is None
    messages = shop.messages()
    assert messages[0].headers["id"] != TASK_ID
    assert [message.headers["id"] for message in messages[1:]] == ["mine", "mine too"]
    assert [carried(message).is_tick for message in messages] == [False] * 3


def test_a_tick_is_published_again_while_its_claim_is_there_and_else_skipped_without_a_state(
    shop: Shop,
) -> None:
    """Law 2: the first beat may have died between the claim and the message.

    Overlap is the task's own matter; nobody waits for the id of a tick, so none is stored.
    """
    task = shop.unique(body)
    results = [send(task), send(task)]
    headers = [carried(message) for message in shop.messages()]
    assert [(each.id, each.is_duplicate) for each in results] == [(TASK_ID, False)] * 2
    assert headers[0] == headers[1]
    assert headers[0].is_tick
    ((key, held),) = shop.held().items()
    assert held.token == headers[0].token
    shop.store.force_release(key)
    holder = task.delay(7)
    skipped = send(task)

    assert (skipped.id, skipped.is_duplicate) == (holder.id, True)
    assert shop.app.AsyncResult(TASK_ID).state == "PENDING"


def test_a_retry_of_a_ticks_run_is_a_message_of_its_own(shop: Shop) -> None:
    """Law 8: with the tick's identity it would be taken for a copy of what has run."""

    def again(self: Any, account_id: int) -> int:
        if not self.request.retries:
            raise self.retry(countdown=0)
        return account_id

    task = shop.unique(again, bind=True, lock_key=KEY)
    send(task)
    message = shop.message()
    shop.run(shop.receive(message))
    retry = shop.message()

    assert retry.headers["id"] == TASK_ID
    assert carried(retry).token != carried(message).token
    assert not carried(retry).is_tick
    assert shop.run(shop.receive(retry)) == 7


@pytest.mark.parametrize("is_imported", [True, False], ids=["imported by beat", "by its name"])
def test_a_copy_of_a_tick_that_has_run_only_releases_its_claim(shop: Shop, is_imported: bool) -> None:
    """Law 8, acknowledged early as well; also where beat knows the task by its name only."""
    runs: list[str] = []
    task = shop.noting(runs, lambda task: task.request.id, lock_key=KEY)
    for _ in range(2):
        if is_imported:
            send(task)
        else:
            options: Any = {"task_id": TASK_ID, "headers": {TICK: A_TICK}}
            Task.apply_async(task, (7,), **options)
        shop.run(shop.receive(shop.message()))
    assert runs == [TASK_ID]
    assert shop.held() == {}


#: What tells the messages of two tenants apart.
APART: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "an argument": lambda tenant: {"args": (tenant,)},
    "a keyword": lambda tenant: {"args": (), "kwargs": {"account_id": tenant}},
    "the key": lambda tenant: {"lock_key": f"account of {tenant}"},
    "a header": lambda tenant: {"headers": {"tenant": tenant}},
    "the queue": lambda tenant: {"queue": Queue(tenant)},
}


def publish_for(tenants: Iterable[str], task: Any, apart: Callable[[str], dict[str, Any]]) -> list[str]:
    """Publish a message of a tick for each of these, as one beat does; return their task ids."""
    tick = Tick(A_TICK)
    ids = []
    for tenant in tenants:
        options = {"args": (7,), **apart(tenant)}
        # What is handed on may have been copied in depth.
        headers = deepcopy({TICK: tick, **options.pop("headers", {})})
        ids.append(task.apply_async(**options, headers=headers).id)
    assert tick.ids == ids
    return ids


@pytest.mark.parametrize("apart", APART.values(), ids=APART)
def test_each_message_of_a_tick_has_an_identity_that_is_the_same_in_whatever_order_they_are_sent(
    shop: Shop, apart: Callable[[str], dict[str, Any]]
) -> None:
    """Law 2: the first of another beat may be another tenant's; equal ones are told by their number."""
    task = shop.unique(body, lock="while_executing")
    eu, us, again = publish_for(["eu", "us", "eu"], task, apart)
    assert len({eu, us, again}) == 3
    assert publish_for(["us", "eu", "eu"], task, apart) == [us, eu, again]
    assert publish_for(["eu"], task, apart) == [eu]


def test_messages_of_two_tasks_of_one_tick_have_two_identities(shop: Shop) -> None:
    """They may have the same key and the same arguments."""
    options: dict[str, Any] = {"lock": "while_executing", "lock_key": "database"}
    tick = Tick(A_TICK)
    results = [
        shop.unique(body, name=name, **options).apply_async((7,), headers={TICK: tick})
        for name in ("shop.one", "shop.other")
    ]
    assert len({result.id for result in results}) == 2


@pytest.mark.parametrize("lock", SCOPES)
def test_each_message_of_a_tick_runs_once_though_two_beats_send_all(shop: Shop, lock: str) -> None:
    """Laws 2 and 8: none is a copy of another one, and each is the copy of its own."""
    runs: list[int] = []
    task = shop.noting(runs, lambda task: task.request.args[0], **SCOPES[lock])
    for order in ([1, 2], [2, 1]):
        tick = Tick(A_TICK)
        for number in order:
            task.apply_async((number,), headers={TICK: tick})
        for message in shop.messages():
            assert carried(message).is_tick
            assert carried(message).token == tick_token(message.headers, message.headers["id"])
            shop.run(shop.receive(message))
    assert runs == [1, 2]
    assert shop.held() == {} or lock == "until_expired"

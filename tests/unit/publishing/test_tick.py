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


def test_a_tick_has_an_identity_of_its_own_and_keeps_it() -> None:
    """It follows from the entry and the moment: nothing else of a dead beat is left."""
    other = tick_id(A_TICK.replace("nightly", "hourly"))

    assert tick_id(A_TICK) == TASK_ID != other
    assert tick_token({TICK: A_TICK}, TASK_ID) == f"{TASK_ID}/{TASK_ID[-12:]}"


@pytest.mark.parametrize(
    ("headers", "task_id"),
    [({TICK: A_TICK}, "another"), ({TICK: 5}, TASK_ID), ({}, TASK_ID), (None, TASK_ID)],
)
def test_only_the_message_of_a_tick_has_its_identity(headers: Any, task_id: str) -> None:
    """A body that passes its own headers on, or another program's, publishes a new job."""
    assert tick_token(headers, task_id) is None


def test_a_tick_that_is_sent_again_while_its_claim_is_there_is_published_again(shop: Shop) -> None:
    """Law 2: the first beat may have died between the claim and the message."""
    task = shop.unique(body)
    results = [send(task), send(task)]
    headers = [carried(message) for message in shop.messages()]

    assert [(each.id, each.is_duplicate) for each in results] == [(TASK_ID, False)] * 2
    assert headers[0] == headers[1]
    assert headers[0].is_tick
    assert {hold.token for hold in shop.held().values()} == {headers[0].token}


def test_a_tick_that_another_call_keeps_out_is_skipped_without_a_state(shop: Shop) -> None:
    """Overlap is the task's own matter; nobody waits for the id of a tick, so none is stored."""
    task = shop.unique(body)
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


def test_a_call_of_a_body_that_copies_a_ticks_headers_is_a_new_job(shop: Shop) -> None:
    """A child that copied its parent's headers is no tick."""
    task = shop.unique(body)
    task.apply_async((8,), headers={TICK: A_TICK})
    task.apply_async((9,), headers={TICK: A_TICK}, task_id="mine")
    first, second = shop.messages()

    assert first.headers["id"] != TASK_ID
    assert second.headers["id"] == "mine"
    assert not carried(first).is_tick
    assert not carried(second).is_tick


@pytest.mark.parametrize("is_imported", [True, False], ids=["imported by beat", "by its name"])
def test_a_copy_of_a_tick_that_has_run_does_nothing_and_releases_its_claim(
    shop: Shop, is_imported: bool
) -> None:
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


# --- one tick, several messages --------------------------------------------------------------

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


@pytest.mark.parametrize("lock", ["until_executed", "until_and_while_executing"])
def test_a_message_of_a_tick_holds_its_lock_under_its_own_id(shop: Shop, lock: str) -> None:
    """So that a revoke, a skip's answer and the commands find it."""
    task = shop.unique(body, lock=lock)
    tick = Tick(A_TICK)
    result = task.apply_async((7,), headers={TICK: tick})

    assert [hold.owner for hold in shop.held().values()] == [result.id]
    assert shop.message().headers["id"] == result.id == tick.ids[0]


def test_a_message_of_a_tick_keeps_an_id_that_its_caller_gives(shop: Shop) -> None:
    """It is the caller's word on what is the same."""
    task = shop.unique(body)
    task.apply_async((7,), task_id="mine", headers={TICK: Tick(A_TICK)})
    message = shop.message()

    assert message.headers["id"] == "mine"
    assert not carried(message).is_tick


def test_a_message_whose_task_id_is_given_keeps_it() -> None:
    """A tick gives an identity where there is none."""
    headers = {TICK: Tick("tick")}

    assert Tick.of({"headers": headers}) is not None
    assert Tick.of({"headers": headers, "task_id": "mine"}) is None

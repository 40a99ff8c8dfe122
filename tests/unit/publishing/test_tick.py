"""A tick of a schedule: the same message, whichever beat sends it, and however often."""

from typing import Any

import pytest
from celery import Task

from celery_redislock.publishing.message import TICK, tick_id, tick_token
from tests.unit.shop import KEY, Shop, body, carried

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

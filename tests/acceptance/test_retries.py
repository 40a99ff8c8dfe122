"""Law 7: a task that publishes itself again keeps its lock, and waiting for one costs it no retry."""

import time

import pytest

from tests.acceptance.harness import Shop, wait_until


def test_a_waiting_retry_keeps_duplicates_out(any_shop: Shop, key: str) -> None:
    """Law 7: the lease becomes a claim until the retry starts; the key is never free in between."""
    result = any_shop.sell.delay(key, 0.1, "retry", {"countdown": 1})
    any_shop.wait_started(key)
    duplicates, seen_free = [], []
    while len(any_shop.bodies(key)) < 2:
        if any_shop.holder(key) is None and len(any_shop.bodies(key)) < 2:
            seen_free.append(time.monotonic())
        duplicates.append(any_shop.sell.delay(key))

    assert result.get(timeout=10) == f"{key} done"
    assert len(duplicates) > 10
    assert {duplicate.id for duplicate in duplicates} == {result.id}
    assert seen_free == []
    assert [body.retries for body in any_shop.bodies(key)] == [0, 1]


@pytest.mark.parametrize(
    ("ending", "more"),
    [
        ("retry", {"times": 3}),
        ("retry_quietly", {"lingering": 0.5}),
        ("retry_lingering", None),
    ],
)
def test_a_retry_never_overlaps_the_body_that_asked_for_it(
    any_shop: Shop, key: str, ending: str, more: object
) -> None:
    """Laws 1 and 7: the retry's message is published when the body has unwound, however it ended."""
    result = any_shop.sell.delay(key, 0.1, ending, more)
    any_shop.wait_ended(key, 4 if ending == "retry" else 2)
    wait_until(lambda: result.state == "SUCCESS", 5.0, "the last run's result")

    assert any_shop.overlaps(key) == []
    assert any_shop.holder(key) is None


def test_an_automatic_retry_keeps_the_lock_and_its_budget(any_shop: Shop, key: str) -> None:
    """Law 7: ``autoretry_for`` retries as often as it was told, under one lock after the other."""
    result = any_shop.sell_stubbornly.delay(key, 0.05, "fail")
    with pytest.raises(ValueError, match="failed"):
        result.get(timeout=10)

    assert [body.retries for body in any_shop.bodies(key)] == [0, 1, 2]
    assert any_shop.overlaps(key) == []
    assert any_shop.holder(key) is None


def test_waiting_for_a_lock_spends_no_retry(any_shop: Shop, key: str) -> None:
    """Law 7: one retry allowed, many waits before it: it still has its one retry."""
    first = any_shop.serve.delay(key, 1.5)
    any_shop.wait_started(key)
    second = any_shop.serve_once.delay(key, 0.0, "exhaust")
    with pytest.raises(ValueError, match="failed"):
        second.get(timeout=15)

    first.get(timeout=5)
    waits = [line for line in any_shop.lines("comes back later") if second.id in line]
    assert [body.retries for body in any_shop.bodies(key) if body.task_id == second.id] == [0, 1]
    assert len(waits) >= 2
    assert any_shop.overlaps(key) == []


def test_a_task_may_replace_itself(any_shop: Shop, key: str) -> None:
    """Law 7: the replacement has the same id and key, and is no duplicate."""
    result = any_shop.sell.delay(key, 0.1, "replace", ["shop.sell", key])

    assert result.get(timeout=10) == f"{key} done"
    assert [body.task_id for body in any_shop.bodies(key)] == [result.id] * 2
    assert any_shop.overlaps(key) == []


def test_a_task_may_be_replaced_by_another_on_the_same_resource(any_shop: Shop, key: str) -> None:
    """Law 7: what counts is the key, not the task."""
    result = any_shop.serve.delay(key, 0.1, "replace", ["shop.serve_too", key])

    assert result.get(timeout=10) == f"{key} done"
    assert [body.name for body in any_shop.bodies(key)] == ["shop.serve", "shop.serve_too"]
    assert any_shop.overlaps(key) == []


def test_a_replacement_with_another_key_takes_its_own_lock(any_shop: Shop, key: str) -> None:
    """Law 7: and the replaced task's lock is free."""
    result = any_shop.sell.delay(key, 0.0, "replace", ["shop.sell", f"{key}-other", 0.5])
    any_shop.wait_started(f"{key}-other")

    assert any_shop.holder(key) is None
    assert any_shop.sell.delay(f"{key}-other").is_duplicate
    assert result.get(timeout=10) == f"{key}-other done"


def test_a_retry_that_cannot_be_published_frees_the_lock(any_shop: Shop, key: str) -> None:
    """Laws 4 and 7: no message is on its way, so nothing may be held for it."""
    result = any_shop.sell.delay(key, 0.0, "retry_badly")
    any_shop.wait_ended(key)

    wait_until(lambda: any_shop.holder(key) is None, 2.0, "the lock is free")
    assert result.state != "SUCCESS"
    assert any_shop.sell.delay(key).get(timeout=10) == f"{key} done"

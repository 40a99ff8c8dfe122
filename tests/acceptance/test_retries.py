"""Law 7: a task that publishes itself again keeps its lock, and waiting for one costs it no retry."""

import pytest

from tests.acceptance.harness import PATIENCE, Shop, wait_until


def test_a_waiting_retry_keeps_duplicates_out(any_shop: Shop, key: str) -> None:
    """Law 7: the lease becomes a claim until the retry starts; the key is never free in between."""
    holders, duplicates = [], []
    with any_shop.kept_on(f"{key} retried"):
        result = any_shop.sell.delay(key, 0.1, "retry", {"countdown": 1.5})
        while len(any_shop.bodies(key)) < 2:
            holders.append(any_shop.holder(key))
            duplicates.append(any_shop.sell.delay(key))

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert len(duplicates) > 3
    assert {duplicate.id for duplicate in duplicates} == {result.id}
    assert {holder and holder.owner for holder in holders} == {result.id}
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
    result = any_shop.sell.apply_async((key, 0.1, ending, more), lock_ttl=10 * PATIENCE)
    any_shop.wait_ended(key, 4 if ending == "retry" else 2)
    wait_until(lambda: result.state == "SUCCESS", PATIENCE, "the last run's result")
    # The body that asked may have left that state, while the last run is still giving its lock back.
    any_shop.wait_free(key)

    assert any_shop.overlaps(key) == []


def test_an_automatic_retry_keeps_the_lock_and_its_budget(any_shop: Shop, key: str) -> None:
    """Law 7: ``autoretry_for`` retries as often as it was told, under one lock after the other."""
    result = any_shop.sell_stubbornly.delay(key, 0.05, "fail")
    with pytest.raises(ValueError, match="failed"):
        result.get(timeout=PATIENCE)

    assert [body.retries for body in any_shop.bodies(key)] == [0, 1, 2]
    assert any_shop.overlaps(key) == []
    assert any_shop.holder(key) is None


def test_waiting_for_a_lock_spends_no_retry(any_shop: Shop, key: str) -> None:
    """Law 7: one retry allowed, many waits before it: it still has its one retry."""
    with any_shop.running(any_shop.serve, key) as first:
        second = any_shop.serve_once.delay(key, 0.0, "exhaust")
        any_shop.wait_lines("comes back later", second.id, number=2)
    with pytest.raises(ValueError, match="failed"):
        second.get(timeout=PATIENCE)

    first.get(timeout=PATIENCE)
    assert [body.retries for body in any_shop.bodies(key) if body.task_id == second.id] == [0, 1]
    assert any_shop.overlaps(key) == []


def test_a_task_may_replace_itself(any_shop: Shop, key: str) -> None:
    """Law 7: the replacement has the same id and key, and is no duplicate."""
    result = any_shop.sell.delay(key, 0.1, "replace", ["shop.sell", key])

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [body.task_id for body in any_shop.bodies(key)] == [result.id] * 2
    assert any_shop.overlaps(key) == []


def test_a_task_may_be_replaced_by_another_on_the_same_resource(any_shop: Shop, key: str) -> None:
    """Law 7: what counts is the key, not the task."""
    result = any_shop.serve.delay(key, 0.1, "replace", ["shop.serve_too", key])

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [body.name for body in any_shop.bodies(key)] == ["shop.serve", "shop.serve_too"]
    assert any_shop.overlaps(key) == []


def test_a_replacement_with_another_key_takes_its_own_lock(any_shop: Shop, key: str) -> None:
    """Law 7: and the replaced task's lock is free."""
    with any_shop.kept_on(f"{key}-other"):
        call = (key, 0.0, "replace", ["shop.sell", f"{key}-other"])
        result = any_shop.sell.apply_async(call, lock_ttl=10 * PATIENCE)
        any_shop.wait_started(f"{key}-other")
        other = any_shop.sell.delay(f"{key}-other")
        # The new task may have begun before the old one has given its lock back.
        any_shop.wait_free(key)

    assert other.is_duplicate
    assert result.get(timeout=PATIENCE) == f"{key}-other done"


def test_a_retry_that_cannot_be_published_frees_the_lock(any_shop: Shop, key: str) -> None:
    """Laws 4 and 7: no message is on its way, so nothing may be held for it."""
    result = any_shop.sell.apply_async((key, 0.0, "retry_badly"), lock_ttl=10 * PATIENCE)
    any_shop.wait_ended(key)

    # Long before its lease expires, so it was given back.
    any_shop.wait_free(key)
    assert result.state != "SUCCESS"
    assert any_shop.sell.delay(key).get(timeout=PATIENCE) == f"{key} done"

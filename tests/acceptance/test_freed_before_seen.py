"""Law 5: who has seen a task's result, or is the next link of its chain, finds the lock free."""

import pytest
from celery import chain

from tests.acceptance.harness import PATIENCE, Shop


def test_no_publish_after_get_is_a_duplicate(any_shop: Shop, key: str) -> None:
    """Law 5: 300 times ``get(); delay()`` makes 300 runs."""
    duplicates = 0
    for _ in range(300):
        result = any_shop.sell.delay(key)
        duplicates += result.is_duplicate
        result.get(timeout=PATIENCE)

    assert duplicates == 0
    assert len(any_shop.bodies(key)) == 300


def test_a_chain_of_the_same_call_finishes(any_shop: Shop, key: str) -> None:
    """Law 5: the next link is published when the lock of this one is free already."""
    for _ in range(10):
        chain(any_shop.sell.si(key), any_shop.sell.si(key)).apply_async().get(timeout=PATIENCE)

    assert len(any_shop.bodies(key)) == 20
    assert any_shop.overlaps(key) == []


def test_an_errback_of_the_same_key_finds_the_lock_free(any_shop: Shop, key: str) -> None:
    """Law 5 for failures: error callbacks are published after the release."""
    result = any_shop.sell.apply_async((key, 0.0, "fail"), link_error=any_shop.sell.si(key))
    with pytest.raises(ValueError, match="failed"):
        result.get(timeout=PATIENCE)

    bodies = any_shop.wait_ended(key, 2)
    assert [body.ended_by for body in bodies] == ["ValueError", ""]

"""Law 5: who has seen a task's result, or is the next link of its chain, finds the lock free."""

import celery
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


#: Before 5.7 Celery stores no outcome for a rejected task, nor (it cannot encode it) for a SystemExit.
STORES_EVERY_END = celery.VERSION >= (5, 7)
ENDS_SEEN_BY_GET = [None, "fail", "unserialisable", "exhaust", *(["reject"] if STORES_EVERY_END else [])]


@pytest.mark.parametrize("ending", ENDS_SEEN_BY_GET)
def test_the_lock_is_free_when_get_returns(any_shop: Shop, key: str, ending: str | None) -> None:
    """Law 5: whatever ends the run, its outcome is stored after the release."""
    result = any_shop.sell.apply_async((key, 0.05, ending))
    result.get(timeout=PATIENCE, propagate=False)

    assert any_shop.holder(key) is None
    assert result.successful() == (ending is None)


def test_the_lock_is_free_when_get_returns_from_a_soft_time_limit(prefork_shop: Shop, key: str) -> None:
    """Law 5: ``SoftTimeLimitExceeded`` is an error like others."""
    with prefork_shop.kept_on(key):
        result = prefork_shop.sell_softly.delay(key)
        result.get(timeout=PATIENCE, propagate=False)

    assert prefork_shop.holder(key) is None
    assert type(result.result).__name__ == "SoftTimeLimitExceeded"


@pytest.mark.skipif(not STORES_EVERY_END, reason="Celery before 5.7 cannot store a SystemExit")
def test_the_lock_is_free_when_get_returns_from_a_system_exit(prefork_shop: Shop, key: str) -> None:
    """Law 5 where the child ends with its run: the main process stores the outcome after the release."""
    result = prefork_shop.sell.delay(key, 0.05, "exit")
    result.get(timeout=PATIENCE, propagate=False)

    assert prefork_shop.holder(key) is None
    assert type(result.result).__name__ == "WorkerLostError"


@pytest.mark.parametrize("ending", ["ignore", "reject", "exit"])
def test_a_run_without_an_outcome_frees_the_lock(any_shop: Shop, key: str, ending: str) -> None:
    """Law 4: ``Ignore`` and ``SystemExit`` end a run like everything else."""
    if ending == "exit" and "solo" in any_shop.pool:
        pytest.skip("SystemExit ends a solo worker")
    any_shop.sell.apply_async((key, 0.05, ending), lock_ttl=10 * PATIENCE)
    any_shop.wait_ended(key)

    # Long before its lease expires, so it was given back; for a child that has ended, by the main process.
    any_shop.wait_free(key)


def test_an_error_in_before_start_frees_the_lock(any_shop: Shop, key: str) -> None:
    """Law 5: the claim of a run that never entered its body is given back before the failure is stored."""
    result = any_shop.stumble.delay(key)
    with pytest.raises(ValueError, match="stumbled"):
        result.get(timeout=PATIENCE)

    assert any_shop.holder(key) is None
    assert any_shop.bodies(key) == []

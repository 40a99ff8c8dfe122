"""Holders that cannot renew: stopped with all their processes, or cut off, and what they learn of it."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.acceptance.harness import Shop, wait_until
from tests.tiers import slow


def _pool(name: str) -> object:
    return name if name == "prefork" else slow(name)


@pytest.mark.parametrize("pool", [_pool("prefork"), _pool("threads"), _pool("solo")])
def test_a_worker_stopped_for_longer_than_a_lease_learns_that_it_lost_its_lock(
    new_shop: Callable[..., Shop], key: str, pool: str
) -> None:
    """Laws 1 and 3: the next one gets the lock; the first is told when it wakes, and harms nobody."""
    shop = new_shop()
    # With late acknowledgement and one place, a worker that is busy has asked the broker for nothing more.
    shop.start_workers(2, pool, "--prefetch-multiplier", "1", concurrency=1)
    with shop.kept_on(key):
        first = shop.sell_late_and_tell.delay(key, 0.0, "look_at_lease")
        stopped = shop.wait_started(key)
        os.killpg(stopped.worker, signal.SIGSTOP)
        try:
            shop.wait_free(key, 10.0)
            again = (key, 0.0, "doze", 2.0)
            # So long a lease that a slow machine is no second loss.
            second = shop.sell_late_and_tell.apply_async(again, lock_ttl=20.0)
            running = shop.wait_started(key, 2)
        finally:
            os.killpg(stopped.worker, signal.SIGCONT)
        wait_until(lambda: stopped.token in shop.notes("lost leases"), 10.0, "the first is told")
    error = first.get(timeout=10, propagate=False)
    holder = shop.holder(key)

    assert holder is not None
    assert holder.token == running.token
    assert (type(error).__name__, error.fence) == ("LockLost", stopped.fence)
    assert second.get(timeout=15) == f"{key} done"
    assert stopped.fence is not None
    assert running.fence is not None
    assert stopped.fence < running.fence
    assert shop.notes("lost leases") == [stopped.token]
    assert shop.violations(key) == []
    shop.wait_free(key, 5.0)


@pytest.mark.parametrize("way", ["taken away", "stopped"])
def test_a_body_on_prefork_ends_within_a_second_of_its_loss(
    new_shop: Callable[..., Shop], key: str, way: str
) -> None:
    """``terminate``: out of a sleep, counted from the moment the loss is noticed."""
    shop = new_shop()
    worker = shop.start_worker("prefork")
    result = shop.sell_or_stop.delay(key, 0.0, "doze", 20.0)
    shop.wait_started(key)
    _lose(shop, key, way, worker.process.pid)

    assert _ended_after_notice(shop, key, result.id) < 1.0
    assert type(result.get(timeout=10, propagate=False)).__name__ == "LockLost"
    assert len(shop.bodies(key)) == 1


def test_a_body_in_a_thread_ends_at_its_next_bytecode(shop_on: Callable[[str], Shop], key: str) -> None:
    """``terminate``: counted from the moment the loss is noticed."""
    shop = shop_on("threads")
    result = shop.sell_or_stop.delay(key, 0.0, "spin", 20.0)
    shop.wait_started(key)
    _lose(shop, key, "taken away", 0)

    assert _ended_after_notice(shop, key, result.id) < 1.0
    assert type(result.get(timeout=10, propagate=False)).__name__ == "LockLost"


def test_a_body_that_is_stopped_publishes_no_retry_and_holds_nothing(prefork_shop: Shop, key: str) -> None:
    """Law 3: the interruption ends the body; what comes after it, the release, is whole."""
    results = []
    for number in range(4):
        result = prefork_shop.sell_or_stop.delay(key, 0.0, "doze", 20.0)
        prefork_shop.wait_started(key, number + 1)
        _lose(prefork_shop, key, "taken away", 0)
        prefork_shop.wait_ended(key, number + 1)
        results.append(type(result.get(timeout=10, propagate=False)).__name__)

    assert results == ["LockLost"] * 4
    assert [body.ended_by for body in prefork_shop.bodies(key)] == ["LockLost"] * 4
    prefork_shop.wait_free(key, 5.0)
    assert prefork_shop.sell_or_stop.delay(key).get(timeout=10) == f"{key} done"


def _lose(shop: Shop, key: str, way: str, pid: int) -> None:
    if way == "taken away":
        shop.sell.lock_for(key).release(reason="a test")
        return
    os.killpg(pid, signal.SIGSTOP)
    try:
        shop.wait_free(key, 10.0)
    finally:
        os.killpg(pid, signal.SIGCONT)


def _ended_after_notice(shop: Shop, key: str, task_id: str) -> float:
    wait_until(lambda: shop.notes(f"noticed {task_id}"), 10.0, "the loss is noticed")
    (body,) = shop.wait_ended(key)
    assert body.ended_by == "LockLost"
    noticed: float = shop.notes(f"noticed {task_id}")[0]
    assert noticed <= time.monotonic()
    return body.end - noticed

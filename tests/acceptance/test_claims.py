"""A claim lives as long as a worker has its message in hand."""

import time

import pytest

from tests.acceptance.conftest import ShopMaker
from tests.acceptance.harness import Shop, wait_until

#: Far less than the message waits, and as many renewals in between.
QUEUE_TTL = 0.6


def is_received(shop: Shop, task_id: str) -> bool:
    return any(task_id in line for line in shop.lines("received"))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_message_that_waits_for_a_free_slot_keeps_its_claim(
    new_shop: ShopMaker, key: str, pool: str
) -> None:
    """Prefetched, it waits in the pool (threads: in the executor's queue) for longer than its claim lives."""
    shop = new_shop(conf={"worker_prefetch_multiplier": 4})
    shop.start_worker(pool, concurrency=1)
    first = shop.sell.delay(key, 4.0)
    shop.wait_started(key)
    second = shop.sell.apply_async((f"{key}-waiting",), lock_queue_ttl=QUEUE_TTL)
    wait_until(lambda: is_received(shop, second.id), 5.0, "the worker has the second message")
    received_at = time.monotonic()
    wait_until(lambda: time.monotonic() > received_at + 2 * QUEUE_TTL, 5.0, "its claim would have run out")
    duplicate = shop.sell.delay(f"{key}-waiting")

    assert shop.bodies(f"{key}-waiting") == []
    assert (duplicate.is_duplicate, duplicate.id) == (True, second.id)
    assert second.get(timeout=10) == f"{key}-waiting done"
    assert first.get(timeout=10) == f"{key} done"
    assert len(shop.bodies(f"{key}-waiting")) == 1

"""A claim lives as long as a worker has its message in hand."""

import pytest

from tests.acceptance.conftest import ShopMaker
from tests.acceptance.harness import PATIENCE, throughout

#: Less than the message waits, with renewals in between.
QUEUE_TTL = 4.0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_message_that_waits_for_a_free_slot_keeps_its_claim(
    new_shop: ShopMaker, key: str, pool: str
) -> None:
    """Prefetched, it waits in the pool (threads: in the executor's queue) for longer than its claim lives."""
    shop = new_shop(conf={"worker_prefetch_multiplier": 4})
    shop.start_worker(pool, concurrency=1)
    with shop.running(shop.sell, key) as first:
        second = shop.sell.apply_async((f"{key}-waiting",), lock_queue_ttl=QUEUE_TTL)
        shop.wait_lines("received", second.id)
        # Its claim would have run out.
        holders = throughout(1.5 * QUEUE_TTL, lambda: shop.holder(f"{key}-waiting"))
        duplicate = shop.sell.delay(f"{key}-waiting")
        assert shop.bodies(f"{key}-waiting") == []

    assert {holder and holder.owner for holder in holders} == {second.id}
    assert (duplicate.is_duplicate, duplicate.id) == (True, second.id)
    assert second.get(timeout=PATIENCE) == f"{key}-waiting done"
    assert first.get(timeout=PATIENCE) == f"{key} done"
    assert len(shop.bodies(f"{key}-waiting")) == 1

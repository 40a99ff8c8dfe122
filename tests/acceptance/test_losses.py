"""Law 2: nothing more is lost than a plain Celery task would lose."""

import logging
from collections.abc import Callable

import pytest
from kombu.exceptions import OperationalError

from tests.acceptance.harness import PATIENCE, Shop, throughout, wait_until
from tests.acceptance.messages import captured, deliver
from tests.servers import EmbeddedServer


def test_a_retry_that_lost_its_claim_waits_for_the_new_holder(any_shop: Shop, key: str) -> None:
    """Law 2: only a fresh publish may be dropped, never a retry."""
    first = any_shop.sell.delay(key, 0.0, "retry", {"queue": "aside"})
    retry = wait_until(lambda: captured(any_shop, if_any=True), PATIENCE, "the retry is published")
    assert any_shop.sell.lock_for(key).release(reason="a test", only="queued")
    with any_shop.running(any_shop.sell, key) as second:
        deliver(any_shop, retry)
        any_shop.wait_lines("comes back later", first.id)

    assert not second.is_duplicate
    assert first.get(timeout=PATIENCE) == f"{key} done"
    assert second.get(timeout=PATIENCE) == f"{key} done"
    assert [body.task_id for body in any_shop.bodies(key)] == [first.id, second.id, first.id]
    assert any_shop.overlaps(key) == []


def test_a_redelivered_message_without_a_claim_waits_for_the_holder(any_shop: Shop, key: str) -> None:
    """Law 2: a message the broker delivers again is not dropped because somebody else came first."""
    any_shop.app.send_task("shop.sell", (key,), queue="aside")
    message = captured(any_shop)
    with any_shop.running(any_shop.sell, key) as holder:
        deliver(any_shop, message, again=True)
        any_shop.wait_lines("comes back later", message["headers"]["id"])
    bodies = any_shop.wait_ended(key, 2)

    assert [body.task_id for body in bodies] == [holder.id, message["headers"]["id"]]
    assert any_shop.overlaps(key) == []


def test_a_publish_the_broker_refuses_gives_its_claim_back(
    new_shop: Callable[..., Shop], celery_url: str, key: str
) -> None:
    """Law 2: no message is on its way, so no claim may stand in the way of the next."""
    with EmbeddedServer() as broker:
        shop = new_shop(
            broker=broker.url,
            backend=celery_url,
            conf={"redislock_url": celery_url, "task_publish_retry": False},
        )
        shop.sell.delay(f"{key}-before")
        broker.kill()
        with pytest.raises(OperationalError):
            shop.sell.delay(key)

        assert shop.holder(key) is None
        assert shop.holder(f"{key}-before") is not None


def test_a_task_whose_claim_expired_in_the_queue_runs(new_shop: Callable[..., Shop], key: str) -> None:
    """Law 2: a queue slower than ``lock_queue_ttl`` loses uniqueness, loudly, and no work."""
    shop = new_shop()
    result = shop.sell.apply_async((key,), lock_queue_ttl=0.3)
    shop.wait_free(key)
    shop.start_worker("prefork", concurrency=1)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    (line,) = shop.lines("was gone when it started")
    assert "WARNING" in line
    assert "lock_queue_ttl" in line


def test_claims_of_a_purged_queue_can_be_released(
    new_shop: Callable[..., Shop], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Law 2: a claim whose message is gone is ended by an operator, who cannot hit a run by mistake."""
    shop = new_shop()
    purged = shop.sell.delay(key)
    assert shop.app.control.purge() == 1
    assert shop.sell.delay(key).id == purged.id
    with caplog.at_level(logging.WARNING, "celery_redislock"):
        released = shop.sell.lock_for(key).release(reason="purged", only="queued")

    assert released is not None
    assert released.owner == purged.id
    assert "purged" in caplog.text
    assert not shop.sell.delay(key).is_duplicate


def test_releasing_the_queued_spares_a_run(prefork_shop: Shop, key: str) -> None:
    """Law 3: ``only="queued"`` never takes the lock from a run."""
    with prefork_shop.running(prefork_shop.sell, key) as result:
        released = prefork_shop.sell.lock_for(key).release(reason="a test", only="queued")
        holder = prefork_shop.holder(key)

    assert released is None
    assert holder is not None
    assert (holder.owner, holder.state) == (result.id, "running")


def test_the_worker_renews_claims_of_messages_it_holds(new_shop: Callable[..., Shop], key: str) -> None:
    """Law 2: a message that waits in a worker keeps its claim, however short its TTL."""
    shop = new_shop()
    shop.start_worker("prefork", "--prefetch-multiplier", "4", concurrency=1)
    ttl = 1.5
    with shop.running(shop.sell, f"{key}-first"):
        waiting = shop.sell.apply_async((key,), lock_queue_ttl=ttl)
        holders = throughout(2.5 * ttl, lambda: shop.holder(key))

    assert {holder and holder.owner for holder in holders} == {waiting.id}
    assert waiting.get(timeout=PATIENCE) == f"{key} done"
    assert shop.lines("was gone when it started") == []

"""Law 9: trouble with the lock server is a decision, not an accident."""

import time
from collections.abc import Callable

import pytest

from celery_redislock import LockUnavailable
from celery_redislock.embedded import EmbeddedServer
from tests.acceptance.harness import PATIENCE, Shop, wait_until


@pytest.fixture
def shop(new_shop: Callable[..., Shop], lock_server: EmbeddedServer) -> Shop:
    """A shop whose locks are on a server of their own."""
    return new_shop(conf={"redislock_url": lock_server.url})


@pytest.mark.parametrize("trouble", ["pause", "kill"])
def test_a_publish_without_a_lock_server_fails_in_bounded_time(
    shop: Shop, lock_server: EmbeddedServer, key: str, trouble: str
) -> None:
    """Law 9: ``raise``: within two socket timeouts, and nothing is published."""
    getattr(lock_server, trouble)()
    began = time.monotonic()
    with pytest.raises(LockUnavailable):
        shop.sell.delay(key)

    assert time.monotonic() - began < 2 * 0.3 + 0.4
    assert shop.queued() == 0


def test_a_claim_whose_answer_got_lost_is_given_back(
    shop: Shop, lock_server: EmbeddedServer, key: str
) -> None:
    """Law 9: the paused server may carry the claim out once it goes on; it does not stay."""
    shop.sell.delay(f"{key}-before")  # from now on the server knows the script
    lock_server.pause()
    with pytest.raises(LockUnavailable):
        shop.sell.delay(key)
    lock_server.resume()

    shop.wait_free(key, 5.0)
    assert not shop.sell.delay(key).is_duplicate


def test_a_publish_may_go_on_without_a_lock_server(shop: Shop, lock_server: EmbeddedServer, key: str) -> None:
    """Law 9: ``run``: published without a claim, and run without a lock, loudly."""
    lock_server.pause()
    result = shop.sell_regardless.delay(key)
    shop.start_worker("prefork")

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [line for line in shop.lines("WITHOUT its lock") if "WARNING" in line]
    assert shop.bodies(key)[0].token is None


@pytest.mark.parametrize("trouble", ["pause", "kill"])
def test_a_start_without_a_lock_server_is_put_off(
    shop: Shop, lock_server: EmbeddedServer, key: str, trouble: str
) -> None:
    """Law 9: the worker tries for ``redislock_start_timeout``, then publishes the task again."""
    result = shop.sell.delay(key)
    getattr(lock_server, trouble)()
    shop.start_worker("prefork")
    wait_until(lambda: shop.lines("cannot start"), 15.0, "it is put off")
    assert shop.bodies(key) == []
    lock_server.resume() if trouble == "pause" else lock_server.restart()

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert len(shop.bodies(key)) == 1


def test_a_lock_server_that_comes_back_in_time_delays_a_start(
    shop: Shop, lock_server: EmbeddedServer, key: str
) -> None:
    """Law 9: a short outage is waited out."""
    result = shop.sell.delay(key)
    shop.start_worker("prefork")
    result.get(timeout=PATIENCE)
    lock_server.pause()
    again = shop.sell.apply_async((key,), lock=None)
    again.get(timeout=PATIENCE)
    waiting = shop.app.send_task("shop.sell", (f"{key}-2",))
    time.sleep(0.5)
    lock_server.resume()

    assert waiting.get(timeout=PATIENCE) == f"{key}-2 done"
    assert shop.lines("cannot start") == []


def test_a_lock_that_could_not_be_given_back_is_given_back_later(
    shop: Shop, lock_server: EmbeddedServer, key: str
) -> None:
    """Law 9: the outcome is not held up, and the lock is free seconds after the server is back."""
    shop.start_worker("prefork")
    result = shop.sell.apply_async((key, 0.5), lock_ttl=30.0)
    shop.wait_started(key)
    lock_server.pause()
    assert result.get(timeout=PATIENCE) == f"{key} done"
    lock_server.resume()

    shop.wait_free(key, 5.0)


def test_a_run_outlives_an_outage_shorter_than_its_lease(
    shop: Shop, lock_server: EmbeddedServer, key: str
) -> None:
    """Law 9: renewals are repeated until the deadline; nothing is lost by one that got lost."""
    shop.start_worker("prefork")
    result = shop.sell.delay(key, 2.5)
    shop.wait_started(key)
    lock_server.pause()
    time.sleep(1.2)
    lock_server.resume()

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert shop.lines("lost its lock") == []


def test_a_run_whose_lease_could_not_be_renewed_counts_as_lost(
    shop: Shop, lock_server: EmbeddedServer, key: str
) -> None:
    """Law 9: after its deadline a lease is not trusted any more, whatever the server would say."""
    shop.start_worker("prefork")
    shop.sell.apply_async((key, 3.0), lock_ttl=1.0)
    body = shop.wait_started(key)
    lock_server.kill()
    wait_until(lambda: shop.lines("lost its lock"), 5.0, "the loss is noticed")

    assert time.monotonic() - body.start < 3.0

"""Law 9: trouble with the lock server is a decision, not an accident."""

import time
from collections.abc import Callable
from datetime import datetime

import pytest

from celery_redislock import LockUnavailable
from tests.acceptance.harness import PATIENCE, Shop, throughout, wait_until
from tests.acceptance.shop import SOCKET_TIMEOUT
from tests.servers import EmbeddedServer


@pytest.fixture
def shop(new_shop: Callable[..., Shop], lock_server: EmbeddedServer) -> Shop:
    """A shop whose locks are on a server of their own."""
    return new_shop(conf={"redislock_url": lock_server.url})


@pytest.mark.parametrize("trouble", ["pause", "kill"])
def test_a_publish_without_a_lock_server_fails_in_bounded_time(
    shop: Shop, lock_server: EmbeddedServer, key: str, trouble: str
) -> None:
    """Law 9: ``raise``: within two socket timeouts (less than three, measured), and nothing is published."""
    getattr(lock_server, trouble)()
    began = time.monotonic()
    with pytest.raises(LockUnavailable):
        shop.sell.delay(key)

    assert time.monotonic() - began < 3 * SOCKET_TIMEOUT
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

    shop.wait_free(key)
    assert not shop.sell.delay(key).is_duplicate


def test_a_publish_may_go_on_without_a_lock_server(shop: Shop, lock_server: EmbeddedServer, key: str) -> None:
    """Law 9: ``run``: published without a claim, and run without a lock, loudly."""
    lock_server.pause()
    result = shop.sell_regardless.delay(key)
    shop.start_worker("prefork")

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [line for line in shop.lines("without its lock") if "WARNING" in line]
    assert shop.bodies(key)[0].token is None


@pytest.mark.parametrize("trouble", ["pause", "kill"])
def test_a_start_without_a_lock_server_is_put_off(
    shop: Shop, lock_server: EmbeddedServer, key: str, trouble: str
) -> None:
    """Law 9: the worker tries for ``redislock_start_timeout``, then publishes the task again."""
    result = shop.sell.delay(key)
    getattr(lock_server, trouble)()
    shop.start_worker("prefork")
    shop.wait_lines("cannot start", result.id)
    assert shop.bodies(key) == []
    lock_server.resume() if trouble == "pause" else lock_server.restart()

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert len(shop.bodies(key)) == 1


def test_a_lock_server_that_comes_back_in_time_delays_a_start(
    new_shop: Callable[..., Shop], lock_server: EmbeddedServer, key: str
) -> None:
    """Law 9: a short outage is waited out."""
    shop = new_shop(conf={"redislock_url": lock_server.url, "redislock_start_timeout": PATIENCE})
    result = shop.sell.delay(key)
    shop.start_worker("prefork")
    result.get(timeout=PATIENCE)
    lock_server.pause()
    again = shop.sell.apply_async((key,), lock=None)
    again.get(timeout=PATIENCE)
    waiting = shop.app.send_task("shop.sell", (f"{key}-2",))
    shop.wait_lines("received", waiting.id)
    # Longer than one attempt to start it takes.
    begun = throughout(2.5 * SOCKET_TIMEOUT, lambda: shop.bodies(f"{key}-2"))
    lock_server.resume()

    assert not any(begun)
    assert waiting.get(timeout=PATIENCE) == f"{key}-2 done"
    assert shop.lines("cannot start") == []


def test_a_lock_that_could_not_be_given_back_is_given_back_later(
    shop: Shop, lock_server: EmbeddedServer, key: str
) -> None:
    """Law 9: the outcome is not held up, and the lock is free seconds after the server is back."""
    shop.start_worker("prefork")
    with shop.running(shop.sell, key, lock_ttl=10 * PATIENCE) as result:
        lock_server.pause()
    assert result.get(timeout=PATIENCE) == f"{key} done"
    lock_server.resume()

    shop.wait_free(key, 10.0)


def test_a_run_outlives_an_outage_shorter_than_its_lease(
    shop: Shop, lock_server: EmbeddedServer, key: str
) -> None:
    """Law 9: renewals are repeated until the deadline; nothing is lost by one that got lost."""
    shop.start_worker("prefork")
    ttl = 9.0
    with shop.running(shop.sell, key, lock_ttl=ttl) as result:
        lock_server.pause()
        # Longer than from one renewal to the next, so one at least fails.
        throughout(ttl / 3 + 0.5, lambda: None)
        lock_server.resume()
        wait_until(
            lambda: (holder := shop.holder(key)) is not None and holder.remaining > ttl * 2 / 3 - 0.1,
            PATIENCE,
            "it is renewed again",
        )

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert shop.lines("lost its lock") == []


def test_a_run_whose_lease_could_not_be_renewed_counts_as_lost(
    shop: Shop, lock_server: EmbeddedServer, key: str
) -> None:
    """Law 9: after its deadline a lease is not trusted any more, whatever the server would say."""
    shop.start_worker("prefork")
    with shop.running(shop.sell, key, lock_ttl=1.0) as result:
        lock_server.kill()
        killed = time.time()
        (line,) = shop.wait_lines("lost its lock", result.id)

    assert when_logged(line) - killed < 1.0 + 1.0


def when_logged(line: str) -> float:
    """Return when a worker wrote this line, in seconds since the epoch; logging writes local time."""
    return datetime.strptime(line[1:24], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()

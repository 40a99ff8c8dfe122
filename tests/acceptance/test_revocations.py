"""Law 4, locks die with their holder: what is revoked or expires, before it runs and while it does."""

import time
from collections.abc import Callable

import celery
import pytest
from celery.exceptions import TaskRevokedError

from tests.acceptance.harness import PATIENCE, Shop, throughout, wait_until

REVOKE_SIGNALS = ["SIGTERM", "SIGKILL"]
#: What "within seconds" means: the main process looks at its children every five, and a machine may be busy.
WITHIN_SECONDS = 10.0


@pytest.mark.parametrize("name", REVOKE_SIGNALS)
def test_terminating_a_run_frees_its_lock_when_it_has_ended(prefork_shop: Shop, key: str, name: str) -> None:
    """Law 4: free within seconds, never before the body has ended."""
    result = prefork_shop.sell.apply_async((key, 2 * PATIENCE), lock_ttl=10 * PATIENCE)
    prefork_shop.wait_started(key)
    prefork_shop.app.control.revoke(result.id, terminate=True, signal=name)
    free = prefork_shop.wait_free(key)

    (body,) = prefork_shop.bodies(key)
    assert free >= body.end
    assert free - body.end < WITHIN_SECONDS
    assert prefork_shop.sell.delay(key).get(timeout=PATIENCE) == f"{key} done"


def test_a_run_that_goes_on_after_its_termination_keeps_its_lock(
    new_shop: Callable[..., Shop], key: str
) -> None:
    """Law 4: ``task_revoked`` says that a signal was sent, not that the body has ended."""
    shop = new_shop()
    # A worker of its own: billiard takes any later end of this child for the termination.
    shop.start_worker("prefork", concurrency=1)
    ttl = 1.2
    with shop.kept_on(f"{key} refusing"):
        result = shop.sell.apply_async((key, 0.0, "swallow", 0.0), lock_ttl=ttl)
        wait_until(lambda: shop.notes(f"refusing {key}"), PATIENCE, "its body refuses to end")
        shop.app.control.revoke(result.id, terminate=True, signal="SIGTERM")
        wait_until(lambda: shop.notes(f"swallowed {key}"), PATIENCE, "the signal has come")
        holders = throughout(2.5 * ttl, lambda: shop.holder(key))
    free = shop.wait_free(key)

    (body,) = shop.bodies(key)
    assert {holder and holder.token for holder in holders} == {body.token}
    assert free >= body.end


def test_a_prefetched_task_that_is_revoked_frees_its_lock_in_its_turn(
    new_shop: Callable[..., Shop], key: str
) -> None:
    """Law 4: Celery looks at revocations when a pool slot is free; then the claim is given back."""
    shop = new_shop()
    shop.start_worker("prefork", "--prefetch-multiplier", "4", concurrency=1)
    with shop.running(shop.sell, f"{key}-first") as first:
        second = shop.sell.delay(key)
        shop.wait_lines("received", second.id)
        shop.app.control.revoke(second.id)
        shop.wait_lines("flagged as revoked", second.id)
    first.get(timeout=PATIENCE)
    with pytest.raises(TaskRevokedError):
        second.get(timeout=PATIENCE)
    shop.wait_free(key)

    assert shop.bodies(key) == []


def test_a_revoked_task_waiting_for_its_eta_frees_its_lock(prefork_shop: Shop, key: str) -> None:
    """Law 4: at its ETA, when Celery looks at it."""
    result = prefork_shop.sell.apply_async((key,), countdown=4.0)
    prefork_shop.wait_lines("received", result.id)
    prefork_shop.app.control.revoke(result.id)
    prefork_shop.wait_lines("flagged as revoked", result.id)
    assert prefork_shop.holder(key) is not None
    prefork_shop.wait_free(key)

    assert prefork_shop.bodies(key) == []
    assert not prefork_shop.sell.delay(key).is_duplicate


@pytest.mark.skipif(celery.VERSION < (5, 6), reason="until 5.6 nobody writes the state of such a message")
def test_a_message_revoked_before_any_worker_has_it_stands_in_nobodys_way(
    prefork_shop: Shop, key: str
) -> None:
    """Law 4: no hook fires for it, so a publish that is refused by its claim looks at its state."""
    waiting = prefork_shop.sell.apply_async((key,), queue="of-nobody")
    prefork_shop.app.control.revoke(waiting.id)
    wait_until(lambda: waiting.state == "REVOKED", PATIENCE, "a worker has heard of the revocation")

    again = wait_until(
        lambda: None if (result := prefork_shop.sell.delay(key)).is_duplicate else result,
        PATIENCE,
        "it is free",
    )

    assert again.get(timeout=PATIENCE) == f"{key} done"
    assert [body.task_id for body in prefork_shop.bodies(key)] == [again.id]


def test_a_task_that_expires_before_its_start_frees_its_lock(new_shop: Callable[..., Shop], key: str) -> None:
    """Law 4: what is expired never runs, so its claim is given back."""
    shop = new_shop()
    shop.start_worker("prefork", "--prefetch-multiplier", "4", concurrency=1)
    with shop.running(shop.sell, f"{key}-first"):
        late = shop.sell.apply_async((key,), expires=1.0)
        expired = time.monotonic() + 1.0
        wait_until(lambda: time.monotonic() > expired, PATIENCE, "it has expired")
    with pytest.raises(TaskRevokedError):
        late.get(timeout=PATIENCE)

    assert shop.holder(key) is None
    assert shop.bodies(key) == []

"""The laws where RabbitMQ carries the messages, from classic and from quorum queues; locks stay on Redis."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import chain, chord, group
from celery.exceptions import WorkerLostError

from tests.acceptance.harness import PATIENCE, Shop
from tests.acceptance.sites import Site
from tests.tiers import slow


@pytest.fixture(params=["quorum", slow("classic")])
def shop(request: pytest.FixtureRequest, site_on: Callable[..., Site]) -> Shop:
    """The shared shop of each kind of queue: two workers with two children each."""
    return site_on(request.param).man()


def test_fifty_callers_at_once_get_one_run(shop: Shop, key: str) -> None:
    """Law 1: of any number of publishers at once, one publishes."""
    with shop.kept_on(key), ThreadPoolExecutor(10) as callers:
        # Without results: before 5.7 Celery's own consumer of these is not for many threads.
        results = list(callers.map(lambda _: shop.sell_quietly.delay(key), range(50)))
        shop.wait_started(key)
    shop.wait_ended(key)

    assert len(shop.bodies(key)) == 1
    assert sum(not result.is_duplicate for result in results) == 1


def test_a_resource_is_used_in_turn_and_none_is_dropped(shop: Shop, key: str) -> None:
    """Laws 1 and 2: what is put off comes back through the broker."""
    results = [task.delay(key, 0.1) for _ in range(3) for task in (shop.serve, shop.serve_too)]
    for result in results:
        result.get(timeout=PATIENCE)

    assert len(shop.bodies(key)) == 6
    assert shop.overlaps(key) == []


@pytest.mark.slow
def test_a_message_that_is_put_off_often_is_not_lost(shop: Shop, key: str) -> None:
    """Law 2: with what the broker noted on it, it would go in circles by the second time, and be dropped."""
    with shop.kept_on(key):
        shop.serve.delay(key)
        shop.wait_started(key)
        second = shop.serve.apply_async((key,), lock_retry_delay=2.6)
        shop.wait_lines("comes back later", second.id, number=3)
    bodies = shop.wait_ended(key, 2)

    assert bodies[1].task_id == second.id
    assert shop.overlaps(key) == []


def test_a_killed_child_frees_its_lock_within_seconds(shop: Shop, key: str) -> None:
    """Law 4: the main process notices, releases, and only then stores the failure."""
    with shop.kept_on(key):
        result = shop.sell.delay(key)
        body = shop.wait_started(key)
        os.kill(body.pid, signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            result.get(timeout=PATIENCE)

        assert shop.holder(key) is None
    assert shop.sell.delay(key).get(timeout=PATIENCE) == f"{key} done"


def test_no_publish_after_get_is_a_duplicate(shop: Shop, key: str) -> None:
    """Law 5: a hundred times ``get(); delay()`` make a hundred runs."""
    duplicates = 0
    for _ in range(100):
        result = shop.sell.delay(key)
        duplicates += result.is_duplicate
        result.get(timeout=PATIENCE)

    assert duplicates == 0
    assert len(shop.bodies(key)) == 100


def test_a_chain_of_the_same_call_finishes(shop: Shop, key: str) -> None:
    """Law 5: the next link is published when the lock of this one is free already."""
    chain(*[shop.sell.si(key)] * 5).apply_async().get(timeout=PATIENCE)

    assert len(shop.bodies(key)) == 5
    assert shop.overlaps(key) == []


def test_a_chord_with_duplicates_completes(shop: Shop, key: str) -> None:
    """Law 6: they wait for the one that does the same work, and take its outcome."""
    sell = shop.sell
    with shop.kept_on(key):
        members = [sell.si(key), sell.si(f"{key}-other"), sell.si(key), sell.si(key)]
        result = chord(members)(shop.collect.s())
        shop.wait_started(key)
        shop.wait_lines("part of a workflow and waits", repr(shop.sell.lock_for(key).key))
    values = result.get(timeout=PATIENCE)

    assert values == [f"{key} done", f"{key}-other done", f"{key} done", f"{key} done"]
    assert len(shop.bodies(key)) == 1


def test_a_group_of_duplicates_completes(shop: Shop, key: str) -> None:
    """Law 6: every member of a group has a result."""
    with shop.kept_on(key):
        result = group([shop.sell.si(key)] * 8).apply_async()

    assert result.get(timeout=PATIENCE) == [f"{key} done"] * 8
    assert len(shop.bodies(key)) == 1


def test_a_waiting_retry_keeps_duplicates_out(shop: Shop, key: str) -> None:
    """Law 7: the lease becomes a claim until the retry starts, wherever its message waits."""
    result = shop.sell.delay(key, 0.1, "retry", {"countdown": 3})
    shop.wait_started(key)
    duplicates, seen_free = [], 0
    while len(shop.bodies(key)) < 2:
        seen_free += shop.holder(key) is None and len(shop.bodies(key)) < 2
        duplicates.append(shop.sell.delay(key))
        time.sleep(0.05)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert {duplicate.id for duplicate in duplicates} == {result.id}
    assert seen_free == 0
    first, second = shop.bodies(key)
    assert (first.retries, second.retries) == (0, 1)
    assert second.start - first.end >= 3.0 - 0.1


def test_retries_with_longer_and_longer_countdowns_all_come(shop: Shop, key: str) -> None:
    """Law 7: one message after the other goes down the broker's ladder, with the first one's headers."""
    result = shop.sell.delay(key, 0.0, "retry", {"countdown": 1, "times": 3})

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [body.retries for body in shop.bodies(key)] == [0, 1, 2, 3]
    assert shop.overlaps(key) == []


def test_a_countdown_is_kept_and_its_claim_with_it(shop: Shop, key: str) -> None:
    """Laws 2 and 7: the message runs at its ETA, and until then duplicates are refused."""
    published = time.monotonic()
    result = shop.sell.apply_async((key,), countdown=9, lock_queue_ttl=6.0)
    duplicate = shop.sell.delay(key)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    (body,) = shop.bodies(key)
    assert duplicate.is_duplicate
    assert body.start - published >= 9.0 - 0.1
    assert shop.lines("was gone when it started") == []

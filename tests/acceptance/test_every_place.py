"""Laws 3, 6, 9 and 10 on every broker and in every pool; the other modules have the others everywhere."""

import importlib.util
import time
from collections.abc import Callable, Iterator

import pytest
from celery import chord

from celery_redislock import LockUnavailable
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.server import store_of
from celery_redislock.locks.watchdog import watchdog_of
from tests.acceptance.harness import PATIENCE, Shop, wait_until
from tests.acceptance.shop import SOCKET_TIMEOUT
from tests.acceptance.sites import RABBITMQ_QUEUES, Site
from tests.faults import FaultyProxy
from tests.tiers import slow

POOLS = ("prefork", "threads", "gevent", "eventlet", "solo")

#: Where rows are only repetitions: other greenlets, one thread, and queues that deliver as quorum queues do.
SLOW = {"eventlet", "solo", "classic"}


@pytest.fixture(
    scope="module",
    params=[slow(place) if place in SLOW else place for place in (*POOLS, *RABBITMQ_QUEUES)],
)
def shop(
    request: pytest.FixtureRequest, open_site: Callable[..., Site], network: FaultyProxy
) -> Iterator[Shop]:
    """A shop with each pool on Redis, and with each kind of RabbitMQ's queues; its locks are elsewhere."""
    place = request.param
    if place in {"gevent", "eventlet"} and importlib.util.find_spec(place) is None:
        pytest.skip(f"{place} is not installed")
    # A lease that is not renewed meanwhile, as trips are counted, and a debt that outlives a slow test.
    conf = {"redislock_url": network.url, "redislock_ttl": 20.0}
    site = open_site(place, conf=conf) if place in RABBITMQ_QUEUES else open_site("redis", conf=conf)
    shop = site.shop
    pool = place if place in POOLS else "prefork"
    is_solo = pool == "solo"
    shop.start_workers(2 if is_solo else 1, pool, concurrency=1 if is_solo else 4)
    yield shop
    shop.close()


def test_a_run_ends_only_its_own_hold_everywhere(shop: Shop, key: str) -> None:
    """Law 3: released by force while it runs, its key is another's when it ends."""
    with shop.kept_on(f"{key}@returned"):
        first = shop.sell.delay(key)
        shop.wait_ended(key)
        shop.sell.lock_for(key).release(reason="a test")
        second = shop.sell.apply_async((key,), countdown=30)
    first.get(timeout=PATIENCE)

    holder = shop.holder(key)
    assert holder is not None
    assert (holder.owner, second.is_duplicate) == (second.id, False)
    shop.sell.lock_for(key).release(reason="the test is over")


def test_a_chord_with_duplicates_completes_everywhere(shop: Shop, key: str) -> None:
    """Law 6: they wait for the one that does the same work, and take its outcome."""
    with shop.kept_on(key):
        result = chord([shop.sell.si(key)] * 3)(shop.collect.s())
        shop.wait_started(key)
        shop.wait_lines("part of a workflow and waits", repr(shop.sell.lock_for(key).key))

    assert result.get(timeout=PATIENCE) == [f"{key} done"] * 3
    assert len(shop.bodies(key)) == 1


def test_without_a_lock_server_each_task_does_as_it_says(shop: Shop, network: FaultyProxy, key: str) -> None:
    """Law 9: ``raise`` within two socket timeouts (less than three, measured), or ``run`` without a lock."""
    network.black_hole()
    try:
        began = time.monotonic()
        with pytest.raises(LockUnavailable):
            shop.sell.delay(key)
        took = time.monotonic() - began
        unlocked = shop.sell_regardless.delay(f"{key}-regardless")
        value = unlocked.get(timeout=PATIENCE)
    finally:
        network.heal()

    # What could not be asked for is given back, in the caller and in the worker: the next test counts trips.
    shop.wait_lines("gave back the hold on", f"{key}-regardless")
    watchdog = watchdog_of(store_of(shop.app, declaration_of(shop.sell).settings))
    wait_until(lambda: not watchdog.owes, PATIENCE, "the caller gives back what it asked for")

    assert took < 3 * SOCKET_TIMEOUT
    assert value == f"{key}-regardless done"
    assert [body.token for body in shop.bodies(f"{key}-regardless")] == [None]
    assert shop.sell.delay(key).get(timeout=PATIENCE) == f"{key} done"


def test_a_task_costs_three_trips_to_the_lock_server(shop: Shop, network: FaultyProxy, key: str) -> None:
    """Law 10: one to publish, one to start, one to end; counted between the processes and their server."""
    shop.sell.delay(f"{key}-before").get(timeout=PATIENCE)
    before = network.requests
    for number in range(10):
        # So long a lease that none is renewed, however slow the machine is.
        shop.sell.apply_async((f"{key}-{number}",), lock_ttl=60.0).get(timeout=PATIENCE)

    assert network.requests - before == 30

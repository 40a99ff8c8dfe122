"""Real workers whose way to the lock server is faulty; broker and results are reached all the time.

A representative part of what ``tests/integration/test_task_faults.py`` tries row by row in one process.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from celery.result import AsyncResult

from celery_redislock import LockUnavailable
from tests.acceptance.harness import PATIENCE, Shop
from tests.acceptance.shop import SOCKET_TIMEOUT
from tests.faults import Fault, FaultyProxy
from tests.tiers import slow

T = TypeVar("T")

#: What each operation is a part of: the arguments of the call, and how many bodies it has.
CALLS: dict[str, tuple[tuple[object, ...], int]] = {
    "claim": ((0.2,), 1),
    "start": ((0.2,), 1),
    "renew": ((2.0,), 1),
    "release": ((0.2,), 1),
    "transfer": ((0.2, "retry"), 2),
}


@pytest.fixture(autouse=True)
def _well_again(network: FaultyProxy) -> Iterator[None]:
    yield
    network.heal()


@pytest.mark.parametrize("times", [1, slow(2), 5])
@pytest.mark.parametrize(
    "fault", [Fault.REQUEST_LOST, Fault.SILENCE, Fault.RESET_IN_REPLY], ids=lambda fault: fault.name
)
@pytest.mark.parametrize("operation", CALLS)
def test_a_fault_loses_no_task_and_leaves_no_lock(
    faulty_shop: Shop, network: FaultyProxy, key: str, operation: str, fault: Fault, times: int
) -> None:
    """Laws 1, 2, 4 and 9: the publisher is told, or the body runs; then the lock is free within seconds."""
    arguments, bodies = CALLS[operation]
    network.fail(fault, of=operation, at=range(1, times + 1))
    began = time.monotonic()
    published = _publish(faulty_shop, key, *arguments)
    has_tried_for_long = time.monotonic() - began >= 2 * SOCKET_TIMEOUT - 0.1

    assert (published is not None) or has_tried_for_long or (operation == "claim" and times > 1)
    if published is not None:
        assert published.get(timeout=20) == f"{key} done"
    _until_answered(lambda: faulty_shop.wait_free(key, 8.0))
    network.heal()
    assert _until_answered(lambda: faulty_shop.sell.delay(key)).get(timeout=20) == f"{key} done"
    assert len(faulty_shop.bodies(key)) == (bodies if published is not None else 0) + 1
    assert faulty_shop.violations(key) == []


def _until_answered(ask: Callable[[], T]) -> T:
    """Ask again where the machine stood still for longer than two socket timeouts, which is no fault here."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except LockUnavailable:
            if time.monotonic() > deadline:
                raise


@pytest.mark.parametrize("connection", ["new", "standing"])
def test_a_black_hole_costs_a_publish_two_socket_timeouts(
    new_shop: Callable[..., Shop], network: FaultyProxy, key: str, connection: str
) -> None:
    """Law 9: with the default timeout too; it accepts connections and never answers."""
    shop = new_shop(conf={"redislock_url": network.url, "redislock_socket_timeout": 1.0})
    if connection == "standing":
        shop.sell.delay(f"{key}-before")
    network.black_hole()
    began = time.monotonic()
    with pytest.raises(LockUnavailable):
        shop.sell.delay(key)
    took = time.monotonic() - began
    network.heal()

    assert 1.9 < took < 2.5
    assert shop.queued() == (connection == "standing")
    assert not shop.sell.delay(key).is_duplicate


def test_a_history_of_many_tasks_and_faults_keeps_the_law(
    faulty_shop: Shop, network: FaultyProxy, key: str
) -> None:
    """Laws 1 and 2: whatever becomes of every sixth call, bodies of a key keep apart and each runs once."""
    keys, chance = [f"{key}{number}" for number in range(3)], random.Random(7)  # noqa: S311  not for secrets
    published: list[AsyncResult] = []
    before = network.fired
    for fault in Fault:
        network.fail(fault, at={chance.randrange(1, 300) for _ in range(8)})
    for number in range(60):
        result = _publish(faulty_shop, keys[number % 3], 0.1, task="serve")
        published += [result] if result is not None else []
    until = time.monotonic() + 40
    ready = 0
    while ready < len(published) and time.monotonic() < until:
        ready = sum(result.ready() for result in published)
        time.sleep(0.1)
    network.heal()
    for result in published:
        result.get(timeout=30)

    for each in keys:
        assert faulty_shop.violations(each) == []
        faulty_shop.wait_free(each, 8.0)
    ran = [body.task_id for each in keys for body in faulty_shop.bodies(each)]
    assert sorted(ran) == sorted(result.id for result in published)
    assert network.fired - before > 15


def _publish(shop: Shop, key: str, *arguments: object, task: str = "sell") -> AsyncResult | None:
    try:
        result: AsyncResult = getattr(shop, task).delay(key, *arguments)
    except LockUnavailable:
        return None
    return result

"""Law 1, mutual exclusion: never two runs at once on one key."""

import time
from concurrent.futures import ThreadPoolExecutor

from tests.acceptance.harness import Shop


def test_fifty_callers_at_once_get_one_run(any_shop: Shop, key: str) -> None:
    """Law 1: of any number of publishers at once, one publishes; the others get its result."""
    with ThreadPoolExecutor(10) as callers:
        results = list(callers.map(lambda _: any_shop.sell.delay(key, 0.3), range(50)))

    assert {result.get(timeout=10) for result in results} == {f"{key} done"}
    assert len(any_shop.bodies(key)) == 1
    assert sum(not result.is_duplicate for result in results) == 1


def test_a_task_longer_than_its_ttl_is_never_joined(any_shop: Shop, key: str) -> None:
    """Law 1: the lease is renewed for as long as the body takes."""
    result = any_shop.sell.apply_async((key, 2.0), lock_ttl=0.6)
    any_shop.wait_started(key)
    duplicates = []
    while not result.ready():
        duplicates.append(any_shop.sell.apply_async((key, 0.1), lock_ttl=0.6))
        time.sleep(0.2)

    assert len(duplicates) > 5
    assert all(duplicate.id == result.id for duplicate in duplicates[:-1])
    assert any_shop.overlaps(key) == []


def test_two_tasks_on_one_resource_run_in_turn_and_none_is_dropped(any_shop: Shop, key: str) -> None:
    """Laws 1 and 2: ``while_executing`` serialises every task that names the resource."""
    results = [task.delay(key, 0.1) for _ in range(4) for task in (any_shop.serve, any_shop.serve_too)]
    for result in results:
        result.get(timeout=30)

    bodies = any_shop.bodies(key)
    assert len(bodies) == 8
    assert {body.name for body in bodies} == {"shop.serve", "shop.serve_too"}
    assert any_shop.overlaps(key) == []


def test_fences_grow_from_run_to_run(any_shop: Shop, key: str) -> None:
    """A later run's fence is larger, so that a database can refuse an earlier one's writes."""
    for _ in range(3):
        any_shop.sell.delay(key).get(timeout=10)

    fences = [body.fence or 0 for body in any_shop.bodies(key)]
    assert all(fences)
    assert fences == sorted(set(fences))

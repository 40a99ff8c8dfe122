"""Law 1, mutual exclusion: never two runs at once on one key."""

from concurrent.futures import ThreadPoolExecutor

from tests.acceptance.harness import PATIENCE, Shop, throughout


def test_fifty_callers_at_once_get_one_run(any_shop: Shop, key: str) -> None:
    """Law 1: of any number of publishers at once, one publishes; the others get its result."""
    with any_shop.kept_on(key), ThreadPoolExecutor(10) as callers:
        results = list(callers.map(lambda _: any_shop.sell.delay(key), range(50)))

    assert {result.get(timeout=PATIENCE) for result in results} == {f"{key} done"}
    assert len(any_shop.bodies(key)) == 1
    assert sum(not result.is_duplicate for result in results) == 1


def test_a_task_longer_than_its_ttl_is_never_joined(any_shop: Shop, key: str) -> None:
    """Law 1: the lease is renewed for as long as the body takes."""
    ttl = 4.0
    with any_shop.running(any_shop.sell, key, lock_ttl=ttl) as result:
        others = throughout(1.5 * ttl, lambda: any_shop.sell.apply_async((key,), lock_ttl=ttl))
    result.get(timeout=PATIENCE)

    assert {other.id for other in others} == {result.id}
    assert len(any_shop.bodies(key)) == 1


def test_two_tasks_on_one_resource_run_in_turn_and_none_is_dropped(any_shop: Shop, key: str) -> None:
    """Laws 1 and 2: ``while_executing`` serialises every task that names the resource."""
    results = [task.delay(key, 0.1) for _ in range(4) for task in (any_shop.serve, any_shop.serve_too)]
    for result in results:
        result.get(timeout=PATIENCE)

    bodies = any_shop.bodies(key)
    assert len(bodies) == 8
    assert {body.name for body in bodies} == {"shop.serve", "shop.serve_too"}
    assert any_shop.overlaps(key) == []


def test_fences_grow_from_run_to_run(any_shop: Shop, key: str) -> None:
    """A later run's fence is larger, so that a database can refuse an earlier one's writes."""
    for _ in range(3):
        any_shop.sell.delay(key).get(timeout=PATIENCE)

    fences = [body.fence or 0 for body in any_shop.bodies(key)]
    assert all(fences)
    assert fences == sorted(set(fences))

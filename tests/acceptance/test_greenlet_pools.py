"""Workers with ``-P gevent`` and ``-P eventlet``: a hundred bodies in one process, one renewing greenlet."""

from collections.abc import Callable

import pytest

from tests.acceptance.harness import Shop


@pytest.fixture(params=["gevent", "eventlet"])
def greenlet_shop(request: pytest.FixtureRequest, new_shop: Callable[..., Shop]) -> Shop:
    """A shop whose one worker runs a hundred at once."""
    pytest.importorskip(request.param)
    shop = new_shop()
    shop.start_worker(request.param, concurrency=100)
    return shop


def test_a_hundred_tasks_on_ten_keys_run_in_turn_and_none_is_dropped(greenlet_shop: Shop, key: str) -> None:
    """Laws 1 and 2."""
    keys = [f"{key}-{number}" for number in range(10)]
    results = [greenlet_shop.serve.delay(each, 0.1) for _ in range(10) for each in keys]
    for result in results:
        result.get(timeout=100)

    for each in keys:
        assert len(greenlet_shop.bodies(each)) == 10
        assert greenlet_shop.overlaps(each) == []
        assert greenlet_shop.holder(each) is None


@pytest.mark.slow
def test_a_hundred_leases_outlive_their_ttl(greenlet_shop: Shop, key: str) -> None:
    """All are renewed while their bodies wait; duplicates find them held."""
    keys = [f"{key}-{number}" for number in range(100)]
    with greenlet_shop.kept_on(*keys):
        results = [greenlet_shop.sell.apply_async((each, 8.0), lock_ttl=5.0) for each in keys]
        for each in keys:
            greenlet_shop.wait_started(each, timeout=30.0)
        tokens = {greenlet_shop.holder(each).token for each in keys}  # type: ignore[union-attr]  # held
    for result in results:
        result.get(timeout=60)

    assert len(tokens) == 100
    assert greenlet_shop.lines("lost its lock") == []
    assert all(len(greenlet_shop.bodies(each)) == 1 for each in keys)
    assert all(greenlet_shop.holder(each) is None for each in keys)

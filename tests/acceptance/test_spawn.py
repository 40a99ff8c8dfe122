"""``worker_pool_start_method = "spawn"`` (Celery 5.7): children that inherit nothing of the main process."""

import os
import signal
from collections.abc import Callable
from typing import Any

import celery
import pytest

from tests.acceptance.harness import Shop, Worker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        tuple(map(int, celery.__version__.split(".")[:2])) < (5, 7), reason="before 5.7 pools always fork"
    ),
]


@pytest.fixture
def spawned_shop(new_shop: Callable[..., Shop]) -> Shop:
    """A shop whose worker spawns four children."""
    shop = new_shop(conf={"worker_pool_start_method": "spawn"})
    shop.workers.append(Worker(shop.plan, "prefork", 4, (), app="tests.acceptance.spawned"))
    shop.workers[0].wait_ready()
    return shop


def _serve(shop: Shop, key: str, seconds: float = 0.0) -> Any:
    """Publish by name: the task is another app's."""
    return shop.app.send_task("spawned.serve", (key, seconds))


def test_spawned_children_exclude_each_other_and_renew(spawned_shop: Shop, key: str) -> None:
    """Each makes the app, its store and its watchdog anew."""
    results = [_serve(spawned_shop, key, 0.3) for _ in range(6)]
    long = _serve(spawned_shop, f"{key}-long", 5.0)
    for result in [*results, long]:
        result.get(timeout=60)

    bodies = spawned_shop.bodies(key)
    assert len(bodies) == 6
    assert all(body.token for body in bodies)
    assert spawned_shop.overlaps(key) == []
    assert spawned_shop.lines("lost its lock") == []
    assert spawned_shop.holder(key) is None
    assert spawned_shop.holder(f"{key}-long") is None


def test_the_main_process_frees_what_a_killed_spawned_child_held(spawned_shop: Shop, key: str) -> None:
    """Law 4: within seconds."""
    with spawned_shop.kept_on(key):
        _serve(spawned_shop, key)
        body = spawned_shop.wait_started(key, timeout=30.0)
        assert body.pid != spawned_shop.workers[0].process.pid
        os.kill(body.pid, signal.SIGKILL)
        spawned_shop.wait_free(key, 10.0)

    assert _serve(spawned_shop, key).get(timeout=60) == f"{key} done"

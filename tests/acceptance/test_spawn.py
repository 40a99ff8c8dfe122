"""``worker_pool_start_method = "spawn"`` (Celery 5.7): children that inherit nothing of the main process."""

import os
import signal
from collections.abc import Callable
from typing import Any

import celery
import pytest

from tests.acceptance.harness import Project, Worker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        tuple(map(int, celery.__version__.split(".")[:2])) < (5, 7), reason="before 5.7 pools always fork"
    ),
]


@pytest.fixture
def spawned(new_project: Callable[..., Project]) -> Project:
    """A project whose worker spawns four children."""
    project = new_project(conf={"worker_pool_start_method": "spawn"})
    project.workers.append(Worker(project.plan, "prefork", 4, (), app="tests.acceptance.spawned"))
    project.workers[0].wait_ready()
    return project


def _publish(project: Project, key: str, seconds: float = 0.0) -> Any:
    """Publish by name: the task is another app's."""
    return project.app.send_task("spawned.while_executing", (key, seconds))


def test_spawned_children_exclude_each_other_and_renew(spawned: Project, key: str) -> None:
    """Each makes the app, its store and its watchdog anew."""
    results = [_publish(spawned, key, 0.3) for _ in range(6)]
    long = _publish(spawned, f"{key}-long", 5.0)
    for result in [*results, long]:
        result.get(timeout=60)

    bodies = spawned.bodies(key)
    assert len(bodies) == 6
    assert all(body.token for body in bodies)
    assert spawned.overlaps(key) == []
    assert spawned.lines("lost its lock") == []
    assert spawned.holder(key) is None
    assert spawned.holder(f"{key}-long") is None


def test_the_main_process_frees_what_a_killed_spawned_child_held(spawned: Project, key: str) -> None:
    """Law 4: within seconds."""
    with spawned.kept_on(key):
        _publish(spawned, key)
        body = spawned.wait_started(key, timeout=30.0)
        assert body.pid != spawned.workers[0].process.pid
        os.kill(body.pid, signal.SIGKILL)
        spawned.wait_free(key, 10.0)

    assert _publish(spawned, key).get(timeout=60) == f"{key} done"

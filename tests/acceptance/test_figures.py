"""What workers and publishers add up before they tell the lock server."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from celery_redislock.declaring.server import store_of
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE

CALLS = 7


def counted(project: Project, what: str) -> int:
    """What the lock server has counted of the task."""
    return store_of(project.app).counts().numbers.get(("project.executed", what), 0)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_every_run_is_counted_within_seconds_and_before_a_worker_ends(
    new_project: Callable[..., Project], key: str, pool: str
) -> None:
    """A pool's child ends without exit functions: Celery's signal writes what it has added up."""
    project = new_project()
    worker = project.start_worker(pool)
    for result in [project.executed.delay(f"{key}{number}") for number in range(CALLS)]:
        result.get(timeout=PATIENCE)
    wait_until(lambda: counted(project, "started") == CALLS, PATIENCE, "all runs are counted")
    for result in [project.executed.delay(f"{key}{number}") for number in range(CALLS)]:
        result.get(timeout=PATIENCE)
    worker.signal(signal.SIGTERM)
    worker.process.wait(PATIENCE)

    assert counted(project, "started") == 2 * CALLS


def test_a_publisher_that_ends_has_told_of_every_refusal(
    new_project: Callable[..., Project], key: str
) -> None:
    """It ends long before its thread would write."""
    project = new_project()
    publisher = (
        "import json, sys; from tests.acceptance.project import open_project;"
        "app = open_project(json.loads(sys.argv[1]));"
        f"task = app.tasks['project.executed']; [task.delay({key!r}) for _ in range({CALLS} + 1)]"
    )
    subprocess.run([sys.executable, "-c", publisher, json.dumps(project.plan)], check=True, timeout=60)

    assert counted(project, "skipped") == CALLS

"""What workers and publishers add up before they tell the lock server."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from celery_redislock.declaring.server import store_of
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE
from tests.tiers import slow

CALLS = 7


def counted(project: Project, what: str) -> int:
    """What the lock server has counted of the task."""
    return store_of(project.app).counts().numbers.get(("project.executed", what), 0)


@pytest.mark.parametrize(
    "pool",
    [["prefork"], ["gevent"], ["prefork", "--max-tasks-per-child", "1"], slow(["threads"]), slow(["solo"])],
    ids=" ".join,
)
def test_every_run_is_counted_soon(new_project: Callable[..., Project], key: str, pool: list[str]) -> None:
    """By a thread of the process of the body, beside greenlets, too; a child that ends at once tells, too."""
    project = new_project()
    project.start_worker(*pool)
    for result in [project.executed.delay(f"{key}{number}") for number in range(CALLS)]:
        result.get(timeout=PATIENCE)
    wait_until(lambda: counted(project, "started") == CALLS, PATIENCE, "all runs are counted")


@pytest.mark.parametrize("ends", ["publish()", "multiprocessing.Process(target=publish).start()"])
def test_a_publisher_that_ends_has_told_all(new_project: Callable[..., Project], key: str, ends: str) -> None:
    """It ends long before its thread would write; a process of multiprocessing without exit functions."""
    project = new_project()
    publisher = textwrap.dedent(f"""
        import json, multiprocessing, sys
        from tests.acceptance.project import open_project

        app = open_project(json.loads(sys.argv[1]))

        def publish():
            for _ in range({CALLS} + 1):
                app.tasks["project.executed"].delay({key!r})

        multiprocessing.set_start_method("fork")
        {ends}
    """)
    subprocess.run([sys.executable, "-c", publisher, json.dumps(project.plan)], check=True, timeout=60)

    assert counted(project, "skipped") == CALLS

"""What a worker says of its settings when it starts, where its operator looks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.harness import Project, wait_until


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file that ``--logfile`` names."""
    return tmp_path / "worker.log"


def test_problems_are_warnings_in_the_workers_log(new_project: Callable[..., Project], log: Path) -> None:
    """Told before Celery has set up its log, they went to standard error, or nowhere with ``--detach``."""
    project = new_project(conf={"redislock_tll": 5})
    project.launch_worker("--logfile", str(log))

    wait_until(lambda: log.exists() and " ready." in log.read_text(), 30.0, "the worker is ready")
    told = [line for line in log.read_text().splitlines() if "redislock_tll" in line]
    assert len(told) == 1
    assert "WARNING" in told[0]


def test_a_worker_that_must_not_start_says_so_in_its_log(
    new_project: Callable[..., Project], log: Path
) -> None:
    project = new_project(conf={"redislock_tll": 5, "redislock_check": "error"})
    worker = project.launch_worker("--logfile", str(log))

    assert worker.process.wait(30) == 1
    assert "redislock_tll" in log.read_text()
    assert " ready." not in log.read_text()
    assert "redislock_check is 'error'" in worker.log

"""What a worker says of its settings when it starts, where its operator looks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.harness import Project, wait_until


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_problems_are_told_in_the_workers_log_whether_it_starts_or_not(
    new_project: Callable[..., Project], tmp_path: Path, policy: str
) -> None:
    """Told before Celery has set up its log, they went to standard error, or nowhere with ``--detach``."""
    log = tmp_path / "worker.log"  # which ``--logfile`` names
    project = new_project(conf={"redislock_tll": 5, "redislock_check": policy})
    worker = project.launch_worker("--logfile", str(log))
    if policy == "error":
        assert worker.process.wait(30) == 1
        assert "redislock_check is 'error'" in worker.log
    else:
        wait_until(lambda: log.exists() and " ready." in log.read_text(), 30.0, "the worker is ready")

    told = [line for line in log.read_text().splitlines() if "redislock_tll" in line]
    assert len(told) == 1
    assert "WARNING" in told[0]
    assert (" ready." in log.read_text()) == (policy == "warn")

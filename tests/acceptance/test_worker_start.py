"""What a worker says of its settings when it starts, where its operator looks."""

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import redis

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE
from tests.servers import EmbeddedServer


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
    (where,) = [line for line in log.read_text().splitlines() if "INFO" in line and " locks on " in line]
    assert re.search(r"redislock: \d+ unique tasks, locks on (redis|unix)://.* \(prefix .+\)$", where)


def test_workers_in_greenlets_start_without_a_false_alarm(new_project: Callable[..., Project]) -> None:
    """The check at the start and the thread that looks at lines look up the server's name at once."""
    pytest.importorskip("gevent")
    with EmbeddedServer(port=0) as server:
        project = new_project(broker=f"redis://localhost:{server.port}/0")
        workers = [project.launch_worker(pool="gevent") for _ in range(4)]
        for worker in workers:
            worker.wait_ready()
        told = [line for worker in workers for line in worker.log.splitlines() if "WARNING" in line]
        assert [line for line in told if f"localhost:{server.port}" in line] == []


def test_tasks_run_whose_locks_are_confirmed(new_project: Callable[..., Project], key: str) -> None:
    """By a replica. Duplicates are skipped, and what waits runs in turn."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with (
        EmbeddedServer(port=0, extra_args=at_once) as server,
        EmbeddedServer(port=0, extra_args=("--replicaof", "127.0.0.1", str(server.port))),
        closing(redis.Redis(port=server.port or 0)) as client,
    ):

        def has_replica() -> bool:
            client.set("x", "y", px=60_000)  # there is nothing to acknowledge before
            return bool(client.wait(1, 100))

        wait_until(has_replica, PATIENCE, "the replica answers")
        conf = {"redislock_url": server.url, "redislock_min_replicas": 1}
        project = new_project(conf=conf)
        project.start_worker("prefork")
        with project.kept_on(key):
            first = project.executed.delay(key)
            assert project.executed.delay(key).is_duplicate
        first.get(timeout=PATIENCE)
        assert not project.executed.delay(key).is_duplicate
        in_turn = [project.while_executing.delay(f"{key}/turn", 0.1) for _ in range(3)]
        for result in in_turn:
            result.get(timeout=PATIENCE)

        assert len(project.bodies(f"{key}/turn")) == 3
        assert project.overlaps(f"{key}/turn") == []

"""One Redis is broker, lock server and result backend; it restarts, with its data, while workers live."""

import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.terms import LEASE, PATIENCE
from tests.servers import EmbeddedServer
from tests.tiers import slow

pytestmark = pytest.mark.law(2)

ProjectMaker = Callable[..., Project]

#: Seconds of a worker's name; seconds the server is away, so that Celery tries to connect twice.
TERM, AWAY = 6.0, 2.5

#: Calls wait at publish as well, and a worker receives four beside the one that runs.
WAIT = {"redislock_restore": TERM, "redislock_on_conflict": "wait", "worker_prefetch_multiplier": 5}

CALLS = 30

#: Seconds after which nothing is on its way from the queue to the worker.
SETTLED = 0.5

#: Tasks that wait; at most one of each runs, or three.
TASKS = (
    *("executed", "executed_by_3", "executed_acks_late", "until_and_while", "while_executing"),
    *("while_executing_by_3", "while_executing_acks_late", "while_executing_by_3_acks_late"),
)
QUICK = {("while_executing_acks_late", "threads")}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that keeps its data when it is killed."""
    with EmbeddedServer(port=0, data_dir=tmp_path) as server:
        yield server


def most_at_once(project: Project, key: str) -> int:
    """Return how many bodies of a key were on at the same time."""
    bodies = project.bodies(key)
    return max(sum(other.start <= body.start < other.end for other in bodies) for body in bodies)


def nothing_is_in_hand(project: Project) -> bool:
    """Whether the broker has a record of no message that was received and is not acknowledged."""
    with project.app.connection_for_read() as connection:
        channel = connection.default_channel
        return not channel.client.hlen(channel.unacked_key)


@pytest.mark.parametrize(
    ("task", "pool"), [row if row in QUICK else slow(*row) for row in product(TASKS, ("prefork", "threads"))]
)
def test_a_line_goes_on_when_its_broker_has_restarted(
    new_project: ProjectMaker, key: str, server: EmbeddedServer, task: str, pool: str
) -> None:
    """Promise 4: what a living worker had received and not started is restored, and each call runs once."""
    project, most = new_project(conf=WAIT, broker=server.url), 3 if "by_3" in task else 1
    worker = project.start_worker(pool, concurrency=3)
    blockers = [f"{key} blocker {number}" for number in range(3)]
    with project.kept_on(*blockers):
        for blocker in blockers:
            project.unlocked.delay(blocker)
            project.wait_started(blocker)
        results = [getattr(project, task).delay(key, 0.05) for _ in range(CALLS)]
        for result in results[:most]:
            project.wait_received(result.id)
        # What the worker has taken off its queue and not noted is lost, as with plain Celery.
        time.sleep(SETTLED)
        server.kill()
        time.sleep(AWAY)
        server.restart()
    bodies = project.wait_ended(key, CALLS, 2 * PATIENCE)
    wait_until(lambda: nothing_is_in_hand(project), PATIENCE, "all are acknowledged")

    assert sorted(body.task_id for body in bodies) == sorted(result.id for result in results)
    assert most_at_once(project, key) <= most
    assert worker.process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_runs_on_while_its_broker_restarts_is_not_run_a_second_time(
    new_project: ProjectMaker, key: str, server: EmbeddedServer, pool: str
) -> None:
    """Law 8: its lease and its worker's name have lapsed, and its message is not acknowledged."""
    project = new_project(conf=WAIT, broker=server.url)
    worker = project.start_worker(pool, concurrency=1)
    project.start_worker(pool, concurrency=1)
    with project.kept_on(key):
        project.executed_acks_late.delay(key)
        project.wait_started(key)
        server.kill()
        time.sleep(max(TERM, LEASE) + 1.0)
        server.restart()
        assert set(throughout(3 * TERM, lambda: len(project.bodies(key)))) == {1}
    project.wait_ended(key)
    time.sleep(TERM)

    assert len(project.bodies(key)) == 1
    assert worker.process.poll() is None

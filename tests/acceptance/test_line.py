"""In line: what must wait is parked, holds no slot, is looked at by nobody, and runs in its turn."""

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_redislock import LockBusy
from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import DEAD, LEASE, LONG_LEASE, PATIENCE, SOCKET_TIMEOUT
from tests.faults import FaultyProxy
from tests.servers import EmbeddedServer
from tests.tiers import slow

ProjectMaker = Callable[..., Project]
ProjectOn = Callable[..., Project]

pytestmark = pytest.mark.law(2)


@pytest.mark.parametrize("pool", ["prefork", slow("threads"), slow("gevent"), slow("solo")])
@pytest.mark.parametrize("task", ["while_executing", "while_executing_acks_late"])
def test_waiting_calls_run_one_at_a_time_and_in_order(
    project_on: ProjectOn, key: str, pool: str, task: str
) -> None:
    """On one worker the order is exact, also where the first of them was refused in its child."""
    project = project_on(pool, workers=1, conf={"worker_prefetch_multiplier": 4})
    results = [getattr(project, task).delay(key, 0.01) for _ in range(30)]
    for result in results:
        result.get(timeout=PATIENCE)
    project.wait_ended(key, 30)
    assert [body.task_id for body in project.bodies(key)] == [result.id for result in results]
    assert project.overlaps(key) == []


@pytest.mark.parametrize("pool", ["prefork", slow("threads"), slow("gevent")])
@pytest.mark.parametrize("then", [None, "fail", "ignore", "reject"])
def test_what_is_parked_behind_a_run_at_its_end_starts_once_that_is_known_to_be_over(
    project_on: ProjectOn, key: str, then: str | None, pool: str
) -> None:
    """A key never stands still: what is claimed ahead for a run is released by its outcome, not by expiry.

    The worker learns of the outcome after the lock is free, and may receive the next call in between.
    """
    project = project_on(pool)
    task = project.while_executing_acks_late
    with project.kept_on(f"{key}@settled"):
        first = task.delay(key, then=then)
        wait_until(lambda: project.notes(f"{key}@settled"), PATIENCE, "the first has released its lock")
        second = task.delay(key)
        project.wait_waiting(second.id)
        claim = wait_until(lambda: project.holder(key), PATIENCE, "the key is claimed ahead")
        assert claim.owner == first.id
        # From now on it does not expire.
        assert project.redis.persist(f"{project.plan['prefix']}:redislock:{{work:{key}}}:lock") == 1
    assert second.get(timeout=PATIENCE) == f"{key} done"


def test_while_they_wait_nobody_looks_and_others_run(new_project: ProjectMaker, key: str) -> None:
    """A worker's request a second for all lines together, and no message is received again."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.redis_url) as client:
        project = new_project(broker=server.url)
        project.start_worker("prefork", concurrency=2)
        with project.kept_on(key):
            project.while_executing.delay(key)
            project.wait_started(key)
            waiting = [project.while_executing.delay(key) for _ in range(50)]
            project.wait_parked(key, 50)
            before = project.received()
            scripts = scripts_run(client)
            seconds = 3.0
            throughout(seconds, lambda: None)
            # A look at lines each second, two processes that renew the body's lease each third of it, and the
            # worker's name each two seconds. Each may begin early. Once, that the body has started.
            expected = (1.0 + 2 * 3 / LEASE + 0.5) * seconds + 6
            assert scripts_run(client) - scripts <= expected
            assert project.received() == before
            assert project.unlocked.delay(f"{key}-other").get(timeout=PATIENCE)
        for result in waiting:
            result.get(timeout=PATIENCE)
        project.wait_ended(key, 51)

        assert len(project.bodies(key)) == 51
        assert project.overlaps(key) == []


def scripts_run(client: Any) -> int:
    """How many scripts the server has run."""
    stats: Any = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


@pytest.mark.parametrize(
    ("task", "killed"),
    [
        ("while_executing_acks_late", "at work"),
        slow("while_executing", "at work"),
        ("while_executing", "at its shutdown"),
        slow("while_executing_acks_late", "at its shutdown"),
    ],
)
def test_a_line_outlives_its_workers(new_project: ProjectMaker, key: str, task: str, killed: str) -> None:
    """The worker of the holder is killed as a whole; two new ones take over: each runs once, in order.

    In Solid Queue those that waited ran together, after a restart.
    """
    project = new_project()
    worker = project.start_worker("prefork", concurrency=2)
    with project.kept_on(key):
        first = getattr(project, task).delay(key)
        project.wait_started(key)
        waiting = [getattr(project, task).delay(key) for _ in range(6)]
        line = project.wait_parked(key, 6)
        if killed == "at its shutdown":
            worker.signal(signal.SIGTERM)
            project.wait_lines("Warm shutdown")
        worker.signal(signal.SIGKILL)
        worker.process.wait(PATIENCE)
    project.start_workers(2, "prefork", concurrency=2)
    for result in waiting:
        result.get(timeout=DEAD + PATIENCE)
    wait_until(lambda: not project.parked(key), PATIENCE, "nobody waits")

    assert line == [result.id for result in waiting]
    assert [body.task_id for body in project.bodies(key) if body.task_id != first.id] == line
    assert project.overlaps(key, killed=1) == []


@pytest.mark.slow
def test_no_message_stays_behind_when_locking_is_switched_off(new_project: ProjectMaker, key: str) -> None:
    """A worker whose app takes no locks any more sends what waits to its queues."""
    project = new_project()
    worker = project.start_worker("prefork", concurrency=1)
    with project.kept_on(key):
        project.while_executing.delay(key)
        project.wait_started(key)
        waiting = [project.while_executing.delay(key) for _ in range(100)]
        project.wait_parked(key, 100)
        worker.signal(signal.SIGKILL)
        worker.process.wait(10)
    project.plan["conf"] = {**project.plan["conf"], "redislock_enabled": False}
    project.start_worker("prefork", concurrency=2)
    for result in waiting:
        result.get(timeout=PATIENCE)
    assert not project.parked(key)


@pytest.mark.parametrize("where", [FUSED, RABBITMQ])
def test_who_waits_for_too_long_fails_and_its_errback_runs(
    project_on: ProjectOn, key: str, where: str
) -> None:
    """Within about two seconds, whatever its place; the lock stays with its holder, the others in line."""
    project = project_on("prefork", where)
    with project.kept_on(key):
        project.while_executing.delay(key)
        project.wait_started(key)
        patient = project.while_executing.delay(key)
        options: Any = {"lock_wait_timeout": 1.0, "link_error": project.unlocked.si(f"{key}-errback")}
        late = project.while_executing.apply_async((key,), **options)
        project.wait_parked(key, 2)
        with pytest.raises(LockBusy) as failed:
            late.get(timeout=PATIENCE)
        project.wait_ended(f"{key}-errback", 1)
        assert project.parked(key) == [patient.id]
    patient.get(timeout=PATIENCE)

    assert 1.0 <= (failed.value.waited or 0.0) < 5.0
    assert late.id not in {body.task_id for body in project.bodies(key)}
    assert project.overlaps(key) == []


def test_a_lock_server_that_says_nothing_at_a_release_holds_up_neither_result_nor_line(
    new_project: ProjectMaker, network: FaultyProxy, key: str
) -> None:
    """In Trigger.dev a release that failed kept the run from ending, and its work was done twice."""
    project = new_project(path=ELSEWHERE, conf={"redislock_url": network.url})
    project.start_worker("prefork", concurrency=2)
    with project.kept_on(key):
        first = project.while_executing.apply_async((key,), lock_ttl=LONG_LEASE)
        project.wait_started(key)
        second = project.while_executing.delay(key)
        project.wait_parked(key, 1)
        network.black_hole()
    ended = project.wait_ended(key)[0].end
    first.get(timeout=PATIENCE)
    took = time.monotonic() - ended
    throughout(SOCKET_TIMEOUT, lambda: None)
    assert len(project.bodies(key)) == 1
    network.black_hole(on=False)
    network.reset()
    back = time.monotonic()
    project.wait_ended(key, 2)

    assert took < 2 * SOCKET_TIMEOUT + 1.0
    assert [body.task_id for body in project.bodies(key)] == [first.id, second.id]
    assert project.bodies(key)[1].start - back <= 5.0
    assert project.overlaps(key) == []

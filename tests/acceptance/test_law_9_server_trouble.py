"""Law 9: trouble with the lock server is a decision, not an accident.

Broker and results are reached all the time, but where single calls fail. Each call of each operation fails in
``tests/integration/test_task_faults.py``, in one process; each server in ``test_store_troubled_servers.py``.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest
import redis
from celery.result import AsyncResult

from celery_redislock import LockUnavailable
from celery_redislock.locks import Lock, connect
from tests.acceptance.harness import Project
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import CANNOT_START, CLAIM_GONE, FREED, PATIENCE, WORKFLOW
from tests.faults import Fault, FaultyProxy
from tests.servers import EmbeddedServer

pytestmark = [
    pytest.mark.law(9),
    pytest.mark.paths(ELSEWHERE, RABBITMQ, why="the lock server is in trouble alone"),
]

#: Broker and results may be behind the same network, where it fails but single calls.
ON_EVERY_PATH = pytest.mark.paths(FUSED, ELSEWHERE, RABBITMQ, why="single calls fail, not the server")

#: Tasks of every scope; of those that hold nothing while they run, one whose message may be delivered again.
IN_EVERY_SCOPE = (
    *("executed", "executed_period", "while_executing", "while_executing_acks_late"),
    *("until_executing", "until_executing_acks_late", "until_expired", "until_expired_acks_late"),
)


@pytest.fixture
def project(new_project: Callable[..., Project], lock_server: EmbeddedServer) -> Project:
    """A project without workers, whose locks are on a server of their own."""
    return new_project(conf={"redislock_url": lock_server.url})


@pytest.fixture(autouse=True)
def _heal(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave the network as it was found."""
    yield
    if "network" in request.fixturenames:
        request.getfixturevalue("network").heal()


@pytest.mark.parametrize("trouble", ["pause", "kill"])
def test_a_start_without_a_lock_server_is_put_off(
    project: Project, lock_server: EmbeddedServer, key: str, trouble: str
) -> None:
    """The worker tries for ``redislock_start_timeout``, then publishes the task again."""
    result = project.executed.delay(key)
    getattr(lock_server, trouble)()
    project.start_worker("prefork")
    project.wait_lines(CANNOT_START, result.id)
    assert project.bodies(key) == []
    lock_server.resume() if trouble == "pause" else lock_server.restart()
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert len(project.bodies(key)) == 1


@ON_EVERY_PATH
@pytest.mark.law(1, 2)
def test_a_history_of_tasks_and_faults_keeps_the_law(faulty: Project, network: FaultyProxy, key: str) -> None:
    """Whatever becomes of every sixth call, bodies of a key keep apart and each runs once.

    Once more where its message was published twice, as the answer to its parking was lost, and the mark that
    it is done, whose answer nobody awaits, was lost, too: its copy waits for that until "ending" expires.
    """
    keys, chance = [f"{key}{number}" for number in range(3)], random.Random(7)  # noqa: S311  not for secrets
    published: list[AsyncResult] = []
    before = network.fired
    for fault in Fault:
        network.fail(fault, at={chance.randrange(1, 300) for _ in range(8)})
    for number in range(60):
        with suppress(LockUnavailable):
            published.append(faulty.while_executing.delay(keys[number % 3], 0.1))
    until = time.monotonic() + 40
    ready = 0
    while ready < len(published) and time.monotonic() < until:
        ready = sum(result.ready() for result in published)
        time.sleep(0.1)
    network.heal()
    for result in published:
        result.get(timeout=30)

    for each in keys:
        assert faulty.violations(each) == []
        faulty.wait_free(each, FREED)
    ran = [body.task_id for each in keys for body in faulty.bodies(each)]
    again = {task_id for task_id in ran if ran.count(task_id) > 1}
    assert {*ran} == {result.id for result in published}
    for task_id in again:
        story = [line for line in faulty.log.splitlines() if task_id in line]
        assert any("waits: a copy of it is ending" in line for line in story), story
    assert len(again) <= 2
    assert network.fired - before > 15


def test_a_server_without_memory_runs_what_was_accepted_and_accepts_nothing_more(
    project: Project, lock_server: EmbeddedServer, key: str
) -> None:
    """``noeviction``, in every scope: what is queued starts, is retried and ends; publishers are told."""
    calls: list[tuple[str, tuple[object, ...]]] = [
        *((name, ()) for name in IN_EVERY_SCOPE),
        ("executed", (0.0, "retry")),
        ("until_executing", (0.0, "retry")),
    ]
    results: dict[str, AsyncResult[str]] = {}
    for number, (name, more) in enumerate(calls):
        with_claim, without = f"{key}-{number}", f"{key}-{number}-without"
        results[with_claim] = project.app.tasks[f"project.{name}"].delay(with_claim, *more)
        results[without] = project.app.send_task(f"project.{name}", (without, *more))
    client: redis.Redis = redis.Redis.from_url(lock_server.redis_url)
    with closing(client):
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        project.start_worker("prefork")
        ended = {each: result.get(timeout=WORKFLOW) for each, result in results.items()}
        for publish in (project.executed.delay, project.until_expired.delay):
            with pytest.raises(LockUnavailable, match=r"OOM|maxmemory"):
                publish(f"{key} new")
        with (
            closing(connect(lock_server.redis_url)) as store,
            pytest.raises(LockUnavailable, match=r"OOM|maxmemory"),
        ):
            Lock(store, key).acquire(timeout=0)

    assert ended == {each: f"{each} done" for each in results}
    assert [len(project.bodies(each)) for each in results] == [1] * (len(results) - 4) + [2] * 4
    left = [holder for each in results if (holder := project.holder(each)) is not None]
    assert {holder.state for holder in left} == {"period"}  # of lock_period, which has not passed
    assert project.lines(CANNOT_START) == project.lines(CLAIM_GONE) == []

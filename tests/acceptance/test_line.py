"""In line: what must wait is parked, holds no slot, is looked at by nobody, and runs in its turn."""

import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import chain
from click.testing import CliRunner

from celery_redislock import LockBusy
from celery_redislock.cli import redislock
from celery_redislock.publishing.message import HEADER, Message
from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.messages import captured, deliver
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import DEAD, LEASE, PATIENCE
from tests.servers import EmbeddedServer
from tests.tiers import slow

ProjectMaker = Callable[..., Project]

pytestmark = pytest.mark.law(2)


def parked(project: Project, key: str) -> list[str]:
    """The task ids in line, in order."""
    return [waiter.owner for waiter in project.executed.lock_for(key).waiting()]


def wait_parked(project: Project, key: str, number: int) -> list[str]:
    """Return them once there are so many."""
    wait_until(lambda: len(parked(project, key)) >= number, PATIENCE, f"{number} wait for {key!r}")
    return parked(project, key)


@pytest.mark.parametrize("pool", ["prefork", slow("threads"), slow("gevent"), slow("solo")])
@pytest.mark.parametrize("task", ["while_executing", "while_executing_acks_late"])
def test_waiting_calls_run_one_at_a_time_and_in_order(
    new_project: ProjectMaker, key: str, pool: str, task: str
) -> None:
    """On one worker the order is exact, also where the first of them was refused in its child."""
    project = new_project(conf={"worker_prefetch_multiplier": 4})
    project.start_worker(pool, concurrency=1 if pool == "solo" else 4)
    results = [getattr(project, task).delay(key, 0.01) for _ in range(30)]
    for result in results:
        result.get(timeout=PATIENCE)
    project.wait_ended(key, 30)

    assert [body.task_id for body in project.bodies(key)] == [result.id for result in results]
    assert project.overlaps(key) == []


@pytest.mark.parametrize("pool", ["prefork", slow("threads"), slow("gevent")])
@pytest.mark.parametrize("then", [None, "fail", "ignore", "reject"])
def test_what_is_parked_behind_a_run_at_its_end_starts_once_that_is_known_to_be_over(
    project_on: Callable[..., Project], key: str, then: str | None, pool: str
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
            wait_parked(project, key, 50)
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


@pytest.mark.parametrize("task", ["while_executing_acks_late", slow("while_executing")])
def test_a_line_outlives_its_workers(new_project: ProjectMaker, key: str, task: str) -> None:
    """The worker of the holder is killed as a whole; two new ones take over: each runs once, in order."""
    project = new_project()
    worker = project.start_worker("prefork", concurrency=2)
    with project.kept_on(key):
        first = getattr(project, task).delay(key)
        project.wait_started(key)
        waiting = [project.while_executing.delay(key) for _ in range(6)]
        assert wait_parked(project, key, 6) == [result.id for result in waiting]
        worker.signal(signal.SIGKILL)
        worker.process.wait(10)
    project.start_workers(2, "prefork", concurrency=2)
    for result in waiting:
        result.get(timeout=DEAD + PATIENCE)
    wait_until(lambda: not parked(project, key), PATIENCE, "nobody waits")
    bodies = [body for body in project.bodies(key) if body.task_id != first.id]

    assert [body.task_id for body in bodies] == [result.id for result in waiting]
    assert project.overlaps(key, killed=1) == []


def test_what_is_revoked_in_line_lets_the_next_one_run(project: Project, key: str) -> None:
    """It ends as any revoked message does, when its turn comes."""
    with project.kept_on(key):
        project.while_executing.delay(key)
        project.wait_started(key)
        revoked, last = (project.while_executing.delay(key) for _ in range(2))
        wait_parked(project, key, 2)
        project.app.control.revoke(revoked.id)
        project.wait_lines("revoked", revoked.id)
    last.get(timeout=PATIENCE)
    wait_until(lambda: revoked.state == "REVOKED", PATIENCE, "it is revoked")

    assert revoked.id not in {body.task_id for body in project.bodies(key)}
    project.wait_free(key)


@pytest.mark.parametrize(
    ("task", "options"), [("until_expired", {}), ("until_executing", {"lock_period": 600.0})]
)
def test_the_period_of_one_that_has_waited_begins_when_it_runs(
    prefork: Project, key: str, task: str, options: dict[str, Any]
) -> None:
    """In scopes that hold nothing while they run. The claim that it was handed stands for no period."""
    project = prefork
    link = project.app.tasks[f"project.{task}"].si(key).set(**options)
    with project.kept_on(key):
        project.while_executing.delay(key)
        project.wait_started(key)
        result = chain(project.collect.si(1), link).apply_async()
        wait_parked(project, key, 1)
    result.get(timeout=PATIENCE)

    holder = project.holder(key)
    assert holder is not None
    assert holder.state == "period"
    assert holder.remaining == pytest.approx(600.0, abs=PATIENCE)


def test_an_operators_release_hands_the_lock_on(project: Project, key: str) -> None:
    """Whoever ends a hold looks at the line; here a process that is no worker."""
    with project.kept_on(key):
        project.while_executing.delay(key)
        project.wait_started(key)
        second = project.while_executing.delay(key)
        wait_parked(project, key, 1)
        project.while_executing.lock_for(key).release(reason="a test")
        project.wait_started(key, 2)
    second.get(timeout=PATIENCE)

    assert not parked(project, key)


@pytest.mark.parametrize("path", [FUSED, ELSEWHERE, slow(RABBITMQ)], indirect=True)
def test_an_operator_changes_the_order_and_takes_one_out(prefork: Project, key: str) -> None:
    """Five wait: the third is dropped, and the last goes first. The others run in their order."""
    project = prefork
    name = project.while_executing.lock_for(key).key
    with project.kept_on(key):
        running = project.while_executing.delay(key)
        project.wait_started(key)
        waiting = [project.while_executing.delay(key) for _ in range(5)]
        first, second, third, fourth, last = wait_parked(project, key, 5)
        for words in (["--drop", third, "--reason", "a test"], ["--first", last]):
            command = ["waiting", name, *words, "--yes"]
            done = CliRunner().invoke(redislock, command, obj=SimpleNamespace(app=project.app))
            assert done.exit_code == 0, done.output
        assert parked(project, key) == [last, first, second, fourth]
    for result in waiting:
        result.get(timeout=PATIENCE, propagate=False)
    bodies = [body.task_id for body in project.wait_ended(key, 5)]

    assert bodies == [running.id, last, first, second, fourth]
    states = {result.id: result.state for result in waiting}
    assert [task_id for task_id, state in states.items() if state != "SUCCESS"] == [third]
    assert states[third] == "REVOKED"
    assert project.overlaps(key) == []


def test_a_full_line_loses_nothing(project: Project, key: str) -> None:
    """What comes then is tried again by the clock."""
    with project.kept_on(key):
        project.while_executing.delay(key)
        project.wait_started(key)
        options: Any = {"lock_max_waiting": 1, "lock_retry_delay": 0.5}
        results = [project.while_executing.apply_async((key,), **options) for _ in range(3)]
        for result in results:
            project.wait_waiting(result.id)
        wait_parked(project, key, 1)
        assert len(parked(project, key)) == 1
    for result in results:
        result.get(timeout=PATIENCE)

    assert len(project.bodies(key)) == 4
    assert project.overlaps(key) == []


def test_a_line_that_a_setting_bounds_gets_no_longer(new_project: ProjectMaker, key: str) -> None:
    """Also by messages that are parked when they are received."""
    project = new_project(conf={"redislock_max_waiting": 2, "redislock_retry_delay": 0.5})
    project.start_worker("prefork", concurrency=2)
    with project.kept_on(key):
        project.while_executing.delay(key)
        project.wait_started(key)
        results = [project.while_executing.delay(key) for _ in range(6)]
        for result in results:
            project.wait_waiting(result.id)
        assert len(parked(project, key)) == 2
    for result in results:
        result.get(timeout=PATIENCE)

    assert len(project.bodies(key)) == 7


def test_no_message_stays_behind_when_locking_is_switched_off(new_project: ProjectMaker, key: str) -> None:
    """A worker whose app takes no locks any more sends what waits to its queues."""
    project = new_project()
    worker = project.start_worker("prefork", concurrency=1)
    with project.kept_on(key):
        project.while_executing.delay(key)
        project.wait_started(key)
        waiting = [project.while_executing.delay(key) for _ in range(100)]
        wait_parked(project, key, 100)
        worker.signal(signal.SIGKILL)
        worker.process.wait(10)
    project.plan["conf"] = {**project.plan["conf"], "redislock_enabled": False}
    project.start_worker("prefork", concurrency=2)
    for result in waiting:
        result.get(timeout=PATIENCE)

    assert not parked(project, key)


@pytest.mark.parametrize("where", [FUSED, RABBITMQ])
def test_who_waits_for_too_long_fails_and_its_errback_runs(
    new_project: ProjectMaker, key: str, where: str
) -> None:
    """Within about two seconds, whatever its place; the lock stays with its holder, the others in line."""
    project = new_project(path=where)
    project.start_worker("prefork", concurrency=2)
    with project.kept_on(key):
        project.while_executing.delay(key)
        project.wait_started(key)
        patient = project.while_executing.delay(key)
        options: Any = {"lock_wait_timeout": 1.0, "link_error": project.unlocked.si(f"{key}-errback")}
        late = project.while_executing.apply_async((key,), **options)
        wait_parked(project, key, 2)
        with pytest.raises(LockBusy) as failed:
            late.get(timeout=PATIENCE)
        project.wait_ended(f"{key}-errback", 1)
        assert parked(project, key) == [patient.id]
    patient.get(timeout=PATIENCE)

    assert 1.0 <= (failed.value.waited or 0.0) < 5.0
    assert late.id not in {body.task_id for body in project.bodies(key)}
    assert project.overlaps(key) == []


def test_a_message_whose_run_died_waits_before_the_others_for_as_long_as_it_may(
    project: Project, key: str
) -> None:
    """It had its turn, and was delivered again: the time of its dead run is no time in line."""
    with project.running(project.while_executing, key):
        late = project.while_executing.apply_async((key,), queue=project.aside, lock_wait_timeout=2.0)
        message = captured(project)
        header = Message.loads(message["headers"][HEADER])
        assert header is not None
        message["headers"][HEADER] = header._replace(parked_at=time.time() - 600.0).dumps()
        others = [project.while_executing.delay(key) for _ in range(3)]
        wait_parked(project, key, 3)
        deliver(project, message, again=True)
        assert wait_parked(project, key, 4) == [late.id, *(other.id for other in others)]
        # Redis says of it for ever that it was delivered again.
        with pytest.raises(LockBusy) as failed:
            late.get(timeout=PATIENCE)
    for other in others:
        other.get(timeout=PATIENCE)

    assert 2.0 <= (failed.value.waited or 0.0) < 6.0
    assert project.received()[late.id] == 2


def test_a_retry_that_leaves_its_lock_runs_before_those_that_wait(project: Project, key: str) -> None:
    """Another call runs while it waits for its countdown; when that has passed it is the first in line."""
    asked = key, 0.0, "retry", {"countdown": 3, "times": 1}
    options: Any = {"lock_on_retry": "release"}
    retried = project.while_executing.apply_async(asked, **options)
    project.wait_ended(key, 1)
    with project.kept_on(key):
        between = project.while_executing.delay(key)
        project.wait_started(key, 2)
        others = [project.while_executing.delay(key) for _ in range(2)]
        assert wait_parked(project, key, 2) == [result.id for result in others]
        assert wait_parked(project, key, 3) == [retried.id, *(result.id for result in others)]
    for result in (retried, *others):
        result.get(timeout=PATIENCE)
    project.wait_ended(key, 5)

    expected = [retried, between, retried, *others]
    assert [body.task_id for body in project.bodies(key)] == [result.id for result in expected]
    assert project.overlaps(key) == []

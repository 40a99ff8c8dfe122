"""What went wrong with the lines of other libraries, played with ours."""

import json
import signal
import time
from collections.abc import Callable

import pytest

from celery_redislock.publishing.message import HEADER
from celery_redislock.store.store import Entry
from tests.acceptance.brokers import REDIS, Site
from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.paths import ELSEWHERE
from tests.acceptance.terms import DONE_BEFORE, LONG_LEASE, PATIENCE, SHORT_LEASE, SOCKET_TIMEOUT
from tests.faults import FaultyProxy
from tests.tiers import slow

pytestmark = pytest.mark.law(2)

ProjectMaker = Callable[..., Project]

#: Lines, beside which the trouble of two is to be nobody else's.
LINES = 1000


@pytest.mark.parametrize("task", ["while_executing", slow("while_executing_acks_late")])
def test_a_worker_that_is_killed_at_its_shutdown_leaves_a_line_to_two_new_ones(
    new_project: ProjectMaker, key: str, task: str
) -> None:
    """In Solid Queue those that waited then ran together, after the restart."""
    project = new_project()
    worker = project.start_worker("prefork", concurrency=2)
    with project.kept_on(key):
        first = getattr(project, task).delay(key)
        project.wait_started(key)
        waiting = [getattr(project, task).delay(key) for _ in range(3)]
        line = project.wait_parked(key, 3)
        worker.signal(signal.SIGTERM)
        project.wait_lines("Warm shutdown")
        worker.signal(signal.SIGKILL)
        worker.process.wait(PATIENCE)
    project.start_workers(2, "prefork", concurrency=2)
    for result in waiting:
        result.get(timeout=PATIENCE)
    wait_until(lambda: not project.parked(key), PATIENCE, "nobody waits")

    assert line == [result.id for result in waiting]
    assert [body.task_id for body in project.bodies(key) if body.task_id != first.id] == line
    assert project.overlaps(key, killed=1) == []


@pytest.mark.slow
def test_what_is_wrong_with_one_key_stays_there(prefork: Project, key: str) -> None:
    """A thousand locks expire: of one the line is of another type, of another what waits cannot be read.

    In Oban one such row kept every queue from going on.
    """
    project = prefork
    keys = [f"{key}-{number}" for number in range(LINES)]
    stems = [park_one(project, each) for each in keys]
    of_another_type, unreadable = stems[:2]
    project.redis.delete(f"{of_another_type}:line")
    project.redis.set(f"{of_another_type}:line", "another program's")
    [entry] = project.redis.hkeys(f"{unreadable}:parked")
    project.redis.hset(f"{unreadable}:parked", entry, "nonsense")

    for stem in stems:
        project.redis.pexpire(f"{stem}:lock", 1)
    lines = [f"{stem}:line" for stem in stems[2:]]
    wait_until(lambda: project.redis.exists(*lines) == 0, 5.0, "all lines but two are served")
    for each in keys[2:]:
        project.wait_ended(each)
    throughout(2.5, lambda: None)

    assert [each for each in keys[:2] if project.bodies(each)] == []
    assert len(project.lines(f"work:{keys[0]}'")) == 1
    assert len(project.lines(f"work:{keys[1]}'")) <= 1
    project.redis.delete(f"{of_another_type}:line", f"{of_another_type}:parked", f"{unreadable}:parked")


def park_one(project: Project, key: str) -> str:
    """Park a call of this key behind somebody whose hold only expires; return how its keys begin."""
    prefix, task = project.plan["prefix"], project.while_executing
    task.apply_async((key,), queue=project.aside)
    text = project.redis.rpop(f"{prefix}:{project.aside}")
    token = json.loads(json.loads(text)["headers"][HEADER])["t"]
    entry = Entry("push", f"{prefix}:celery", 60.0, '{"state":"queued","line":1}', text.decode())
    handle = task.lock_for(key)
    stem = f"{prefix}:redislock:{{{handle.key}}}"
    project.redis.set(f"{stem}:lock", 'somebody/x\0{"state":"running"}', px=20_000)
    assert handle._store.park(handle.key, token, entry, nonce=token.rpartition("/")[2]).word == "parked"
    return stem


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


@pytest.mark.parametrize("broker", [REDIS, "quorum"])
def test_a_copy_of_the_one_that_runs_changes_nothing_for_those_that_wait(
    new_site: Callable[..., Site], key: str, broker: str
) -> None:
    """In Docket a redelivery that was blocked released the slot of its original."""
    site = new_site(broker)
    project = site.ready()
    with project.kept_on(key):
        first = project.while_executing_acks_late.delay(key)
        body = project.wait_started(key)
        waiting = [project.while_executing.delay(key) for _ in range(5)]
        line = project.wait_parked(key, 5)
        site.deliver_again(body)
        project.wait_waiting(first.id)
        handle = project.executed.lock_for(key)
        wait_until(lambda: first.id in project.parked(key), PATIENCE, "the copy waits")

        assert [owner for owner in project.parked(key) if owner != first.id] == line
        assert handle._store.inspect(handle.key).token == body.token
        assert len(project.bodies(key)) == 1
    for result in waiting:
        result.get(timeout=PATIENCE)
    project.wait_lines(DONE_BEFORE, first.id)
    project.wait_free(key)

    assert [body.task_id for body in project.bodies(key)] == [first.id, *line]
    assert project.overlaps(key) == []


def test_who_has_waited_for_longer_than_its_lease_gets_a_whole_one(prefork: Project, key: str) -> None:
    """In etcd a waiter was told that a lock was its own, whose lease had run out while it waited."""
    with prefork.kept_on(f"{key} first"):
        prefork.while_executing.apply_async((key,), task_id=f"{key} first", lock_ttl=LONG_LEASE)
        prefork.wait_started(key)
        second = prefork.while_executing.apply_async((key, 0.0, "look_at_lease"), lock_ttl=SHORT_LEASE)
        prefork.wait_parked(key, 1)
        throughout(3 * SHORT_LEASE, lambda: None)
    _key, _token, _fence, held, lost, expires_in = second.get(timeout=PATIENCE)

    assert (held, lost) == (True, False)
    assert expires_in > SHORT_LEASE - 0.3

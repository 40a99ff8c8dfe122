"""What a worker had in hand when it was killed runs elsewhere, once. Redis only.

The term of a worker's name is the least there may be; all that hangs on it is a part of it.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.paths import ELSEWHERE, FUSED
from tests.acceptance.terms import LONG_LEASE, PATIENCE
from tests.acceptance.worker import Worker
from tests.servers import EmbeddedServer
from tests.tiers import slow

#: Seconds of a worker's name.
TERM = 6.0

#: Room for four messages beside the one that runs.
IN_HAND = {"redislock_restore": TERM, "worker_prefetch_multiplier": 5}

#: One task of each scope; none of them runs longer than it must.
EARLY = ("executed", "until_executing", "until_expired", "while_executing", "until_and_while")

pytestmark = pytest.mark.law(2)


def receive_all(project: Project, key: str, *, waiting: int = 4) -> list[Any]:
    """Publish a call of each scope that the one worker cannot start; so many of them it receives."""
    results = [getattr(project, task).delay(f"{key}-{task}") for task in EARLY[1:]]
    for result in results[:waiting]:
        project.wait_received(result.id)
    return results


@contextmanager
def paused(worker: Worker) -> Iterator[None]:
    """Stop a worker and its children, as a machine that stands still does."""
    os.killpg(worker.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(worker.process.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("path", "pool"),
    [(FUSED, "prefork"), (ELSEWHERE, "prefork"), slow(FUSED, "threads"), slow(FUSED, "gevent")],
    indirect=["path"],
)
def test_what_a_killed_worker_had_in_hand_runs_elsewhere_once(
    new_project: Callable[..., Project], key: str, pool: str
) -> None:
    """Promise 4: within the term of its name, instead of an hour later; calls meanwhile are duplicates."""
    project = new_project(conf=IN_HAND)
    worker = project.start_worker(pool, concurrency=1)
    with project.kept_on(key):
        running = project.executed_acks_late.delay(key)
        project.wait_started(key)
        # With a full pool gevent's worker stands still, and receives one only.
        waiting = receive_all(project, key, waiting=1 if pool == "gevent" else 4)
        worker.end()
    again = [project.until_executing.delay(f"{key}-until_executing") for _ in range(3)]
    project.start_worker(pool, concurrency=1)

    for result in (running, *waiting):
        result.get(timeout=2 * TERM + PATIENCE)

    assert [result.is_duplicate for result in again] == [True] * 3
    assert [len(project.bodies(f"{key}-{task}")) for task in EARLY[1:]] == [1] * 4
    assert len(project.bodies(key)) == 2
    assert project.executed.delay(f"{key}-executed").is_duplicate is False
    wait_until(lambda: not project.redis.hlen(f"{project.plan['prefix']}:unacked"), PATIENCE, "all are over")


def test_a_child_that_outlives_its_worker_ends_and_its_copy_does_nothing(
    new_project: Callable[..., Project], key: str
) -> None:
    """Law 8: the main process was killed alone. Its message is restored when the run has ended."""
    project = new_project(conf=IN_HAND)
    worker = project.start_worker("prefork", concurrency=1)
    with project.kept_on(f"{key} outliving"):
        result = project.executed_acks_late.delay(key, 0.0, "outlive")
        project.wait_started(key)
        wait_until(lambda: project.notes(f"outliving {key}"), PATIENCE, "its main process may end")
        worker.signal(signal.SIGKILL)
        project.start_worker("prefork", concurrency=1)
        assert set(throughout(1.5 * TERM, lambda: len(project.bodies(key)))) == {1}
    project.wait_ended(key)
    project.wait_received(result.id, 2)  # in its queue, and on its way to a worker, it is in no hand

    wait_until(lambda: not project.redis.hlen(f"{project.plan['prefix']}:unacked"), PATIENCE, "it is over")
    assert len(project.bodies(key)) == 1
    assert project.received()[result.id] == 2


def test_a_worker_that_only_stood_still_runs_nothing_a_second_time(
    new_project: Callable[..., Project], key: str
) -> None:
    """Law 8: nothing rests on its being dead. Others have run what it had in hand when it wakes."""
    project = new_project(conf=IN_HAND)
    worker = project.start_worker("prefork", concurrency=1)
    with project.kept_on(key):
        running = project.executed_acks_late.apply_async((key,), lock_ttl=LONG_LEASE)
        project.wait_started(key)
        waiting = receive_all(project, key)
        with paused(worker):
            project.start_worker("prefork", concurrency=2)  # one for the copy of the message that ran
            for result in waiting:
                result.get(timeout=2 * TERM + PATIENCE)
    running.get(timeout=PATIENCE)
    for result in waiting:
        project.wait_received(result.id, 2)
    last = project.unlocked.delay(f"{key}-last")
    last.get(timeout=PATIENCE)
    wait_until(lambda: not project.redis.hlen(f"{project.plan['prefix']}:unacked"), PATIENCE, "all are over")

    ended = [body for task in EARLY[1:] for body in project.bodies(f"{key}-{task}")]
    assert [body.ended_by for body in ended] == [""] * 4
    assert [body.ended_by for body in project.bodies(key)] == [""]


def test_a_broker_that_was_away_restores_nothing(new_project: Callable[..., Project], key: str) -> None:
    """Law 8: all names and leases have lapsed while a body goes on; each worker keeps its name."""
    with EmbeddedServer() as server:
        project = new_project(conf=IN_HAND, broker=server.url)
        project.start_workers(2, "prefork")
        with project.kept_on(key):
            result = project.executed_acks_late.delay(key)
            project.wait_started(key)
            server.pause()
            throughout(1.5 * TERM, lambda: None)
            server.resume()
            assert set(throughout(1.5 * TERM, lambda: len(project.bodies(key)))) == {1}
        result.get(timeout=PATIENCE)

    assert len(project.bodies(key)) == 1


def test_a_worker_that_is_stopped_hands_over_each_message_once(
    new_project: Callable[..., Project], key: str
) -> None:
    """A warm shutdown: kombu restores what is in hand, and the name that lapses is searched for in vain."""
    project = new_project(conf=IN_HAND)
    worker = project.start_worker("prefork", concurrency=1)
    with project.kept_on(key):
        running = project.executed.delay(key)
        project.wait_started(key)
        waiting = receive_all(project, key)
        worker.signal(signal.SIGTERM)
    running.get(timeout=PATIENCE)
    wait_until(lambda: worker.process.poll() is not None, PATIENCE, "it has stopped")
    project.start_worker("prefork", concurrency=1)
    for result in waiting:
        result.get(timeout=PATIENCE)
    workers = f"{project.plan['prefix']}:redislock:workers"
    wait_until(lambda: project.redis.zcard(workers) == 1, 3 * TERM, "its name has lapsed")

    assert [len(project.bodies(f"{key}-{task}")) for task in EARLY[1:]] == [1] * 4


def test_an_event_is_handled_once_however_quick_its_task_and_whoever_dies(
    new_project: Callable[..., Project], key: str
) -> None:
    """As docs/which-duplicate.md has it: a later call is skipped, after a failure accepted; none is lost."""
    project = new_project(conf=IN_HAND)
    worker = project.start_worker("prefork", concurrency=1)
    send = project.until_expired_to_the_end
    quick, failing, alone = f"{key}-quick", f"{key}-failing", f"{key}-alone"

    clicks = [send.delay(quick)]
    clicks[0].get(timeout=PATIENCE)
    clicks += [send.delay(quick) for _ in range(2)]
    failed = send.delay(failing, 0.0, "fail")
    with pytest.raises(ValueError, match="failed"):
        failed.get(timeout=PATIENCE)
    after_failure = send.delay(failing)
    after_failure.get(timeout=PATIENCE)
    with project.kept_on(alone):
        of_a_child = send.delay(alone)
        project.wait_started(alone)
        os.kill(project.bodies(alone)[0].pid, signal.SIGKILL)
        project.wait_started(alone, 2)
        clicks_alone = [of_a_child, send.delay(alone)]
    of_a_child.get(timeout=PATIENCE)
    with project.kept_on(key):
        in_its_body = send.delay(key)
        project.wait_started(key)
        worker.end()
    retried = send.delay(key)
    project.start_worker("prefork", concurrency=1)

    assert in_its_body.get(timeout=2 * TERM + PATIENCE) == f"{key} done"
    assert [click.id for click in clicks] == [clicks[0].id] * 3
    assert len(project.bodies(quick)) == 1
    assert not after_failure.is_duplicate
    assert clicks_alone[1].id == of_a_child.id
    assert len(project.bodies(alone)) == 2
    assert retried.id == in_its_body.id
    assert len(project.bodies(key)) == 2

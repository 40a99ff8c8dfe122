"""What a worker had in hand when it was killed runs elsewhere, once. Redis only.

The term of a worker's name is the least there may be; all that hangs on it is a part of it.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.paths import ELSEWHERE, FUSED
from tests.acceptance.terms import LONG_LEASE, PATIENCE
from tests.acceptance.worker import Worker
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
    [(FUSED, "prefork"), slow(ELSEWHERE, "prefork"), slow(FUSED, "threads"), slow(FUSED, "gevent")],
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


@pytest.mark.slow
def test_a_worker_that_only_stood_still_repeats_nothing(
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

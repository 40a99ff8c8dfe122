"""Law 8: redelivery is not a duplicate, and never runs twice at once.

For messages that can come again: acknowledged late, with an ETA or countdown,
or marked as redelivered.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import celery
import pytest

from tests.acceptance.brokers import (
    BROKERS_IN_TURN,
    ON_REDIS,
    REDIS_FIRST,
    Site,
    wait_copy,
    wait_late_copy,
)
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import PATIENCE
from tests.facts import lives
from tests.tiers import slow

SiteMaker = Callable[..., Site]

pytestmark = pytest.mark.law(8)

#: One task of each scope whose messages are acknowledged late.
LATE = [
    "executed_acks_late",
    "executed_acks_late_ignore_result",
    "while_executing_acks_late",
    "until_executing_acks_late",
    "until_expired_acks_late",
]


@pytest.mark.parametrize("task", LATE)
@pytest.mark.parametrize("broker", REDIS_FIRST)
def test_a_message_delivered_again_runs_once(site_on: SiteMaker, key: str, broker: str, task: str) -> None:
    """By the visibility timeout on Redis; on RabbitMQ because a connection was lost."""
    site = site_on(broker)
    project = site.ready()
    with project.kept_on(key):
        result = getattr(project, task).delay(key)
        body = project.wait_started(key)
        site.deliver_again(body)
        wait_copy(project, result.id)
    wait_late_copy(project, result.id)
    assert [body.ended_by for body in project.bodies(key)] == [""]


@pytest.mark.parametrize("broker", BROKERS_IN_TURN)
def test_a_copy_that_waits_holds_no_slot(new_site: SiteMaker, key: str, broker: str) -> None:
    """Neither in the pool, nor the place of the one message that a worker takes at a time."""
    site = new_site(broker, children=1)
    project = site.ready()
    with project.kept_on(key):
        result = project.executed_acks_late.apply_async((key,), lock_retry_delay=60.0)
        body = project.wait_started(key)
        site.deliver_again(body)
        project.wait_waiting(result.id)
        others = [project.unlocked.delay(f"{key}-{number}") for number in range(6)]
        # The holder's worker, which has lost its connection, may have taken one for its child, which is busy.
        wait_until(lambda: sum(other.ready() for other in others) >= 5, PATIENCE, "the free worker works")
        assert not result.ready()


ANY_ACK = ["executed", "executed_acks_late", "while_executing", "until_executing", "until_expired"]


@ON_REDIS
@pytest.mark.parametrize("task", ANY_ACK)
def test_an_eta_beyond_the_visibility_timeout_makes_one_run(site_on: SiteMaker, key: str, task: str) -> None:
    """Every worker is given the message in turn, and holds it until its ETA; in every scope one body runs."""
    project = site_on("redis").ready()
    result = getattr(project, task).apply_async((key,), countdown=4.0)
    wait_until(lambda: project.received()[result.id] > 1, PATIENCE, "a second worker has it")
    project.wait_ended(key)
    wait_until(lambda: not project.undelivered(), PATIENCE, "every copy has ended")
    assert len(project.bodies(key)) == 1


@pytest.mark.slow
@pytest.mark.law(2)
def test_an_eta_message_lost_with_its_connection_runs_once_and_in_time(site_on: SiteMaker, key: str) -> None:
    """On classic queues, whose worker waits for the ETA and loses its connection meanwhile."""
    site = site_on("classic")
    project = site.ready()
    published, countdown = time.monotonic(), 12.0  # time enough to be received and cut on a busy machine
    result = project.executed_acks_late.apply_async((key,), countdown=countdown)
    project.wait_received(result.id)
    site.deliver_all_again()
    project.wait_received(result.id, 2)
    assert result.get(timeout=countdown + PATIENCE) == f"{key} done"
    (body,) = project.bodies(key)
    assert body.start - published >= countdown - 0.1


#: When a worker or a child is killed, and how many bodies return: a death between a body's return and the
#: done mark, which follows the result and what is published after it, cannot be told from an unfinished run.
RETURNS = {"started": 1, "awaited": 1, "returned": 2, "released": 2, "stored": 2, "settled": 1}


def killed_at(site: Site, task: str, key: str, moment: str, *, child: bool = False) -> Any:
    """Publish a job, kill its worker (or its child) at that moment, and return the job's result."""
    project = site.ready()
    gate = key if moment in {"started", "awaited"} else f"{key}@{moment}"
    with project.kept_on(gate):
        # So long a delay that a copy that was put off stays in a worker's hands until the kill.
        result = getattr(project, task).apply_async((key,), lock_retry_delay=5.0)
        body = project.wait_started(key)
        if moment == "awaited":
            site.deliver_again(body)
            # kombu's Redis transport takes a message out of its queue before it notes it as unacknowledged:
            # a worker killed in between loses it (5.7.0, _brpop_read).
            wait_copy(project, result.id)
        elif gate != key:
            wait_until(lambda: project.notes(gate), PATIENCE, f"the run is at {moment!r}")
        if child:
            os.kill(body.pid, signal.SIGKILL)
            wait_until(lambda: not lives(body.pid), PATIENCE, "the child is dead")
        else:
            site.kill(body)
    return result


def assert_ran(project: Project, key: str, moment: str) -> None:
    killed = int(moment in {"started", "awaited"})
    project.wait_ended(key, RETURNS[moment])
    project.wait_free(key)
    bodies = project.bodies(key)

    assert [body.ended_by for body in bodies] == [None] * killed + [""] * RETURNS[moment]
    assert project.overlaps(key, killed=killed) == []
    assert len({body.token for body in bodies}) == len(bodies)


@pytest.mark.law(2)
@pytest.mark.parametrize("task", ["executed_acks_late", slow("executed_acks_late_ignore_result")])
@pytest.mark.parametrize(
    "moment", [slow(each) if each in {"returned", "stored"} else each for each in RETURNS]
)
@pytest.mark.parametrize("broker", REDIS_FIRST)
def test_a_killed_workers_job_ends_well(
    site_on: SiteMaker, key: str, broker: str, moment: str, task: str
) -> None:
    """Its copy runs, unless it was marked as done; never two bodies at once."""
    site = site_on(broker)
    result = killed_at(site, task, key, moment)
    if moment == "settled":
        wait_late_copy(site.project, result.id)
    assert_ran(site.project, key, moment)
    if task == "executed_acks_late":
        assert result.get(timeout=PATIENCE) == f"{key} done"


@pytest.mark.law(2)
@pytest.mark.parametrize("moment", ["started", "returned", "released"])
@pytest.mark.parametrize("broker", REDIS_FIRST)
def test_a_job_whose_child_is_killed_succeeds(site_on: SiteMaker, key: str, broker: str, moment: str) -> None:
    """With ``task_reject_on_worker_lost``: the main process has the message delivered again."""
    site = site_on(broker)
    result = killed_at(site, "executed_reject_on_worker_lost", key, moment, child=True)
    # The release may have stored its success, for which Celery acknowledges a lost run since 5.7.
    is_over = moment == "released" and broker != ELSEWHERE and celery.VERSION[:2] >= (5, 7)
    assert_ran(site.project, key, "settled" if is_over else moment)
    wait_until(lambda: result.state == "SUCCESS", PATIENCE, "the second run's result")


@pytest.mark.paths(FUSED, RABBITMQ, why="elsewhere the lock is released before the result is stored")
@pytest.mark.law(2)
def test_a_run_that_is_killed_before_its_result_is_stored_has_not_ended(prefork: Project, key: str) -> None:
    """Where one step releases and stores, the run holds its lock until then, and its copy takes over."""
    project = prefork
    encoded = f"{key}@encoded"
    with project.kept_on(encoded):
        result = project.executed_reject_on_worker_lost.delay(key, 0.0, "encode_at_leisure")
        pid = wait_until(lambda: project.notes(encoded), PATIENCE, "the body has returned")[0]
        holder = project.holder(key)
        os.kill(pid, signal.SIGKILL)
    bodies = project.wait_ended(key, 2)

    assert holder is not None
    assert holder.state == "running"
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert project.overlaps(key) == []
    assert len({body.token for body in bodies}) == 2

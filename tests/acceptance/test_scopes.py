"""The scopes: how long a task is unique, and what a call may ask for itself."""

import time
from typing import Any

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.messages import captured, deliver
from tests.acceptance.terms import PATIENCE

#: Seconds of a period whose end a test waits for: enough for a run on a busy machine.
PERIOD = 3.0


def test_until_executing_frees_the_key_when_the_run_starts(project: Project, key: str) -> None:
    """``until_executing``: one may be queued beside the one that runs, and no more."""
    with project.running(project.until_executing, key) as first:
        second = project.until_executing.apply_async((key,), queue=project.aside)
        third = project.until_executing.delay(key)
    deliver(project, captured(project))

    assert not second.is_duplicate
    assert third.is_duplicate
    assert third.id == second.id
    assert {first.get(timeout=PATIENCE), second.get(timeout=PATIENCE)} == {f"{key} done"}
    assert len(project.bodies(key)) == 2
    assert project.holder(key) is None


def test_one_may_be_queued_while_one_runs(project: Project, key: str) -> None:
    """``until_and_while_executing``: a queued duplicate is skipped, and bodies never overlap."""
    with project.running(project.until_and_while, key) as first:
        second = project.until_and_while.delay(key)
        third = project.until_and_while.delay(key)
        holder = project.until_and_while.lock_for(key).holder()
        project.wait_received(second.id, 2)  # its run has been refused, and keeps its claim
        fourth = project.until_and_while.delay(key)

    assert not second.is_duplicate
    assert {third.id, fourth.id} == {second.id}
    assert (holder.owner, holder.state, holder.queued) == (first.id, "running", second.id)
    assert first.get(timeout=PATIENCE) == second.get(timeout=PATIENCE) == f"{key} done"
    assert [body.task_id for body in project.bodies(key)] == [first.id, second.id]
    assert project.overlaps(key) == []
    assert project.until_and_while.lock_for(key).holder() is None


def test_a_resource_is_one_lock_for_both_scopes_that_serialise(project: Project, key: str) -> None:
    """``until_and_while_executing`` and ``while_executing``: one lock while running."""
    with project.running(project.while_executing, key):
        other = project.until_and_while.delay(key)
        project.wait_received(other.id, 2)
    other.get(timeout=PATIENCE)

    assert len(project.bodies(key)) == 2
    assert project.overlaps(key) == []


def test_a_retry_that_waits_leaves_the_queued_place_to_the_next_call(project: Project, key: str) -> None:
    """``until_and_while_executing``: a retry holds the run's lock, and what is queued runs after it."""
    first = project.until_and_while.delay(key, 0.0, "retry", {"countdown": 2.0})
    project.wait_ended(key)
    second = project.until_and_while.delay(key)
    third = project.until_and_while.delay(key)

    assert not second.is_duplicate
    assert third.id == second.id
    assert first.get(timeout=PATIENCE) == second.get(timeout=PATIENCE) == f"{key} done"
    assert [body.task_id for body in project.bodies(key)] == [first.id, first.id, second.id]


def test_until_expired_counts_from_acceptance(project: Project, key: str) -> None:
    """``until_expired``: refused until the period has passed, however early the run ended."""
    before = time.time()
    first = project.until_expired.apply_async((key,), lock_period=PERIOD)
    accepted = time.time()
    period = project.holder(key)
    seen = time.time()
    first.get(timeout=PATIENCE)
    ended = time.time()
    later = project.holder(key)
    assert project.until_expired.delay(key).id == first.id
    next_one = wait_until(
        lambda: _unless_duplicate(project.until_expired.delay(key)), PATIENCE, "the period has passed"
    )
    reopened = time.time()

    # A period seen between two times ends between both of them plus what remained of it.
    assert period is not None
    assert later is not None
    assert seen + period.remaining + 0.01 >= before + PERIOD
    assert ended + later.remaining <= accepted + PERIOD + 0.01
    assert reopened + 0.01 >= before + PERIOD
    next_one.get(timeout=PATIENCE)
    assert len(project.bodies(key)) == 2


@pytest.mark.parametrize("how", ["per call", "declared"])
def test_without_a_scope_nothing_is_checked_anywhere(project: Project, key: str, how: str) -> None:
    """``lock=None``: published and run beside a holder."""
    call = project.executed.si(key).set(lock=None) if how == "per call" else project.unlocked.si(key)
    with project.running(project.executed, key):
        result = call.apply_async()
        project.wait_ended(key)
    project.wait_ended(key, 2)

    assert not result.is_duplicate
    assert len(project.overlaps(key)) == 1
    assert project.bodies(key)[1].token is None


def _unless_duplicate(result: Any) -> Any:
    return None if result.is_duplicate else result

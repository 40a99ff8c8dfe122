"""What happens to a duplicate, on both sides, and how it is told."""

import pytest
from celery.exceptions import TaskRevokedError

from celery_redislock import DuplicateTask
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import LEASE, PATIENCE


def test_retry_at_publish_runs_after_the_holder(project: Project, key: str) -> None:
    """Client ``retry``: published without a claim, and put off by the worker."""
    with project.running(project.executed_or_retry, key) as first:
        second = project.executed_or_retry.delay(key)
        project.wait_received(second.id, 2)

    assert second.id != first.id
    assert second.get(timeout=PATIENCE) == f"{key} done"
    assert [body.task_id for body in project.bodies(key)] == [first.id, second.id]
    assert project.overlaps(key) == []


@pytest.mark.timing
@pytest.mark.law(10)
def test_a_short_run_is_not_waited_for_long(project: Project, key: str) -> None:
    """A waiting run backs off from 0.1 s, by how long the holder has held; not by ``lock_retry_delay``."""
    delay = 4 * LEASE
    calls = [project.while_executing.apply_async((key, 0.2), lock_retry_delay=delay) for _ in range(2)]
    for call in calls:
        call.get(timeout=PATIENCE)
    first, second = project.bodies(key)

    assert second.start - first.end < delay / 4
    assert project.overlaps(key) == []


def test_skip_at_start_ends_as_a_revoked_duplicate(project: Project, key: str) -> None:
    """Server ``skip``: a ready state that says why, instead of a ``get()`` that hangs."""
    with project.running(project.while_executing, key) as first:
        second = project.while_executing_or_skip.delay(key)
        with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
            second.get(timeout=PATIENCE)

    assert second.state == "REVOKED"
    assert len(project.bodies(key)) == 1
    (line,) = project.lines("skipped project.while_executing_or_skip", second.id)
    assert "INFO" in line
    assert first.id in line


def test_raise_at_start_fails_in_one_line(project: Project, key: str) -> None:
    """Server ``raise``: expected, so one INFO line and no traceback."""
    with project.running(project.while_executing, key) as first:
        second = project.while_executing_or_raise.delay(key)
        with pytest.raises(DuplicateTask) as refused:
            second.get(timeout=PATIENCE)
    (line,) = project.wait_lines("raised expected", second.id)
    following = project.log.partition(line)[2].lstrip()

    assert refused.value.task_id == first.id
    assert "INFO" in line
    assert not following.startswith("Traceback")


@pytest.mark.parametrize(
    ("strategy", "ending"), [("skip", "REVOKED"), ("raise", "FAILURE"), ("retry", "SUCCESS")]
)
def test_a_callable_decides_at_start(project: Project, key: str, strategy: str, ending: str) -> None:
    """A callable gets the conflict and answers with a strategy's name."""
    with project.running(project.while_executing, key) as first:
        second = project.while_executing_callable.delay(key, 0.0, None, strategy)
        conflict = ["server", first.id, second.id, f"work:{key}"]
        wait_until(lambda: conflict in project.notes(f"conflicts {key}"), PATIENCE, "it is asked")
    second.get(timeout=PATIENCE, propagate=False)

    assert second.state == ending


def test_a_fixed_id_of_a_skipped_publish_is_ready(project: Project, key: str) -> None:
    """Whoever waits for the id they chose gets an answer."""
    with project.kept_on(key):
        first = project.executed.delay(key)
        project.executed.apply_async((key,), task_id=f"{key}-fixed")
        fixed = project.executed.AsyncResult(f"{key}-fixed")
        with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
            fixed.get(timeout=PATIENCE)

    assert fixed.state == "REVOKED"
    first.get(timeout=PATIENCE)


def test_a_message_without_a_claim_is_a_duplicate_at_start(project: Project, key: str) -> None:
    """``send_task`` (and beat, and other languages) take no claim: the worker looks."""
    with project.running(project.executed, key) as first:
        second = project.app.send_task("project.executed", (key,))
        with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
            second.get(timeout=PATIENCE)

    assert len(project.bodies(key)) == 1


def test_a_message_without_a_claim_takes_the_lock_when_it_starts(project: Project, key: str) -> None:
    """And publishers meet it from then on."""
    with project.kept_on(key):
        first = project.app.send_task("project.executed", (key,))
        project.wait_started(key)
        second = project.executed.delay(key)

    assert second.id == first.id
    assert first.get(timeout=PATIENCE) == f"{key} done"
    assert project.holder(key) is None


def test_a_skipped_run_tells_its_hooks(project: Project, key: str) -> None:
    """``request.redislock_skipped`` for hooks and ``task_postrun`` receivers."""
    with project.running(project.while_executing, key):
        skipped = project.while_executing_or_skip.delay(key)
        wait_until(lambda: project.notes(f"skipped {key}"), PATIENCE, "task_postrun of the skipped run")

    assert project.notes(f"skipped {key}") == [skipped.id]


def test_a_task_that_publishes_itself_is_told_why_nothing_happened(project: Project, key: str) -> None:
    """A WARNING names ``until_executing``, which allows it."""
    result = project.executed.delay(key, 0.0, "publish_itself")

    assert result.get(timeout=PATIENCE) == [result.id, True]
    assert [line for line in project.lines("published itself") if "WARNING" in line and result.id in line]


def test_a_task_until_executing_may_publish_itself(project: Project, key: str) -> None:
    """The way the warning names."""
    result = project.until_executing.delay(key, 0.0, "publish_itself")
    next_id, is_duplicate = result.get(timeout=PATIENCE)

    assert not is_duplicate
    assert project.app.AsyncResult(next_id).get(timeout=PATIENCE) == f"{key} done"

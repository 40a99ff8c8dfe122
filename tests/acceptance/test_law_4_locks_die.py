"""Law 4, locks die with their holder: by the child, by its main process, or by expiry.

The endings of a task are in ``endings/``.
"""

import os
import signal

import pytest
from billiard.exceptions import WorkerLostError

from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.terms import (
    LEASE,
    LOST,
    PATIENCE,
)

pytestmark = pytest.mark.law(4)


@pytest.mark.parametrize("ending", ["overrun_once", "refuse_once"])
def test_a_timed_out_message_that_goes_back_to_its_queue_runs_again(
    prefork: Project, key: str, ending: str
) -> None:
    """The hard limit is stored as a failure. The key may be free meanwhile; no claim is left behind."""
    result = prefork.executed_time_limit_acks_late.delay(key, 0.0, ending, 2 * PATIENCE)
    wait_until(lambda: "" in [body.ended_by for body in prefork.bodies(key)], PATIENCE, "it runs again")
    backend = prefork.app.backend
    wait_until(
        lambda: backend.get_task_meta(result.id, cache=False)["status"] == "SUCCESS", PATIENCE, "its result"
    )

    first, again = prefork.bodies(key)
    assert (again.ended_by, {first.task_id, again.task_id}) == ("", {result.id})
    assert first.end <= again.start
    prefork.wait_free(key)


@pytest.mark.timing
def test_a_run_longer_than_lock_max_hold_loses_its_lock(project: Project, key: str) -> None:
    """No run is renewed for ever; half way there is a warning."""
    with project.running(project.executed_max_hold, key):
        (body,) = project.bodies(key)
        expired = project.wait_expired(key)
        project.wait_lines(LOST, body.task_id)

    # Renewed last before lock_max_hold (1.5 s) was over, for one ttl (1.2 s).
    assert 1.3 < expired - body.start < 1.5 + 1.2 + 0.2
    assert project.lines("half of lock_max_hold", f"work:{key}")
    assert project.wait_ended(key)[0].ended_by == ""


@pytest.mark.slow
@pytest.mark.timing
def test_a_body_that_keeps_the_interpreter_keeps_its_lock(prefork: Project, key: str) -> None:
    """C code starves the child's watchdog, and the main process renews beside it."""
    result = prefork.executed.apply_async((key, 0.0, "hold_interpreter", 2 * LEASE), lock_ttl=LEASE)
    body = prefork.wait_started(key)
    free = prefork.wait_free(key, 2 * PATIENCE)
    result.get(timeout=PATIENCE)

    (held_for,) = prefork.notes(f"interpreter {key}")
    assert held_for >= 2 * LEASE
    assert free - body.start >= held_for
    assert not [line for line in prefork.lines(LOST) if body.task_id in line]


@pytest.mark.timing
def test_a_stopped_child_keeps_its_lock_while_its_worker_lives(prefork: Project, key: str) -> None:
    """A paused body may go on at any moment, so its lock must not be free."""
    with prefork.running(prefork.executed, key, lock_ttl=LEASE) as result:
        (body,) = prefork.bodies(key)
        os.kill(body.pid, signal.SIGSTOP)
        try:
            holders = throughout(1.5 * LEASE, lambda: prefork.holder(key))
        finally:
            os.kill(body.pid, signal.SIGCONT)

    assert {holder and holder.token for holder in holders} == {body.token}
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert not [line for line in prefork.lines(LOST) if body.task_id in line]


def test_on_rabbitmq_a_killed_child_frees_its_lock_within_seconds(rabbitmq: Project, key: str) -> None:
    """The main process notices, releases, and only then stores the failure."""
    with rabbitmq.kept_on(key):
        result = rabbitmq.executed.delay(key)
        body = rabbitmq.wait_started(key)
        os.kill(body.pid, signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            result.get(timeout=PATIENCE)

        assert rabbitmq.holder(key) is None
    assert rabbitmq.executed.delay(key).get(timeout=PATIENCE) == f"{key} done"

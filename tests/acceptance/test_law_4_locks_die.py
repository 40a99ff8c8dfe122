"""Law 4, locks die with their holder: by the child, by its main process, or by expiry.

The endings of a task are in ``endings/``.
"""

import os
import signal
import sys
from collections.abc import Callable

import pytest

from tests.acceptance.brokers import REDIS_FIRST, Site
from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.terms import DEAD, KILLED, LEASE, LONG_LEASE, LOST, PATIENCE
from tests.facts import lives
from tests.tiers import slow

pytestmark = pytest.mark.law(4)


@pytest.mark.timing
def test_a_stopped_child_keeps_its_lock_while_its_worker_lives(prefork: Project, key: str) -> None:
    """It renews nothing, as one whose body keeps the interpreter; it may go on at any moment."""
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


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells of other processes")


@ON_LINUX
@pytest.mark.parametrize(
    "task", ["executed_acks_late", "until_executing_acks_late", slow("while_executing_acks_late")]
)
@pytest.mark.parametrize("broker", REDIS_FIRST)
def test_the_message_of_a_killed_worker_runs_as_soon_as_it_is_delivered_again(
    site_on: Callable[..., Site], key: str, broker: str, task: str
) -> None:
    """Law 8: the copy takes over, whether the dead run held its key or its message."""
    site = site_on(broker)
    project = site.ready()
    with project.kept_on(key):
        result = getattr(project, task).apply_async((key,), lock_ttl=LONG_LEASE, lock_retry_delay=60.0)
        body = project.wait_started(key)
        site.kill(body)
        wait_until(lambda: not lives(body.pid), PATIENCE, "both are dead")
        project.wait_received(result.id, 2)
        project.wait_started(key, 2, timeout=DEAD)
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert project.overlaps(key, killed=1) == []
    assert [line for line in project.lines(KILLED) if result.id in line]


@ON_LINUX
def test_a_child_that_outlives_its_worker_keeps_a_lock(new_project: Callable[..., Project], key: str) -> None:
    """Law 1: its body goes on. Dead itself, it holds nothing."""
    project = new_project()
    worker = project.start_worker("prefork")
    with project.kept_on(f"{key} outliving"):
        project.executed.apply_async((key, 0.0, "outlive"), lock_ttl=LONG_LEASE)
        body = project.wait_started(key)
        wait_until(lambda: project.notes(f"outliving {key}"), PATIENCE, "its main process may end")
        worker.signal(signal.SIGKILL)
        worker.process.wait(PATIENCE)
        results = throughout(1.0, lambda: project.executed.delay(key))
        assert lives(body.pid)
        assert {result.is_duplicate for result in results} == {True}
        os.kill(body.pid, signal.SIGKILL)
        wait_until(lambda: not lives(body.pid), PATIENCE, "it is dead")

    assert not project.executed.delay(key).is_duplicate

"""Law 1, mutual exclusion: while leases are valid, never two runs at once on one key."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.terms import FREED, LEASE, LONG_LEASE, PATIENCE
from tests.tiers import slow

pytestmark = pytest.mark.law(1)


def test_fifty_callers_at_once_get_one_run(project: Project, key: str) -> None:
    """Of any number of publishers at once, one publishes; the others get its result."""
    with project.kept_on(key), ThreadPoolExecutor(10) as callers:
        results = list(callers.map(lambda _: project.executed.delay(key), range(50)))
    assert {result.get(timeout=PATIENCE) for result in results} == {f"{key} done"}
    assert len(project.bodies(key)) == 1
    assert sum(not result.is_duplicate for result in results) == 1


@pytest.mark.timing
def test_a_task_longer_than_its_ttl_is_never_joined(project: Project, key: str) -> None:
    """The lease is renewed for as long as the body takes."""
    with project.running(project.executed, key, lock_ttl=LEASE) as result:
        others = throughout(1.5 * LEASE, lambda: project.executed.apply_async((key,), lock_ttl=LEASE))
    result.get(timeout=PATIENCE)
    assert {other.id for other in others} == {result.id}
    assert len(project.bodies(key)) == 1


@pytest.mark.timing
@pytest.mark.law(3)
@pytest.mark.parametrize("pool", ["prefork", slow("threads"), slow("solo")])
def test_a_worker_stopped_for_longer_than_a_lease_learns_that_it_lost_its_lock(
    new_project: Callable[..., Project], key: str, pool: str
) -> None:
    """The next run gets the lock. The first learns of its loss when it wakes, and releases nothing."""
    project = new_project()
    # With late acknowledgement and one place, a worker that is busy has asked the broker for nothing more.
    project.start_workers(2, pool, "--prefetch-multiplier", "1", concurrency=1)
    with project.kept_on(key):
        first = project.executed_acks_late_on_lost.delay(key, 0.0, "look_at_lease")
        stopped = project.wait_started(key)
        os.killpg(stopped.worker, signal.SIGSTOP)
        try:
            project.wait_free(key, FREED)
            again = (key, 0.0, "doze", 2.0)
            second = project.executed_acks_late_on_lost.apply_async(again, lock_ttl=LONG_LEASE)
            running = project.wait_started(key, 2)
        finally:
            os.killpg(stopped.worker, signal.SIGCONT)
        wait_until(lambda: stopped.token in project.notes("lost leases"), FREED, "the first learns of it")
    error = first.get(timeout=PATIENCE, propagate=False)
    holder = project.holder(key)

    assert holder is not None
    assert holder.token == running.token
    assert (type(error).__name__, error.fence) == ("LockLost", stopped.fence)
    assert second.get(timeout=PATIENCE) == f"{key} done"
    assert stopped.fence is not None
    assert running.fence is not None
    assert stopped.fence < running.fence
    assert project.notes("lost leases") == [stopped.token]
    assert project.violations(key) == []
    project.wait_free(key)

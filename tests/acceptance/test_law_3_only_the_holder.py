"""Law 3, only the holder: no release or renewal touches a lease with another token."""

from contextlib import ExitStack

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.terms import (
    LEASE,
    LOST,
    PATIENCE,
)

pytestmark = pytest.mark.law(3)


def test_the_end_of_a_run_that_lost_its_lock_spares_the_new_holder(project: Project, key: str) -> None:
    """Neither renewals nor the release of the old run touch the new one's lease."""
    with ExitStack() as until_later:
        with project.running(project.executed, key, lock_ttl=LEASE) as old:
            project.executed.lock_for(key).release(reason="a test")
            new = until_later.enter_context(project.running(project.executed, key, lock_ttl=LEASE))
            project.wait_lines(LOST, old.id)
        assert old.get(timeout=PATIENCE) == f"{key} done"
        holder = project.holder(key)
        duplicate = project.executed.delay(key)

    assert holder is not None
    assert holder.token == project.bodies(key)[1].token
    assert duplicate.id == new.id
    assert new.get(timeout=PATIENCE) == f"{key} done"
    assert not project.lines(LOST, new.id)


def test_a_body_that_lock_lost_ends_releases_nothing_and_is_not_retried(prefork: Project, key: str) -> None:
    """Law 3: ``on_lock_lost="terminate"``: the interruption ends the body and nothing after it."""
    results = []
    for number in range(3):
        result = prefork.executed_terminate.delay(key, 0.0, "doze", 2 * PATIENCE)
        prefork.wait_started(key, number + 1)
        prefork.executed.lock_for(key).release(reason="a test")
        prefork.wait_ended(key, number + 1)
        results.append(type(result.get(timeout=PATIENCE, propagate=False)).__name__)

    assert results == ["LockLost"] * 3
    assert [body.ended_by for body in prefork.bodies(key)] == ["LockLost"] * 3
    prefork.wait_free(key)
    assert prefork.executed_terminate.delay(key).get(timeout=PATIENCE) == f"{key} done"

"""Law 3, only the holder: no release or renewal touches a lease with another token."""

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.terms import (
    PATIENCE,
)

pytestmark = pytest.mark.law(3)


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

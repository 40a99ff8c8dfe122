"""What a run that lost its lock learns of it."""

import time

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE


@pytest.mark.parametrize("ending", ["spin", "doze"])
def test_a_run_that_lost_its_lock_can_be_ended(prefork: Project, key: str, ending: str) -> None:
    """``on_lock_lost="terminate"``: ``LockLost`` with its facts inside the body, out of a sleep too."""
    result = prefork.executed_terminate.delay(key, 0.0, ending, 2 * PATIENCE)
    prefork.wait_started(key)
    prefork.executed.lock_for(key).release(reason="a test")
    error = result.get(timeout=PATIENCE, propagate=False)
    wait_until(lambda: prefork.notes(f"noticed {result.id}"), PATIENCE, "the loss is noticed")

    (noticed,) = prefork.notes(f"noticed {result.id}")
    (body,) = prefork.wait_ended(key)
    assert noticed <= time.monotonic()
    assert body.end - noticed < 1.0
    assert body.ended_by == "LockLost"
    assert (type(error).__name__, error.key) == ("LockLost", f"work:{key}")
    if ending == "spin":
        ((_, name, reason),) = prefork.notes(f"lost {key}")
        assert (name, bool(reason)) == (f"work:{key}", True)
    prefork.wait_free(key)
    assert prefork.executed_terminate.delay(key).get(timeout=PATIENCE) == f"{key} done"

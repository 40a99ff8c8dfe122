"""Law 7: a retry keeps the lock, and waiting for a lock costs no retry.

The message of a retry, or of a replacement, is published at once, as Celery
does. Should it arrive before the body has unwound, it waits.
"""

import os
import signal

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.messages import captured, deliver
from tests.acceptance.terms import LONG_LEASE, PATIENCE
from tests.facts import lives

pytestmark = pytest.mark.law(7)


@pytest.mark.law(2)
def test_a_child_killed_after_it_asked_for_a_retry_loses_nothing(prefork: Project, key: str) -> None:
    """``retry(throw=False)``: the message is on its way, whatever becomes of the body."""
    with prefork.kept_on(f"{key} asked"):
        prefork.executed.delay(key, 0.0, "retry_and_stay", {"queue": prefork.aside})
        retry = wait_until(lambda: captured(prefork, if_any=True), PATIENCE, "the retry is published")
        (body,) = prefork.bodies(key)
        os.kill(body.pid, signal.SIGKILL)
        wait_until(lambda: not lives(body.pid), PATIENCE, "the child is dead")
    deliver(prefork, retry)
    wait_until(lambda: len(prefork.bodies(key)) == 2, PATIENCE, "the retry runs")
    prefork.wait_ended(key)
    prefork.wait_free(key)
    assert [body.ended_by for body in prefork.bodies(key)] == [None, ""]
    assert prefork.overlaps(key, killed=1) == []


@pytest.mark.law(1)
@pytest.mark.parametrize(
    ("ending", "more"),
    [("retry", {"times": 3}), ("retry_quietly", {"lingering": 0.5}), ("retry_lingering", None)],
)
def test_a_retry_never_overlaps_who_asked(project: Project, key: str, ending: str, more: object) -> None:
    """However the body ends, and however long it takes to unwind."""
    result = project.executed.apply_async((key, 0.1, ending, more), lock_ttl=LONG_LEASE)
    project.wait_ended(key, 4 if ending == "retry" else 2)
    wait_until(lambda: result.state == "SUCCESS", PATIENCE, "the last run's result")
    # The body that asked may have stored that state, while the last run is still releasing its lock.
    project.wait_free(key)
    assert project.overlaps(key) == []


def test_on_rabbitmq_every_retry_of_a_row_runs(rabbitmq: Project, key: str) -> None:
    """Each is published with the headers of the one before it."""
    result = rabbitmq.executed.delay(key, 0.0, "retry", {"countdown": 1, "times": 3})
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [body.retries for body in rabbitmq.bodies(key)] == [0, 1, 2, 3]
    assert rabbitmq.overlaps(key) == []

"""Where a message is that does not run: told of real workers, queues and results."""

from collections.abc import Callable

import pytest

from celery_redislock.declaring.server import settings_of
from celery_redislock.receiving.whereabouts import Whereabouts, find_message
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.paths import FUSED
from tests.acceptance.terms import PATIENCE

#: Room for one message beside the one that runs.
IN_HAND = {"redislock_restore": 6.0, "worker_prefetch_multiplier": 1}


def find(project: Project, task_id: str, *, runs: bool = False) -> Whereabouts:
    return find_message(project.app, settings_of(project.app), task_id, runs=runs)


@pytest.mark.parametrize("path", [FUSED], indirect=True)
def test_a_message_is_found_in_its_queue_in_hand_running_and_over(
    new_project: Callable[..., Project], key: str
) -> None:
    """And in the hands of a worker that was killed, with when it is back in its queue."""
    project = new_project(conf=IN_HAND)
    worker = project.start_worker("prefork", concurrency=1)
    with project.kept_on(key):
        running = project.executed.delay(key)
        project.wait_started(key)
        received = project.executed.delay(f"{key}-2")
        project.wait_received(received.id)
        for number in range(150):  # more than one request looks at
            project.executed.delay(f"{key}-first-{number}")
        queued = project.executed.delay(f"{key}-3")

        assert find(project, running.id).state == "running"
        in_hand = find(project, received.id)
        assert in_hand.state == "in hand"
        assert in_hand.told.endswith(": received, and not started")
        in_queue = find(project, queued.id)
        assert in_queue.state == "queued"
        assert ", number 151 of 151. Consumed by " in in_queue.told
        worker.end()
        lost = find(project, received.id)
        assert lost.state == "in hand"
        assert lost.header.key == f"work:{key}-2"
        assert "in the hands of a worker that does not answer: the worker " in lost.told
        assert "back in its queue" in lost.told
        assert find(project, running.id, runs=True).state == "running"
        assert find(project, "nonsense").state == "unknown"
    project.start_worker("prefork", concurrency=2)
    queued.get(timeout=PATIENCE)

    wait_until(lambda: find(project, queued.id).state == "over", PATIENCE, "its result is there")
    assert find(project, queued.id).told.startswith("its result says SUCCESS")

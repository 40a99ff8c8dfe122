"""Nothing more is lost than a plain Celery task would lose."""

import time

import pytest

from tests.acceptance.conftest import ProjectMaker
from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.terms import CLAIM_GONE, LEASE, PATIENCE
from tests.tiers import slow

pytestmark = pytest.mark.law(2)


@pytest.mark.timing
@pytest.mark.parametrize("pool", ["prefork", slow("threads")])
def test_a_message_that_waits_for_a_slot_has_its_claim(
    new_project: ProjectMaker, key: str, pool: str
) -> None:
    """Prefetched, it waits in the pool (threads: in the executor's queue) for longer than its claim lives."""
    project = new_project(conf={"worker_prefetch_multiplier": 4})
    project.start_worker(pool, concurrency=1)
    with project.running(project.executed, key) as first:
        second = project.executed.apply_async((f"{key}-waiting",), lock_queue_ttl=LEASE)
        project.wait_received(second.id)
        # Its claim would have run out.
        holders = throughout(1.5 * LEASE, lambda: project.holder(f"{key}-waiting"))
        duplicate = project.executed.delay(f"{key}-waiting")
        assert project.bodies(f"{key}-waiting") == []

    assert {holder and holder.owner for holder in holders} == {second.id}
    assert (duplicate.is_duplicate, duplicate.id) == (True, second.id)
    assert second.get(timeout=PATIENCE) == f"{key}-waiting done"
    assert first.get(timeout=PATIENCE) == f"{key} done"
    assert len(project.bodies(f"{key}-waiting")) == 1


@pytest.mark.slow
def test_on_rabbitmq_a_message_that_is_put_off_often_is_not_lost(rabbitmq: Project, key: str) -> None:
    """With what the broker noted on it, it would go in circles by the second time, and be dropped."""
    with rabbitmq.kept_on(key):
        rabbitmq.while_executing.delay(key)
        rabbitmq.wait_started(key)
        options = {"lock_retry_delay": 2.6, "lock_max_waiting": 1}
        first = rabbitmq.while_executing.apply_async((key,), **options)
        line = rabbitmq.while_executing.lock_for(key)
        wait_until(
            lambda: [each.owner for each in line.waiting()] == [first.id], PATIENCE, "the line is full"
        )
        second = rabbitmq.while_executing.apply_async((key,), **options)
        rabbitmq.wait_received(second.id, 3)
    bodies = rabbitmq.wait_ended(key, 3)

    assert second.id in {body.task_id for body in bodies}
    assert rabbitmq.overlaps(key) == []


@pytest.mark.law(7)
def test_on_rabbitmq_a_countdown_is_kept_and_its_claim_with_it(rabbitmq: Project, key: str) -> None:
    """The message runs at its ETA, and until then duplicates are refused."""
    published = time.monotonic()
    result = rabbitmq.executed.apply_async((key,), countdown=9, lock_queue_ttl=1.5 * LEASE)
    duplicate = rabbitmq.executed.delay(key)
    assert result.get(timeout=PATIENCE) == f"{key} done"
    (body,) = rabbitmq.bodies(key)
    assert duplicate.is_duplicate
    assert body.start - published >= 9.0 - 0.1
    assert rabbitmq.lines(CLAIM_GONE) == []

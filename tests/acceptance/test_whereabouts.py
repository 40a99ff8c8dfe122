"""Where a message is, beside what ``explain`` tells (``test_explain.py``)."""

from celery_redislock.declaring.server import settings_of
from celery_redislock.receiving.whereabouts import find_message, idle_queues
from tests.acceptance.conftest import ProjectMaker


def test_a_message_is_found_in_a_long_queue_without_a_worker(new_project: ProjectMaker, key: str) -> None:
    """More of them than one request looks at; what nobody knows is told to be unknown."""
    project = new_project()
    for number in range(150):
        project.executed.delay(f"{key}-{number}")
    last = project.executed.delay(key)
    over = project.unlocked.delay(key)
    project.app.backend.store_result(over.id, 1, "SUCCESS")
    found = find_message(project.app, settings_of(project.app), last.id, runs=False)
    assert (found.state, found.header and found.header.key) == ("queued", f"work:{key}")
    assert ", number 151 of 152." in found.told
    for task_id, state in ((over.id, "over"), ("nonsense", "unknown")):
        assert find_message(project.app, settings_of(project.app), task_id, runs=False).state == state


def test_a_queue_that_nobody_consumes_tells_its_length_and_its_first_messages(
    new_project: ProjectMaker, key: str
) -> None:
    """With a prefix before the broker's keys, as this project has one."""
    project = new_project()
    ids = [project.executed.delay(f"{key}-{number}").id for number in range(12)]
    (idle,) = idle_queues(project.app, ())
    assert (idle.length, idle.ids) == (12, tuple(ids[:10]))
    assert idle_queues(project.app, {idle.name}) == []

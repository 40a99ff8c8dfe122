"""What those see who listen to a worker's events, as Flower does."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from celery.events.state import State

from tests.acceptance.brokers import wait_copy, wait_late_copy
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.messages import captured, deliver
from tests.acceptance.terms import PATIENCE
from tests.tiers import slow

#: In every pool it is the main process that sends a task's events.
EVERY_POOL = ("prefork", slow("threads"), slow("gevent"), slow("solo"))


class Watcher:
    """Celery's own picture of what happens, made of the events of a project's workers."""

    def __init__(self, project: Project) -> None:
        self.state = State()
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        #: What was shown after each event of a task id; repetitions left out.
        self.shown: dict[str, list[str]] = defaultdict(list)
        self._project = project

    def _note(self, event: dict[str, Any]) -> None:
        self.state.event(event)
        if (task_id := event.get("uuid")) is not None:
            self.events[task_id].append(event)
            if self.shown[task_id][-1:] != [self.state.tasks[task_id].state]:
                self.shown[task_id].append(self.state.tasks[task_id].state)

    def wait_shown(self, task_id: str, *states: str) -> None:
        """Return when these were shown for a task id, in this order, whatever was shown between them."""

        def is_shown() -> bool:
            rest = iter([*self.shown[task_id]])
            return all(state in rest for state in states)

        wait_until(is_shown, PATIENCE, f"{task_id} is shown as {states}")

    @contextmanager
    def at_work(self) -> Iterator["Watcher"]:
        """Take in what happens until the block ends."""
        ready = threading.Event()
        with self._project.app.connection_for_read() as connection:
            receiver = self._project.app.events.Receiver(connection, handlers={"*": self._note})
            receiver.on_consume_ready = lambda *_, **__: ready.set()
            capture = partial(receiver.capture, limit=None, timeout=None, wakeup=False)
            thread = threading.Thread(target=capture, daemon=True)
            thread.start()
            try:
                assert ready.wait(PATIENCE)
                yield self
            finally:
                receiver.should_stop = True
                thread.join(PATIENCE)


@pytest.mark.parametrize("pool", EVERY_POOL)
def test_events_show_what_duplicates_became(new_project: Callable[..., Project], key: str, pool: str) -> None:
    """Skipped, it is REVOKED, by whom; while it waits, RETRY, said once; a copy changes nothing of its id."""
    project = new_project()
    project.start_workers(2, pool, "-E", concurrency=1 if pool == "solo" else 2)
    with Watcher(project).at_work() as watcher:
        project.while_executing_acks_late.apply_async((key,), queue=project.aside)
        message = captured(project)
        first = message["headers"]["id"]
        with project.kept_on(key):
            deliver(project, message)
            project.wait_started(key)
            skipped = project.while_executing_or_skip.delay(key).id
            watcher.wait_shown(skipped, "STARTED", "REVOKED")
            waits, behind = (project.while_executing.delay(key).id for _ in range(2))
            for task_id in (waits, behind):
                watcher.wait_shown(task_id, "RETRY")
            deliver(project, message, again=True)
            wait_copy(project, first)
            watcher.wait_shown(first, "STARTED")
            assert not {"RETRY", "REVOKED"} & set(watcher.shown[first])
            assert watcher.shown[first][-1] == "STARTED"
        for task_id in (waits, behind):
            watcher.wait_shown(task_id, "RETRY", "SUCCESS")
        watcher.wait_shown(first, "STARTED", "SUCCESS")
        wait_late_copy(project, first)
        last = project.unlocked.delay(key).id
        watcher.wait_shown(last, "SUCCESS")

    assert watcher.shown[first] == ["RECEIVED", "STARTED", "SUCCESS"]
    assert [watcher.shown[each][-1] for each in (skipped, waits)] == ["REVOKED", "SUCCESS"]
    # Flower's page of a task shows this.
    assert watcher.state.tasks[skipped].exception == f"duplicate of {first}"
    (revoked,) = [event for event in watcher.events[skipped] if event["type"] == "task-revoked"]
    assert (revoked["terminated"], revoked["signum"], revoked["expired"]) == (False, None, False)
    for task_id in (waits, behind):
        (retried,) = [event for event in watcher.events[task_id] if event["type"] == "task-retried"]
        assert f"held by {first}" in retried["exception"]
        assert retried["traceback"] is None

"""Projects on every broker, and how each of them comes to deliver a message a second time."""

import signal
from collections.abc import Mapping
from typing import Any

import pytest
from kombu.transport.redis import Channel

from tests.acceptance.harness import Project
from tests.acceptance.journal import Body
from tests.acceptance.paths import ELSEWHERE
from tests.acceptance.project import connection_name
from tests.acceptance.rabbitmq import RabbitMQ
from tests.acceptance.terms import DONE_BEFORE, VISIBILITY_TIMEOUT
from tests.acceptance.worker import SWEEPING, Worker
from tests.tiers import slow

#: What an app sets for each kind of queue, as Celery's manual has it for quorum queues.
RABBITMQ_QUEUES: Mapping[str, Mapping[str, Any]] = {
    "classic": {},
    "quorum": {
        "task_default_queue_type": "quorum",
        "task_default_exchange_type": "topic",
        "broker_transport_options": {"confirm_publish": True},
    },
}

#: Where messages are soon delivered again.
ON_REDIS = pytest.mark.skipif(
    not hasattr(Channel, "unacked_restore_interval"),
    reason="this kombu looks for messages to restore every 100 s, whatever it is told",
)
REDIS = pytest.param("redis", marks=ON_REDIS)
#: With its locks on another server, as on the path of this name.
REDIS_ELSEWHERE = pytest.param(ELSEWHERE, marks=(ON_REDIS, pytest.mark.slow))

#: Where rows take their time: classic queues deliver again as quorum queues do, ...
BROKERS_IN_TURN = (REDIS, REDIS_ELSEWHERE, "quorum", slow("classic"))

#: ... and what becomes of a copy is the same whoever delivers it.
REDIS_FIRST = (REDIS, REDIS_ELSEWHERE, *(slow(queue) for queue in RABBITMQ_QUEUES))


def conf_of(broker: str) -> dict[str, Any]:
    """Return the settings of a project on this broker whose messages are soon delivered again."""
    redis = {"broker_transport_options": {"visibility_timeout": VISIBILITY_TIMEOUT, **SWEEPING}}
    return {**RABBITMQ_QUEUES.get(broker, redis)}


def wait_copy(project: Project, task_id: str) -> None:
    """Return when a copy has found the run alive, and waits."""
    project.wait_waiting(task_id)


def wait_late_copy(project: Project, task_id: str) -> None:
    """Return when a copy has come after the end, and done nothing."""
    project.wait_lines(DONE_BEFORE, task_id)


class Site:
    """A project on a broker, whose two workers may be killed: the next test has two again."""

    def __init__(self, project: Project, node: RabbitMQ | None, *, children: int = 2) -> None:
        """Take over a project without workers; ``node``: its broker, where that is RabbitMQ."""
        self.project, self._node, self._children = project, node, children

    def ready(self) -> Project:
        """See to it that two workers are there, and return the project."""
        there = sum(worker.process.poll() is None for worker in self.project.workers)
        if there < 2:
            self.project.start_workers(2 - there, "prefork", concurrency=self._children)
        return self.project

    def deliver_again(self, body: Body) -> None:
        """Have the broker deliver again what this body's worker has not acknowledged.

        Redis does so by itself, when the visibility timeout has passed.
        """
        self._disconnect(connection_name(str(self.project.plan["prefix"]), body.worker))

    def deliver_all_again(self) -> None:
        """Have the broker deliver again whatever is not acknowledged; as above."""
        self._disconnect(connection_name(str(self.project.plan["prefix"])))

    def kill(self, body: Body) -> None:
        """Kill the worker that runs this body, and its child with it."""
        self.worker_of(body).signal(signal.SIGKILL)
        self.worker_of(body).process.wait(10)

    def worker_of(self, body: Body) -> Worker:
        """Return the worker that runs this body."""
        return next(worker for worker in self.project.workers if worker.process.pid == body.worker)

    def _disconnect(self, name: str) -> None:
        if self._node is not None:
            self._node.close_connections(name)

"""Shops on every broker, and how each of them comes to deliver a message a second time."""

import signal
from collections.abc import Mapping
from typing import Any

import pytest
from kombu.transport.redis import Channel

from tests.acceptance.harness import Shop, Worker
from tests.acceptance.journal import Body
from tests.acceptance.rabbitmq import RabbitMQ
from tests.acceptance.shop import connection_name
from tests.tiers import slow
from tests.workers import SWEEPING

__all__ = [
    "BROKERS_IN_TURN",
    "ON_REDIS",
    "RABBITMQ_QUEUES",
    "REDIS",
    "REDIS_FIRST",
    "Site",
    "conf_of",
    "copies_of",
    "wait_copy",
    "wait_late_copy",
]

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

#: Where rows take their time: classic queues deliver again as quorum queues do, ...
BROKERS_IN_TURN = (REDIS, "quorum", slow("classic"))

#: ... and what becomes of a copy is the same whoever delivers it.
REDIS_FIRST = (REDIS, *(slow(queue) for queue in RABBITMQ_QUEUES))


def conf_of(broker: str) -> dict[str, Any]:
    """Return the settings of a shop on this broker whose messages are soon delivered again."""
    redis = {"broker_transport_options": {"visibility_timeout": 2, **SWEEPING}}
    # A lease that a busy machine renews in time.
    patience = {"redislock_ttl": 3.0, "redislock_socket_timeout": 1.0}
    return {**patience, **RABBITMQ_QUEUES.get(broker, redis)}


def copies_of(shop: Shop, task_id: str) -> int:
    """Return how often a copy of this message has come and found its run alive."""
    return len(shop.lines("runs already", task_id))


def wait_copy(shop: Shop, task_id: str) -> None:
    """Return when a copy has found the run alive."""
    shop.wait_lines("runs already", task_id)


def wait_late_copy(shop: Shop, task_id: str) -> None:
    """Return when a copy has found the outcome recorded."""
    shop.wait_lines("was delivered again after", task_id)


class Site:
    """A shop whose two workers may be killed: the next test has two again."""

    def __init__(self, shop: Shop, node: RabbitMQ | None, *, children: int = 2) -> None:
        """Take over a shop without workers.

        Args:
            shop: on this broker.
            node: its broker, where that is RabbitMQ.
            children: of each worker. With one, a message may wait in a worker that is busy.
        """
        self.shop, self._node, self._children = shop, node, children

    def man(self) -> Shop:
        """See to it that two workers are there, and return the shop."""
        there = sum(worker.process.poll() is None for worker in self.shop.workers)
        if there < 2:
            self.shop.start_workers(2 - there, "prefork", concurrency=self._children)
        return self.shop

    def deliver_again(self, body: Body) -> None:
        """Have the broker deliver again what this body's worker has not acknowledged.

        Redis does so by itself, when the visibility timeout has passed.
        """
        self._disconnect(connection_name(str(self.shop.plan["prefix"]), body.worker))

    def deliver_all_again(self) -> None:
        """Have the broker deliver again whatever is not acknowledged; as above."""
        self._disconnect(connection_name(str(self.shop.plan["prefix"])))

    def kill(self, body: Body) -> None:
        """Kill the worker that runs this body, and its child with it."""
        self.worker_of(body).signal(signal.SIGKILL)
        self.worker_of(body).process.wait(10)

    def worker_of(self, body: Body) -> Worker:
        """Return the worker that runs this body."""
        return next(worker for worker in self.shop.workers if worker.process.pid == body.worker)

    def _disconnect(self, name: str) -> None:
        if self._node is not None:
            self._node.close_connections(name)

"""Where a message waits that must run later: in a worker, or in the broker where that holds workers up."""

from typing import Any

import pytest
from celery import Celery
from kombu.transport.native_delayed_delivery import calculate_routing_key

from celery_redislock.delay import WRITTEN_BY_BROKER, later

LADDER = "celery_delayed_27"


def app_on(broker: str, queue_type: str = "quorum", exchange_type: str = "topic") -> Celery:
    """An app that connects to nothing; its queue, exchange and routing key are all called ``sales``."""
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(
        task_default_queue="sales",
        task_default_queue_type=queue_type,
        task_default_exchange_type=exchange_type,
    )
    return app


def raw(exchange: str = "sales", routing_key: str = "sales") -> dict[str, Any]:
    return {"exchange": exchange, "routing_key": routing_key}


@pytest.mark.parametrize(
    ("app", "exchange"),
    [
        (app_on("redis://localhost/"), "sales"),
        (app_on("memory://"), "sales"),
        (app_on("amqp://localhost//", queue_type="classic"), "sales"),
        (app_on("amqp://localhost//", exchange_type="direct"), "sales"),
        (app_on("amqp://localhost//"), ""),
        (app_on("amqp://localhost//"), "another"),
    ],
    ids=["redis", "memory", "classic", "direct", "default exchange", "unknown exchange"],
)
def test_a_message_goes_where_it_came_from(app: Celery, exchange: str) -> None:
    """A worker keeps it until its ETA without being held up, or nobody else can."""
    assert later(app, raw(exchange), 5.0) == (exchange, "sales")


@pytest.mark.parametrize(("delay", "seconds"), [(0.0, 1), (0.3, 1), (1.0, 1), (4.001, 5), (3600.0, 3600)])
def test_a_quorum_queues_message_is_kept_by_the_broker(delay: float, seconds: int) -> None:
    """Never less than asked for: what comes before its ETA holds the worker up after all."""
    app = app_on("amqp://localhost//")

    assert later(app, raw(), delay) == (LADDER, calculate_routing_key(seconds, "sales"))


@pytest.mark.parametrize("exchange", ["celery_delayed_0", "celery_delayed_delivery"])
def test_a_message_that_came_down_the_ladder_goes_down_again(exchange: str) -> None:
    """Its old delay is replaced: before the new one it would be taken for a part of the queue's name."""
    app = app_on("amqp://localhost//")
    came = raw(exchange, calculate_routing_key(2, "sales"))

    assert later(app, came, 5.0) == (LADDER, calculate_routing_key(5, "sales"))


@pytest.mark.parametrize(
    ("header", "is_the_brokers"),
    [
        ("x-death", True),
        ("x-first-death-queue", True),
        ("x-last-death-reason", True),
        ("x-delivery-count", True),
        ("x-deathless", False),
        ("x-trace", False),
        ("id", False),
    ],
)
def test_only_the_brokers_own_headers_are_left_behind(header: str, *, is_the_brokers: bool) -> None:
    assert bool(WRITTEN_BY_BROKER.match(header)) == is_the_brokers

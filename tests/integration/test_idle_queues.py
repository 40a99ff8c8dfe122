"""The queues that have messages and no consumer, as the page tells them: on Redis, and on RabbitMQ."""

import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from celery import Celery
from kombu import Queue

from celery_redislock.receiving.whereabouts import Idle, idle_queues
from tests.acceptance.rabbitmq import rabbitmq_node
from tests.facts import wait_until
from tests.servers import EmbeddedServer


def app_on(url: str, *names: str, **options: object) -> Celery:
    """Return an app with these queues."""
    app = Celery(broker=url, set_as_current=False)
    app.conf.task_queues = [Queue(name) for name in names]
    app.conf.task_default_queue = names[0]
    app.conf.broker_transport_options = options
    return app


@pytest.fixture
def url() -> Iterator[str]:
    """A broker of one's own, as all its queues are looked at."""
    with EmbeddedServer() as server:
        yield server.url


@pytest.mark.parametrize("prefix", ["", "shop-"])
def test_on_redis_the_first_messages_are_named_whatever_their_priority(url: str, prefix: str) -> None:
    """Also of queues that another app has declared; not of those that are consumed, or empty."""
    app = app_on(url, "mail", "consumed", "empty", global_keyprefix=prefix)
    other = app_on(url, "theirs", global_keyprefix=prefix)
    with closing(app), closing(other):
        assert idle_queues(app, ()) == []
        ids = [app.send_task("shop.mail", (7,), queue="mail", priority=each % 10).id for each in range(12)]
        app.send_task("shop.mail", queue="consumed")
        theirs = other.send_task("shop.mail", queue="theirs").id
        mail, others = idle_queues(app, {"consumed", "nobody's"})
        assert (mail.name, mail.length, len(mail.ids)) == ("mail", 12, 10)
        assert {*mail.ids} < {*ids}
        assert others == Idle("theirs", 1, (theirs,))


@pytest.mark.slow
def test_on_rabbitmq_messages_are_counted(tmp_path: Path) -> None:
    """A queue that is not declared has none, and keeps the others from nothing."""
    names = [f"{name}-{secrets.token_hex(4)}" for name in ("mail", "consumed", "empty", "undeclared")]
    mail, consumed, empty, _ = names
    with rabbitmq_node(tmp_path) as node, closing(app_on(node.url, *names)) as app:
        with app.connection_for_write() as connection:
            for name in (mail, consumed, empty):
                app.amqp.queues[name](connection.default_channel).declare()
        for name in (mail, mail, consumed):
            app.send_task("shop.mail", (7,), queue=name)
        # What was published without a confirmation is there soon.
        assert wait_until(lambda: idle_queues(app, {consumed}) == [Idle(mail, 2)], 30)

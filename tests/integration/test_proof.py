"""What only a Redis broker knows, asked over kombu's connection; RabbitMQ: tests/acceptance/test_homes.py."""

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import redis
from celery import Celery

from celery_redislock.receiving.proof import broker_of, connect
from celery_redislock.store.home import KEPT
from tests.servers import EmbeddedServer


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A broker."""
    with EmbeddedServer(port=0) as server:
        yield server


def app_of(server: EmbeddedServer, database: int = 0, prefix: str = "", user: str = "") -> Any:
    """An app whose broker is there."""
    url = f"redis://{user}127.0.0.1:{server.port}/{database}"
    app = Celery(secrets.token_hex(4), broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": prefix}
    return app


@contextmanager
def broker_at(app: Any) -> Iterator[Any]:
    """What a worker of the app asks."""
    with connect(app) as connection:
        broker = broker_of(connection, "redislock")
        assert broker is not None
        yield broker


def name_at(app: Any) -> str:
    """What a worker of the app lets its broker know."""
    with broker_at(app) as broker:
        return str(broker.declare())


def test_each_who_asks_a_broker_finds_the_name_that_one_let_it_know(server: EmbeddedServer) -> None:
    prefix = secrets.token_hex(4)
    with broker_at(app_of(server, prefix=prefix)) as broker:
        assert broker.known([]) == []
        name = broker.declare()
        assert broker.known([]) == [name]
    assert name_at(app_of(server, prefix=prefix)) == name


def test_queues_that_are_called_otherwise_are_another_broker(server: EmbeddedServer) -> None:
    """In another database, or behind another prefix of kombu's."""
    apps = [app_of(server), app_of(server, 1), app_of(server, prefix="a"), app_of(server, prefix="b")]
    assert len({name_at(app) for app in apps}) == len(apps)


def test_the_name_lives_for_a_week_after_the_last_proof(server: EmbeddedServer) -> None:
    """As what is known of it on the lock server; so no key is without a time to live."""
    app = app_of(server, prefix="c:")
    name_at(app)
    with closing(redis.Redis(port=server.port or 0)) as client:
        assert KEPT - 10 < client.ttl("c:redislock:home") <= KEPT
        client.expire("c:redislock:home", 100)
        with broker_at(app) as broker:
            broker.known([])
        assert client.ttl("c:redislock:home") > 100


def test_where_the_user_may_not_ask_nothing_is_proved(server: EmbeddedServer) -> None:
    """Celery's own user, whose rights are those of the queues."""
    with closing(redis.Redis(port=server.port or 0)) as client:
        client.execute_command("ACL", "SETUSER", "celery", "on", ">secret", "~celery*", "~_kombu*", "+@all")
        with broker_at(app_of(server, user="celery:secret@")) as broker:
            assert broker.known([]) is None


def test_of_another_broker_nothing_can_be_proved() -> None:
    with connect(Celery("memory", broker="memory://", set_as_current=False)) as connection:
        assert broker_of(connection, "redislock") is None

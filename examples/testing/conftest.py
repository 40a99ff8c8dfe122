"""Fixtures of the application's tests."""

import gc
from collections.abc import Iterator

import pytest
import shop
from celery.contrib.testing.worker import start_worker

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks import LockStore


@pytest.fixture(autouse=True)
def empty_shop() -> None:
    shop.balances.clear()


@pytest.fixture
def eager() -> Iterator[None]:
    """``delay()`` runs the task in place, and takes its lock."""
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    yield
    shop.app.conf.update(task_always_eager=False, redislock_eager=False)


@pytest.fixture
def locks(eager: None, redislock_memory: LockStore) -> LockStore:
    """The locks, in memory; no server is asked."""
    return redislock_memory


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[EmbeddedServer]:
    """A real server for those that ask for one; named before the app is used, which then keeps to it."""
    with EmbeddedServer() as server:
        shop.app.conf.update(broker_url=server.url, result_backend=server.url)
        yield server
        # Results that outlived the server would look for it.
        gc.collect()


@pytest.fixture(scope="session")
def worker(server: EmbeddedServer) -> Iterator[None]:
    """A real worker, in a thread of this process."""
    with start_worker(shop.app, perform_ping_check=False, shutdown_timeout=30.0):
        yield

"""Results of Celery's Redis backend, with and without their server."""

import gc
import socket
import threading
from collections.abc import Iterator
from typing import Any

import celery.exceptions
import pytest
from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer


@pytest.fixture
def task(redis_url: str, celery_url: str, prefix: str) -> Iterator[Any]:
    app = Celery(broker=celery_url, backend=celery_url, set_as_current=False)
    app.conf.result_backend_transport_options = {"global_keyprefix": prefix}
    app.conf.broker_transport_options = {"global_keyprefix": prefix}
    yield app.task(base=SingletonTask, name="sync")(_sync)
    app.close()


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
def test_a_duplicates_result_is_waited_for_although_the_calls_own_timed_out(task: Any) -> None:
    """Celery before 5.7 wakes the first object of a task id only, even after it gave up."""
    first, second = task.delay(7), task.delay(7)
    assert second.is_duplicate
    with pytest.raises(celery.exceptions.TimeoutError):
        first.get(timeout=0.1)
    # Later than the waiting begins: what is recorded by then any Celery finds.
    done = threading.Timer(0.5, lambda: task.backend.mark_as_done(first.id, 42))
    done.start()

    assert second.get(timeout=5) == 42
    assert first.get(timeout=5) == 42
    done.join()


def _sync(number: int) -> None:
    """Never run: the tests say themselves how it ended."""


# Celery 5.7.0's own Redis result backend calls SETEX in this process; redis-py 8.1 deprecates it.
@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
def test_a_finished_result_outlives_its_server_and_is_dropped_in_silence(monkeypatch: Any) -> None:
    """Celery before 5.7 would connect to unsubscribe: 20 s of tries, then an error that nobody can catch."""
    with EmbeddedServer() as server:
        app = Celery(broker=server.url, backend=server.url, set_as_current=False)
        # The error alone is what the test looks for; without the tries it comes at once.
        app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0}}
        result = app.task(base=SingletonTask, name="sync")(_sync).delay(7)
        backend: Any = app.backend
        backend.mark_as_done(result.id, 42)
        assert result.get(timeout=5) == 42
    attempts: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: attempts.append(address))

    del result
    gc.collect()

    assert attempts == []
    app.close()

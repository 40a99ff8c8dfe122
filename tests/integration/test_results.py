"""Results of Celery's Redis backend, with and without their server."""

import gc
import socket
from typing import Any

import pytest
from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer


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

"""The thread of a worker that looks at lines: it never keeps a worker from starting, and ends with it."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.receiving import sweep
from tests.unit.shop import body


class Consumer:
    """As far as the step looks at one; it can be referred to weakly."""

    def __init__(self, app: Any) -> None:
        self.app = app


@pytest.mark.parametrize("enabled", [True, False])
def test_a_worker_starts_where_no_lock_server_is_named(*, enabled: bool) -> None:
    """Its check tells, and ``redislock_enabled`` is the switch for an incident."""
    app = Celery("nowhere", broker="memory://localhost", set_as_current=False)
    app.conf.redislock_enabled = enabled
    app.task(body, base=SingletonTask, shared=False, lazy=False)

    sweep.Sweeping(SimpleNamespace()).create(Consumer(app))


def test_it_looks_as_long_as_its_consumer_is_there(monkeypatch: Any) -> None:
    """A worker that a program starts and stops leaves no thread behind that asks a server."""
    consumers = [Consumer(None)]
    looks: list[int] = []

    def look() -> float:
        looks.append(len(looks))
        if len(looks) == 3:
            consumers.clear()
            gc.collect()
        return 0.0

    monkeypatch.setattr(sweep, "original", lambda *_: lambda _seconds: None)
    sweep._run(sweep.weakref.ref(consumers[0]), look)

    assert looks == [0, 1, 2]

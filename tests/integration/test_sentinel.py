"""Locks through a real Sentinel: on the primary it names, and nowhere else."""

import socket
import time
from contextlib import closing
from typing import Any

import pytest
import redis
from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer


def sell(number: int) -> int:
    return number


@pytest.mark.parametrize("place", ["broker", "setting", "setting, behind one that does not answer"])
def test_a_lock_lives_on_the_primary_that_the_sentinel_names(
    primary: EmbeddedServer, sentinel: str, place: str
) -> None:
    """Law 1: a lock at any other address would exclude nobody. Law 9: the next one knows the primary."""
    options = {"master_name": "mine"}
    settings: dict[str, Any] = {"redislock_url": sentinel, "result_backend_transport_options": options}
    if place == "broker":
        settings = {"broker_url": sentinel, "broker_transport_options": options}
    # The system accepts for it, and nobody ever reads.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if is_silent := place.endswith("does not answer"):
            settings["redislock_url"] = f"sentinel://127.0.0.1:{silent.getsockname()[1]};{sentinel}"
        with Celery("sentinel", set_as_current=False, broker="memory://") as app:
            app.conf.update(redislock_socket_timeout=1.0, **settings)
            task = app.task(base=SingletonTask, name="sell", shared=False)(sell)
            began = time.monotonic()

            task.delay(1)

            took = time.monotonic() - began
            with closing(redis.Redis(port=primary.port)) as client:
                assert len(client.keys("redislock:{*}:lock")) == 1
            assert task.lock_for(1).holder() is not None
    assert not is_silent or 0.5 < took < 5.0

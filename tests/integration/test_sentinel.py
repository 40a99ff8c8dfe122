"""Locks through a real Sentinel: on the primary it names, and nowhere else."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from celery import Celery

from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer


def sell(number: int) -> int:
    return number


def test_a_sentinel_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    """Law 9: the next one knows the primary, and leases expire meanwhile."""
    config = tmp_path / "sentinel.conf"
    with ExitStack() as stack:
        primary = stack.enter_context(EmbeddedServer(port=0))
        config.write_text(f"sentinel monitor mine 127.0.0.1 {primary.port} 1\n")
        sentinel = stack.enter_context(EmbeddedServer(port=0, extra_args=[str(config), "--sentinel"]))
        # The system accepts for it, and nobody ever reads.
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        app = Celery("sentinel", set_as_current=False, broker="memory://")
        app.conf.update(
            redislock_url=f"sentinel://127.0.0.1:{silent.getsockname()[1]};sentinel://127.0.0.1:{sentinel.port}",
            redislock_socket_timeout=1.0,
            result_backend_transport_options={"master_name": "mine"},
        )
        task = app.task(base=SingletonTask, name="sell", shared=False)(sell)
        began = time.monotonic()

        task.delay(1)

        assert 0.5 < time.monotonic() - began < 5.0
        assert task.lock_for(1).holder() is not None
        app.close()


@pytest.mark.parametrize("place", ["broker", "setting"])
def test_a_lock_lives_on_the_primary_that_the_sentinel_names(tmp_path: Path, place: str) -> None:
    """Law 1: a lock at any other address would exclude nobody."""
    config = tmp_path / "sentinel.conf"
    with EmbeddedServer(port=0) as primary:
        config.write_text(f"sentinel monitor mine 127.0.0.1 {primary.port} 1\n")
        with EmbeddedServer(port=0, extra_args=[str(config), "--sentinel"]) as sentinel:
            url, options = f"sentinel://127.0.0.1:{sentinel.port}", {"master_name": "mine"}
            app = Celery("sentinel", set_as_current=False, broker="memory://")
            if place == "broker":
                app.conf.update(broker_url=url, broker_transport_options=options)
            else:
                app.conf.update(redislock_url=url, result_backend_transport_options=options)
            task = app.task(base=SingletonTask, name="sell", shared=False)(sell)
            client = redis.Redis(port=primary.port)

            task.delay(1)
            keys = client.keys("redislock:{*}:lock")
            client.close()

            assert len(keys) == 1
            assert task.lock_for(1).holder() is not None
            app.close()

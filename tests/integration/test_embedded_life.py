"""The embedded server's life: stopped, crashed, paused, restarted."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redislock.embedded import EmbeddedServer, EmbeddedServerError
from tests.facts import lives, wait_until


def _shim_pid(server: EmbeddedServer) -> int:
    return server._launched._shim.pid


def _facts(server: EmbeddedServer) -> dict[str, Any]:
    return {"pid": server.pid, "shim": _shim_pid(server), "socket": server.socket_path}


@contextmanager
def _client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(server.redis_url, decode_responses=True, socket_timeout=5)) as client:
        yield client


def _is_gone(facts: dict[str, Any]) -> bool:
    """Whether server, shim, socket and directory are gone."""
    return not (lives(facts["pid"]) or lives(facts["shim"]) or Path(facts["socket"]).parent.exists())


class TestLife:
    def test_stop_leaves_no_process_no_socket_and_no_directory(self) -> None:
        server = EmbeddedServer().start()
        facts = _facts(server)
        assert not _is_gone(facts)

        server.stop()

        assert _is_gone(facts)

    def test_stop_and_start_may_be_said_twice(self) -> None:
        server = EmbeddedServer().start()
        pid = server.pid

        assert server.start().pid == pid
        server.stop()
        server.stop()
        assert not server.is_running

    def test_it_can_be_started_again_after_stop(self) -> None:
        server = EmbeddedServer().start()
        server.stop()

        with server, _client(server) as client:
            assert client.ping()

    def test_a_killed_server_comes_back_at_the_same_address_without_its_data(self) -> None:
        with EmbeddedServer(port=0) as server, _client(server) as client:
            client.set("key", "value")
            before = server.pid, server.url

            server.kill()

            assert not server.is_running
            with pytest.raises(redis.ConnectionError):
                client.ping()
            server.restart()
            assert server.url == before[1]
            assert server.pid != before[0]
            assert client.get("key") is None

    def test_a_data_directory_keeps_the_data_over_a_crash_and_a_new_start(self, tmp_path: Path) -> None:
        with EmbeddedServer(data_dir=tmp_path) as server, _client(server) as client:
            client.set("key", "value")
            server.kill()
            server.restart()
            assert client.get("key") == "value"

        with EmbeddedServer(data_dir=tmp_path) as server, _client(server) as client:
            assert client.get("key") == "value"

    def test_a_paused_server_answers_nothing_until_it_goes_on(self) -> None:
        with EmbeddedServer() as server, closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.connect(server.socket_path)
            connection.settimeout(0.2)
            server.pause()

            connection.sendall(b"PING\r\n")
            with pytest.raises(TimeoutError):
                connection.recv(64)
            assert server.is_running
            server.resume()
            connection.settimeout(5)
            assert connection.recv(64) == b"+PONG\r\n"

    def test_a_paused_server_can_be_stopped(self) -> None:
        server = EmbeddedServer().start()
        facts = _facts(server)
        server.pause()

        server.stop()

        assert _is_gone(facts)

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent's SIGKILL")
    def test_a_server_dies_with_the_process_that_looks_after_it(self) -> None:
        server = EmbeddedServer().start()
        facts = _facts(server)

        os.kill(facts["shim"], signal.SIGKILL)

        assert wait_until(lambda: not lives(facts["pid"]), 2)
        assert not server.is_running
        with pytest.raises(EmbeddedServerError, match="looks after"):
            server.restart()
        server.stop()
        assert _is_gone(facts)

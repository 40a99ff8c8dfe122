"""The store under test, in memory and on one server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from celery_redislock.store import redisstore, store
from tests.cluster import Cluster
from tests.faults import FaultyProxy, faulty_proxy
from tests.servers import EmbeddedServer
from tests.stores import ClusterCase, MemoryCase, RedisCase, StoreCase, start_server


@pytest.fixture(scope="session")
def url_of() -> Iterator[Callable[[str], str]]:
    """Where a server of :func:`server_names` can be reached; started once, never flushed by tests."""
    urls: dict[str, str] = {}
    with ExitStack() as stack:

        def url(name: str) -> str:
            if "://" in name:
                return name
            if name not in urls:
                server = start_server(name)
                stack.callback(server.stop)
                urls[name] = server.redis_url
            return urls[name]

        yield url


@pytest.fixture(params=["memory", "server"])
def case(request: pytest.FixtureRequest) -> StoreCase:
    """A store in memory, and one on the session's server.

    One server suffices here, because all run the same scripts, in the same Lua 5.1. Servers differ in the
    commands and options that a script may call, and clients in the types of what they send and return:
    ``test_store_smoke`` runs each script on each kind of both. A command in a rare branch is met where
    ``.ci/run`` plays this contract on other servers (``CELERY_REDISLOCK_TEST_BINARY``).
    """
    return MemoryCase() if request.param == "memory" else request.getfixturevalue("plain_case")


@pytest.fixture
def plain_case(redis_url: str) -> Iterator[RedisCase]:
    """A store on the session's server, for what only a server shows: raw keys, foreign clients, types."""
    with closing(RedisCase(redis_url)) as case:
        yield case


@pytest.fixture
def lone_case() -> Iterator[RedisCase]:
    """A store on a server to which nobody else is connected, so that connections can be counted."""
    with EmbeddedServer() as server, closing(RedisCase(server.redis_url)) as case:
        case.redis.inspect("n")  # by its own connection
        yield case


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks tell a few locks at a time, and look at fewer in one request."""
    monkeypatch.setattr(store, "SLICE", 5)
    monkeypatch.setattr(redisstore, "NAMES_PER_CALL", 4)
    monkeypatch.setattr(redisstore, "FIRST_NAMES", 4)
    monkeypatch.setattr(redisstore, "VALUES_PER_CALL", 3)
    monkeypatch.setattr(redisstore, "HEADS_PER_CALL", 2)


@pytest.fixture(scope="module")
def tcp_server() -> Iterator[EmbeddedServer]:
    """A server on a port, for the proxy before it."""
    with EmbeddedServer(port=0) as server:
        yield server


@pytest.fixture
def proxy(tcp_server: EmbeddedServer) -> Iterator[FaultyProxy]:
    """The network between that server and who is under test."""
    assert tcp_server.port is not None
    with faulty_proxy(tcp_server.port) as proxy:
        yield proxy


@pytest.fixture
def primary() -> Iterator[EmbeddedServer]:
    """The server that the Sentinel names."""
    with EmbeddedServer(port=0) as primary:
        yield primary


@pytest.fixture
def sentinel(primary: EmbeddedServer, tmp_path: Path) -> Iterator[str]:
    """The URL of a Sentinel that knows its primary as ``mine``."""
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor mine 127.0.0.1 {primary.port} 1\n")
    with EmbeddedServer(port=0, extra_args=[str(config), "--sentinel"]) as sentinel:
        yield f"sentinel://127.0.0.1:{sentinel.port}"


@pytest.fixture
def cluster_case(cluster: Cluster) -> Iterator[ClusterCase]:
    """A store on it, with short socket timeouts."""
    with closing(ClusterCase(cluster, socket_timeout=0.5)) as case:
        yield case

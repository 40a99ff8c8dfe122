"""The store under test, on memory and on every server there is."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.faults import FaultyProxy, faulty_proxy
from tests.kinds import SERVERS, ids_of, store_case
from tests.servers import EmbeddedServer
from tests.stores import ClusterCase, RedisCase, StoreCase, start_server


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


@pytest.fixture(params=["memory", *SERVERS], ids=ids_of)
def case(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Iterator[StoreCase]:
    """One of all stores that differ in more than how they are named."""
    yield from store_case(request, url_of)


@pytest.fixture(params=[*SERVERS], ids=ids_of)
def server_case(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Iterator[StoreCase]:
    """One of the stores on a server, for what only a server shows: raw keys, foreign clients, types."""
    yield from store_case(request, url_of)


@pytest.fixture
def plain_case(redis_url: str) -> Iterator[RedisCase]:
    """A store on the session's server, for what does not depend on the kind of server."""
    with closing(RedisCase(redis_url)) as case:
        yield case


@pytest.fixture
def lone_case() -> Iterator[RedisCase]:
    """A store on a server to which nobody else is connected, so that connections can be counted."""
    with EmbeddedServer() as server, closing(RedisCase(server.redis_url)) as case:
        case.redis.inspect("n")  # by its own connection
        yield case


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

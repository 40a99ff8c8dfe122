"""The store under test, on memory and on every server there is."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.faults import FaultyProxy, faulty_proxy
from tests.servers import EmbeddedServer
from tests.clients import NAMED, cannot_pass, named_case
from tests.stores import MemoryCase, RedisCase, StoreCase, server_names, start_server

#: Both protocols, and a URL that asks for text instead of bytes: the store must not care.
URL_OPTIONS = ["", "protocol=2&decode_responses=true", "protocol=3"]

SERVER_CASES = [(server, options) for server in server_names() for options in URL_OPTIONS]
SERVER_IDS = [f"{server.rpartition('/')[2]}-{options or 'plain'}" for server, options in SERVER_CASES]


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


@pytest.fixture(params=[None, *SERVER_CASES, *NAMED], ids=["memory", *SERVER_IDS, *NAMED])
def case(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Iterator[StoreCase]:
    """One of all stores."""
    if request.param is None:
        yield MemoryCase()
    else:
        yield from _redis_case(request, url_of)


@pytest.fixture(params=[*SERVER_CASES, *NAMED], ids=[*SERVER_IDS, *NAMED])
def server_case(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Iterator[RedisCase]:
    """One of the stores on a server, for what only a server shows: raw keys, foreign clients, types."""
    yield from _redis_case(request, url_of)


@pytest.fixture
def plain_case(redis_url: str) -> Iterator[RedisCase]:
    """A store on the session's server, for what does not depend on the kind of server."""
    with closing(RedisCase(redis_url)) as case:
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


def _redis_case(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Iterator[RedisCase]:
    if request.param in NAMED:
        if reason := cannot_pass(request.param, request.node.nodeid):
            pytest.skip(reason)
        case = named_case(request.param, url_of("embedded"))
    else:
        server, options = request.param
        case = RedisCase(url_of(server), options)
    yield case
    case.close()

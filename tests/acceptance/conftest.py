"""Shops: one per pool for the whole session, and more where a test needs one for itself.

Tests that share a shop keep to keys of their own. Where workers are killed,
servers go away or settings differ, a test opens its own.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from celery_redislock.embedded import EmbeddedServer
from tests.acceptance.harness import POOLS, Shop
from tests.acceptance.rabbitmq import RabbitMQ, rabbitmq_node
from tests.acceptance.sites import RABBITMQ_QUEUES, Site, conf_of
from tests.faults import FaultyProxy, faulty_proxy

ShopMaker = Callable[..., Shop]

_OPEN: list[Shop] = []


#: Where the pool makes a difference; elsewhere threads and solo are tried with what is slow.
_POOLS_DIFFER = {"test_exclusion", "test_freed_before_seen", "test_holders"}

#: Fixtures that open shops.
_SHOPS = {"any_shop", "prefork_shop", "new_shop", "faulty_shop", "open_scene", "site_on", "new_site"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timing") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1))
        if not _SHOPS.intersection(getattr(item, "fixturenames", ())):
            continue
        # Celery 5.7.0's own Redis result backend calls SETEX in this process; redis-py 8.1 deprecates it.
        item.add_marker(pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"))
        pool = getattr(item, "callspec", None) and item.callspec.params.get("any_shop")  # type: ignore[attr-defined]
        if pool in {"threads", "solo"} and item.path.stem not in _POOLS_DIFFER:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call" and report.failed:
        for shop in _OPEN:
            if shop in getattr(item, "funcargs", {}).values() or shop in getattr(item, "_shops", []):
                report.sections.extend(("worker log", worker.log[-12000:]) for worker in shop.workers)


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"k{secrets.token_hex(4)}"


def _open(celery_url: str, redis_url: str, **options: Any) -> Shop:
    broker = options.pop("broker", celery_url)
    if broker.startswith("amqp://"):
        # RabbitMQ carries messages only; rpc:// results need to be told where the locks are.
        options = {"backend": celery_url, **options}
        options["conf"] = {"redislock_url": celery_url, **(options.get("conf") or {})}
    shop = Shop(broker, redis_url, f"shop-{secrets.token_hex(4)}", **options)
    _OPEN.append(shop)
    return shop


def _close(shop: Shop) -> None:
    _OPEN.remove(shop)
    shop.close()


@contextmanager
def _opening(celery_url: str, redis_url: str, shops: list[Shop]) -> Iterator[ShopMaker]:
    def make(**options: Any) -> Shop:
        shops.append(_open(celery_url, redis_url, **options))
        return shops[-1]

    yield make
    for shop in shops:
        _close(shop)


@pytest.fixture(scope="session")
def open_shop_for_session(celery_url: str, redis_url: str) -> Iterator[ShopMaker]:
    """Opens shops that tests share."""
    with _opening(celery_url, redis_url, []) as make:
        yield make


@pytest.fixture(scope="session")
def shop_on(open_shop_for_session: ShopMaker) -> Callable[[str], Shop]:
    """Opens the shared shop of a pool: four bodies at once, in one worker (solo: two, one each).

    A solo worker asks its queue for the next message when its body has ended, so the other worker gets it.
    A body started by its ETA is another matter: the worker may have asked before (kombu 5.7.0, BRPOP).
    """
    shops: dict[str, Shop] = {}

    def shop_on(pool: str) -> Shop:
        if pool not in shops:
            shops[pool] = open_shop_for_session()
            is_solo = pool == "solo"
            shops[pool].start_workers(2 if is_solo else 1, pool, concurrency=1 if is_solo else 4)
        return shops[pool]

    return shop_on


@pytest.fixture(params=POOLS)
def any_shop(request: pytest.FixtureRequest, shop_on: Callable[[str], Shop]) -> Shop:
    """The shared shop of each pool."""
    return shop_on(request.param)


@pytest.fixture
def prefork_shop(shop_on: Callable[[str], Shop]) -> Shop:
    """The shared shop of the prefork pool, for what only it does, or what does not depend on the pool."""
    return shop_on("prefork")


@pytest.fixture(scope="module")
def protocol_1_shop(celery_url: str, redis_url: str) -> Iterator[Shop]:
    """A shop whose messages are of task protocol 1, which has no headers of its own."""
    shop = _open(celery_url, redis_url, conf={"task_protocol": 1})
    try:
        shop.start_worker("prefork", concurrency=4)
        yield shop
    finally:
        _close(shop)


@pytest.fixture(scope="module")
def network() -> Iterator[FaultyProxy]:
    """The network between a shop and its lock server; broker and results are elsewhere."""
    with EmbeddedServer(port=0) as server:
        assert server.port is not None
        with faulty_proxy(server.port) as proxy:
            proxy.delay = 0.5
            yield proxy


@pytest.fixture(scope="module")
def faulty_shop(celery_url: str, redis_url: str, network: FaultyProxy) -> Iterator[Shop]:
    """A shop with two workers, whose locks are behind a network that a test makes faulty."""
    shop = _open(celery_url, redis_url, conf={"redislock_url": network.url})
    try:
        shop.start_workers(2, "prefork", concurrency=2)
        yield shop
    finally:
        _close(shop)


@pytest.fixture
def new_shop(request: pytest.FixtureRequest, celery_url: str, redis_url: str) -> Iterator[ShopMaker]:
    """Opens shops for one test, which may do with them what it wants."""
    request.node._shops = shops = []
    with _opening(celery_url, redis_url, shops) as make:
        yield make


@pytest.fixture(scope="session")
def start_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], RabbitMQ]]:
    """Starts the session's own RabbitMQ node when first called; shops on it have queues of their own."""
    nodes: list[RabbitMQ] = []
    with ExitStack() as stack:

        def start() -> RabbitMQ:
            if not nodes:
                nodes.append(stack.enter_context(rabbitmq_node(tmp_path_factory.mktemp("rabbitmq"))))
            return nodes[0]

        yield start


@pytest.fixture(scope="session")
def open_site(start_rabbitmq: Callable[[], RabbitMQ], celery_url: str, redis_url: str) -> Callable[..., Site]:
    """Opens a shop on a broker, where messages are soon delivered again."""

    def open_site(
        broker: str, backend: str | None = None, conf: Mapping[str, Any] | None = None, **more: Any
    ) -> Site:
        node = start_rabbitmq() if broker in RABBITMQ_QUEUES else None
        options = {"broker": node.url} if node is not None else {}
        if backend is not None:
            options["backend"] = backend
        shop = _open(celery_url, redis_url, conf={**conf_of(broker), **(conf or {})}, **options)
        return Site(shop, node, **more)

    return open_site


@pytest.fixture(scope="session")
def shared_sites(open_site: Callable[..., Site]) -> Iterator[dict[tuple[str, str | None], Site]]:
    """The sites that were opened so far, by broker and result backend."""
    sites: dict[tuple[str, str | None], Site] = {}
    yield sites
    for site in sites.values():
        _close(site.shop)


@pytest.fixture
def site_on(
    request: pytest.FixtureRequest,
    open_site: Callable[..., Site],
    shared_sites: dict[tuple[str, str | None], Site],
) -> Callable[..., Site]:
    """Returns the shared site of a broker and a result backend."""

    def site_on(broker: str, backend: str | None = None) -> Site:
        if (broker, backend) not in shared_sites:
            shared_sites[broker, backend] = open_site(broker, backend)
        request.node._shops = [shared_sites[broker, backend].shop]
        return shared_sites[broker, backend]

    return site_on


@pytest.fixture
def new_site(request: pytest.FixtureRequest, open_site: Callable[..., Site]) -> Iterator[Callable[..., Site]]:
    """Opens sites for one test."""
    shops: list[Shop] = []
    request.node._shops = shops

    def make(*args: Any, **options: Any) -> Site:
        site = open_site(*args, **options)
        shops.append(site.shop)
        return site

    yield make
    for shop in shops:
        _close(shop)


@pytest.fixture
def lock_server() -> Iterator[EmbeddedServer]:
    """A lock server that may be paused and killed."""
    with EmbeddedServer() as server:
        yield server

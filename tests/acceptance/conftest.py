"""Shops: one per pool for the whole session, shared by tests that keep to keys of their own; one per test
where workers are killed, servers go away or settings differ.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redislock.embedded import EmbeddedServer
from tests.acceptance.harness import POOLS, Shop

ShopMaker = Callable[..., Shop]

_OPEN: list[Shop] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/acceptance/" in item.path.as_posix():
            # Celery 5.7.0's own Redis result backend calls SETEX in this process; redis-py 8.1 deprecates it.
            item.add_marker(
                pytest.mark.filterwarnings(r"ignore:Call to '?setex'?.*deprecated:DeprecationWarning")
            )


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
    shop = Shop(options.pop("broker", celery_url), redis_url, f"shop-{secrets.token_hex(4)}", **options)
    _OPEN.append(shop)
    return shop


def _close(shop: Shop) -> None:
    _OPEN.remove(shop)
    shop.close()


@pytest.fixture(scope="session", params=POOLS)
def any_shop(request: pytest.FixtureRequest, celery_url: str, redis_url: str) -> Iterator[Shop]:
    """The shared shop of each pool: four bodies at once, in one worker (solo: two, one each)."""
    shop = _open(celery_url, redis_url)
    try:
        if request.param == "solo":
            shop.start_workers(2, "solo")
        else:
            shop.start_worker(request.param, concurrency=4)
        yield shop
    finally:
        _close(shop)


@pytest.fixture(scope="session")
def prefork_shop(celery_url: str, redis_url: str) -> Iterator[Shop]:
    """A shared shop for what does not depend on the pool."""
    shop = _open(celery_url, redis_url)
    try:
        shop.start_worker("prefork", concurrency=4)
        yield shop
    finally:
        _close(shop)


@pytest.fixture
def new_shop(request: pytest.FixtureRequest, celery_url: str, redis_url: str) -> Iterator[ShopMaker]:
    """Opens shops for one test, which may do with them what it wants."""
    shops: list[Shop] = []
    request.node._shops = shops

    def make(**options: Any) -> Shop:
        shops.append(_open(celery_url, redis_url, **options))
        return shops[-1]

    yield make
    for shop in shops:
        _close(shop)


@pytest.fixture
def lock_server() -> Iterator[EmbeddedServer]:
    """A lock server that may be paused and killed."""
    with EmbeddedServer() as server:
        yield server

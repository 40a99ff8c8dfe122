"""What every unit test may use."""

from collections.abc import Iterator

import pytest

from celery_redislock.locks import Lock
from tests.clocks import ManualClock
from tests.scripted import FailingStore, lock_on
from tests.unit.shop import Shop, open_shop


@pytest.fixture
def clock() -> ManualClock:
    """Time stands still until a test lets it pass."""
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> FailingStore:
    """Locks in memory, by that clock."""
    return FailingStore(clock=clock)


@pytest.fixture
def lock(store: FailingStore, clock: ManualClock) -> Lock:
    """A lock of that store."""
    return lock_on(store, clock)


@pytest.fixture
def shop() -> Iterator[Shop]:
    """An app whose broker, results and locks are in memory."""
    with open_shop() as shop:
        yield shop

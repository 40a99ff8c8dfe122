"""What every unit test may use."""

from collections.abc import Iterator

import pytest

from celery_redislock.connection import use_store
from tests.unit.shop import Shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    """An app whose broker, results and locks are in memory."""
    shop = Shop()
    yield shop
    use_store(shop.app, None)
    shop.app.close()

"""What every unit test may use."""

from collections.abc import Iterator

import pytest

from celery_redislock.receiving.renewal import UNRENEWED, Unrenewed
from tests.unit.shop import Shop, open_shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    """An app whose broker, results and locks are in memory; no thread looks at what is in line."""
    Unrenewed.__init__(UNRENEWED)
    UNRENEWED._has_thread = True
    with open_shop() as shop:
        yield shop

"""What every unit test may use."""

from collections.abc import Iterator

import pytest

from tests.unit.shop import Shop, open_shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    """An app whose broker, results and locks are in memory."""
    with open_shop() as shop:
        yield shop

"""What every unit test may use."""

from collections.abc import Iterator

import pytest

from tests.clocks import ManualClock
from tests.unit.shop import Shop, let_nobody_look, open_shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    """An app whose broker, results and locks are in memory; no thread looks at what is in line."""
    let_nobody_look()
    with open_shop() as shop:
        yield shop


@pytest.fixture
def clock() -> ManualClock:
    """Time stands still until a test lets it pass."""
    return ManualClock()

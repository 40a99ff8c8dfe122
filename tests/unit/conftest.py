"""What every unit test may use."""

from collections.abc import Iterator

import pytest
from celery.worker.state import revoked

from celery_redislock.receiving import whereabouts
from tests.clocks import ManualClock
from tests.unit.shop import Shop, let_nobody_look, open_shop


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """An app whose broker, results and locks are in memory; no thread looks at what is in line.

    Who asks its workers waits for no answer: none is there.
    """
    monkeypatch.setattr(whereabouts, "_PATIENCE", 0.01)
    let_nobody_look()
    with open_shop() as shop:
        yield shop
    # Celery notes there for three hours which messages have expired (5.7.0, Request.maybe_expire).
    revoked.clear()


@pytest.fixture
def clock() -> ManualClock:
    """Time stands still until a test lets it pass."""
    return ManualClock()

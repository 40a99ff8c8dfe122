"""A worker of its own for each test: what a process remembers of its messages is forgotten between them."""

from collections.abc import Iterator

import pytest

from celery_redislock.receiving import line


@pytest.fixture(autouse=True)
def nothing_in_hand() -> Iterator[None]:
    """Requests of another test, which live until they are collected, are in no hand of this one's."""
    line.busy.clear()
    line._parked_at.clear()
    yield
    line.busy.clear()
    line._parked_at.clear()

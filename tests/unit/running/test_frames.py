"""How deep a run's way to its lock is."""

import inspect
from pathlib import Path
from typing import Any

import pytest

import celery_redislock
from tests.unit.shop import Shop

PACKAGE = Path(celery_redislock.__file__).parent


def body() -> None: ...


@pytest.mark.parametrize("lock", ["until_executed", "until_executing", "until_expired", "while_executing"])
def test_at_most_seven_frames_lie_between_a_tasks_call_and_the_store(
    shop: Shop, monkeypatch: Any, lock: str
) -> None:
    """Whoever reads a traceback of a refused run finds every step in it, and few of them."""
    task = shop.unique(body, lock=lock, lock_period=50, acks_late=True)
    task.delay()
    request = shop.receive()
    acquire = shop.store.acquire
    ways = []

    def asked(*args: Any, **kwargs: Any) -> Any:
        ours = [frame.function for frame in inspect.stack()[1:] if PACKAGE in Path(frame.filename).parents]
        ways.append(ours[: ours.index("__call__") + 1])
        return acquire(*args, **kwargs)

    monkeypatch.setattr(shop.store, "acquire", asked)

    shop.run(request)

    assert ways
    for way in ways:
        assert len(way) <= 7, " <- ".join(way)

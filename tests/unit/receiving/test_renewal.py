"""Deliveries whose renewal has not begun: which of them leave their queue, and when its thread looks."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from celery_redislock.receiving import renewal as module
from celery_redislock.receiving.renewal import UNRENEWED, Unrenewed
from tests.facts import wait_until
from tests.forks import gets_through
from tests.unit.shop import let_nobody_look, raising


class Delivery:
    """Waits in the queue, and writes down that it has left."""

    def __init__(self, left: list[str], name: str = "one", then: Callable[[], object] = bool) -> None:
        self.left, self.name, self.then = left, name, then

    def begin_renewal(self) -> None:
        """Called by the thread."""
        self.left.append(self.name)
        self.then()


@pytest.fixture
def unrenewed() -> Unrenewed:
    """A queue at which nobody looks by itself."""
    unrenewed = Unrenewed()
    unrenewed._has_thread = True
    return unrenewed


def test_what_was_there_at_the_last_look_leaves_once(unrenewed: Unrenewed) -> None:
    """Law 10: no look is at what has left, however much a worker has prefetched."""
    left: list[str] = []
    first, second = Delivery(left, "first"), Delivery(left, "second")
    unrenewed.add(first)
    unrenewed.look()
    unrenewed.add(second)
    assert left == []
    unrenewed.look()
    assert left == ["first"]
    for _ in range(3):
        unrenewed.look()
    assert left == ["first", "second"]
    assert len(unrenewed._queue) == 1


def test_what_nobody_refers_to_any_more_is_gone(unrenewed: Unrenewed) -> None:
    """Law 10: most have run by then, and a worker keeps nothing of them."""
    left: list[str] = []
    unrenewed.add(Delivery(left))
    gc.collect()
    unrenewed.look()
    unrenewed.look()
    assert left == []


@pytest.mark.parametrize("error", [ValueError("unforeseen"), SystemExit("unforeseen")], ids=repr)
def test_an_error_costs_one_delivery_only(unrenewed: Unrenewed, caplog: Any, error: BaseException) -> None:
    """Nor does it end the thread, without which nothing would be renewed any more."""
    left: list[str] = []
    broken, other = Delivery(left, "broken", raising(error)), Delivery(left, "other")
    unrenewed.add(broken)
    unrenewed.add(other)
    unrenewed.look()
    unrenewed.look()
    assert left == ["broken", "other"]
    assert "could not begin to renew" in caplog.text


def test_its_thread_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, for whatever comes."""
    monkeypatch.setattr(module, "PAUSE", 0.01)
    unrenewed, left = Unrenewed(), []
    for lap in range(2):
        deliveries = [Delivery(left, f"{lap}") for _ in range(50)]
        for delivery in deliveries:
            unrenewed.add(delivery)
        assert wait_until(lambda: len(left) == 50 * (lap + 1), 10)  # noqa: B023  awaited here


def test_a_forked_child_starts_with_an_empty_queue_and_without_a_thread() -> None:
    """What its parent has in hand is its parent's, and no thread survives a fork."""
    let_nobody_look()  # but for this test, whatever ran before it in this process
    left: list[str] = []
    delivery = Delivery(left)
    UNRENEWED.add(delivery)

    def look() -> None:
        assert len(UNRENEWED._queue) == 1
        assert not UNRENEWED._has_thread

    assert gets_through(look)
    UNRENEWED.look()
    UNRENEWED.look()
    assert left == ["one"]
    del delivery

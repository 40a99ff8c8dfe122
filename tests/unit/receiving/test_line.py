"""What the main process has in hand, until it has lasted: who leaves the line, and when its thread looks."""

import gc
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.receiving.line import LINE, Line
from tests.facts import wait_until
from tests.unit.shop import Shop, body


class Delivery:
    """Stands in line, and writes down that it has left."""

    def __init__(self, left: list[str], name: str = "one", then: Callable[[], object] = bool) -> None:
        self.left, self.name, self.then = left, name, then

    def leave_line(self) -> None:
        """Called by the line."""
        self.left.append(self.name)
        self.then()


@pytest.fixture
def line(shop: Shop) -> Line:
    """A line at which nobody looks by itself."""
    line = Line()
    line._has_thread = True
    return line


def test_what_was_there_at_the_last_look_leaves_once(line: Line, shop: Shop) -> None:
    """Law 10: no look is at what has left, however much a worker has prefetched."""
    left: list[str] = []
    task, first, second = shop.unique(body), Delivery(left, "first"), Delivery(left, "second")

    line.add(first, task)
    line.look()
    line.add(second, task)
    assert left == []
    line.look()
    assert left == ["first"]
    for _ in range(3):
        line.look()

    assert left == ["first", "second"]
    assert len(line._line) == 1


def test_what_nobody_refers_to_any_more_is_gone(line: Line, shop: Shop) -> None:
    """Law 10: most have run by then, and a worker keeps nothing of them."""
    left: list[str] = []
    line.add(Delivery(left), shop.unique(body))
    gc.collect()

    line.look()
    line.look()

    assert left == []


@pytest.mark.parametrize("error", [ValueError("unforeseen"), SystemExit("unforeseen")], ids=repr)
def test_an_error_costs_one_delivery_only(line: Line, shop: Shop, caplog: Any, error: BaseException) -> None:
    """Nor does it end the thread, without which nothing would be renewed any more."""

    def fail() -> None:
        raise error

    left: list[str] = []
    task, broken, other = shop.unique(body), Delivery(left, "broken", fail), Delivery(left, "other")
    line.add(broken, task)
    line.add(other, task)

    line.look()
    line.look()

    assert left == ["broken", "other"]
    assert "could not begin to renew" in caplog.text


def test_it_looks_often_enough_for_the_shortest_ttl(line: Line, shop: Shop) -> None:
    """Law 1: a twelfth of it, which leaves the renewal of a lease that has just begun its time."""
    deliveries = [Delivery([]) for _ in range(4)]
    waits = []
    for delivery, ttls in zip(
        deliveries, [{}, {"lock_queue_ttl": 6}, {"lock_ttl": 0.6}, {"lock_ttl": "long"}], strict=True
    ):
        task = shop.unique(body, name=f"shop.{ttls}")
        for name, ttl in ttls.items():
            setattr(task, name, ttl)
        line.add(delivery, task)
        waits.append(line._patience)

    assert waits == pytest.approx([1.0, 0.5, 0.05, 0.05])


def test_its_thread_looks_while_somebody_stands_in_line_and_is_woken_by_the_first_only(shop: Shop) -> None:
    """Law 10: not once per message; and asleep where there is none."""
    line, left, pauses = Line(), [], []
    task = shop.unique(body, lock_ttl=0.6)
    bell, rung = line._bell, []

    def get(timeout: float | None) -> Any:
        pauses.append(timeout)
        return bell.get(timeout=timeout)

    def put(_: None) -> None:
        rung.append(None)
        bell.put(None)

    line._bell = SimpleNamespace(put=put, get=get)
    for lap in range(2):
        deliveries = [Delivery(left, f"{lap}") for _ in range(50)]
        for delivery in deliveries:
            line.add(delivery, task)

        assert wait_until(lambda: len(left) == 50 * (lap + 1), 10)  # noqa: B023  awaited here
        assert wait_until(lambda: line._is_idle and pauses[-1] is None, 10)

    assert set(pauses) == {None, line._patience / 2}
    assert len(rung) <= 3  # for the shorter ttl, and for the first of each lap


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_with_an_empty_line_and_without_a_thread(line: Line, shop: Shop) -> None:
    """What its parent has in hand is its parent's, and no thread survives a fork."""
    delivery = Delivery([])
    LINE.add(delivery, shop.unique(body))
    with LINE._lock:
        pid = os.fork()
    if not pid:
        is_new = len(LINE._line) == 1 and not LINE._has_thread and LINE._lock.acquire(blocking=False)
        os._exit(0 if is_new else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(LINE._line) == 2

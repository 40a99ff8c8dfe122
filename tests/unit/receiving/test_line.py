"""What the main process has in hand, until it has lasted: who leaves the line, and when its thread looks."""

import gc
import os
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest

from celery_redislock.receiving import line as module
from celery_redislock.receiving.line import LINE, Line
from tests.facts import wait_until


class Delivery:
    """Stands in line, and writes down that it has left."""

    def __init__(self, left: list[str], name: str = "one", then: Callable[[], object] = bool) -> None:
        self.left = left
        self.name = name
        self.then = then

    def leave_line(self) -> None:
        """Called by the line."""
        self.left.append(self.name)
        self.then()


@pytest.fixture
def line() -> Line:
    """A line at which nobody looks by itself."""
    line = Line()
    line._has_thread = True
    return line


def test_what_was_there_at_the_last_look_leaves_once(line: Line) -> None:
    """Law 10: no look is at what has left, however much a worker has prefetched."""
    left: list[str] = []
    first = Delivery(left, "first")
    second = Delivery(left, "second")

    line.add(first)
    line.look()
    line.add(second)
    assert left == []
    line.look()
    assert left == ["first"]
    for _ in range(3):
        line.look()

    assert left == ["first", "second"]
    assert len(line._line) == 1


def test_what_nobody_refers_to_any_more_is_gone(line: Line) -> None:
    """Law 10: most have run by then, and a worker keeps nothing of them."""
    left: list[str] = []
    line.add(Delivery(left))
    gc.collect()

    line.look()
    line.look()

    assert left == []


@pytest.mark.parametrize("error", [ValueError("unforeseen"), SystemExit("unforeseen")], ids=repr)
def test_an_error_costs_one_delivery_only(line: Line, caplog: Any, error: BaseException) -> None:
    """Nor does it end the thread, without which nothing would be renewed any more."""

    def fail() -> None:
        raise error

    left: list[str] = []
    broken = Delivery(left, "broken", fail)
    other = Delivery(left, "other")
    line.add(broken)
    line.add(other)

    line.look()
    line.look()

    assert left == ["broken", "other"]
    assert "could not begin to renew" in caplog.text


def test_its_thread_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, for whatever comes."""
    monkeypatch.setattr(module, "PAUSE", 0.01)
    line = Line()
    left = []
    for lap in range(2):
        deliveries = [Delivery(left, f"{lap}") for _ in range(50)]
        for delivery in deliveries:
            line.add(delivery)

        assert wait_until(lambda: len(left) == 50 * (lap + 1), 10)  # noqa: B023  awaited here


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_starts_with_an_empty_line_and_without_a_thread(line: Line) -> None:
    """What its parent has in hand is its parent's, and no thread survives a fork."""
    delivery = Delivery([])
    LINE.add(delivery)
    pid = os.fork()
    if not pid:
        is_new = len(LINE._line) == 1 and not LINE._has_thread
        os._exit(0 if is_new else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ref(delivery) in LINE._line  # where what earlier tests received may stand as well

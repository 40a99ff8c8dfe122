"""A message in hand, and a run: what is no transition, and threads that meet.

What each event leaves: ``tests/unit/running/test_lives.py``. There a transition that is not foreseen fails.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError

from celery_redislock.receiving import line
from celery_redislock.receiving.request import LockRequest
from celery_redislock.running import life, transition
from tests.unit.shop import ANOTHER_PROCESS, KEY, Shop, body, einfo, revoke

Event = Callable[[LockRequest], object]


def accept(request: LockRequest) -> None:
    request.on_accepted(ANOTHER_PROCESS, time.monotonic())


def accept_here(request: LockRequest) -> None:
    request.on_accepted(os.getpid(), time.monotonic())


def fail(error: BaseException) -> Event:
    return lambda request: request.on_failure(einfo(error), return_ok=True)


def succeed(request: LockRequest) -> None:
    request.on_success((False, 7, 0.1))


killed = fail(WorkerLostError("killed"))


def received(shop: Shop) -> LockRequest:
    shop.unique(body, lock_key=KEY, acks_late=True).apply_async((7,), task_id="t1")
    return shop.receive()


@pytest.mark.parametrize(
    ("before", "event"),
    [([accept], accept), ([accept], revoke), ([succeed], succeed), ([accept, killed], succeed)],
    ids=["started twice", "dropped while it runs", "over twice", "over after its death"],
)
def test_what_cannot_happen_is_an_error_here(shop: Shop, before: list[Event], event: Event) -> None:
    """A state that is not foreseen is found by a test, and not by a lock that stays."""
    request = received(shop)
    for each in before:
        each(request)
    with pytest.raises(AssertionError, match="no such transition"):
        event(request)


def test_what_cannot_happen_to_a_run_is_an_error_too() -> None:
    """As to a message."""
    with pytest.raises(AssertionError, match="its body ends, and was 'not begun': no such transition"):
        life.END[life.NOT_BEGUN]


def test_in_a_worker_what_cannot_happen_is_logged_and_changes_no_state(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its messages run all the same."""
    monkeypatch.setattr(transition, "report", transition.log)
    request = received(shop)
    accept(request)
    accept(request)
    (record,) = (record for record in caplog.records if record.name == "celery_redislock")
    assert record.levelno == logging.ERROR
    assert "it starts elsewhere" in record.message
    assert record.stack_info is not None
    assert request.state == "runs elsewhere"


class Meanwhile:
    """Stands in for a set of states: whoever looks into it meets another thread."""

    def __init__(self, real: frozenset[str], other: threading.Thread) -> None:
        self._real, self._other = real, other

    def __contains__(self, state: str) -> bool:
        is_there = state in self._real
        self._other.start()
        self._other.join(0.3)  # it is done by then, if nothing keeps it from that
        return is_there


def test_one_that_is_parked_as_the_one_before_it_ends_is_woken(shop: Shop, monkeypatch: Any) -> None:
    """Whichever thread comes first."""
    request = received(shop)
    accept_here(request)
    ends = threading.Thread(target=succeed, args=(request,))
    monkeypatch.setattr(line, "SETTLED", Meanwhile(line.SETTLED, ends))
    shop.store.calls.clear()
    line.wake_at_end(request)
    ends.join(60)
    assert request.state == "over"
    assert shop.store.calls == ["release"]

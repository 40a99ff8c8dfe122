"""Asking the lock server until it answers, and the clock that leases are measured with."""

import time

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.wire.clock import _boottime
from celery_redislock.wire.retrying import keep_trying
from tests.clocks import ManualClock


def test_it_asks_until_the_server_answers(clock: ManualClock) -> None:
    answers = [LockUnavailable("a server", "acquire", "no answer")] * 3

    def attempt() -> float:
        if answers:
            raise answers.pop()
        return clock.now

    assert keep_trying(attempt, for_seconds=10.0, clock=clock, sleep=clock.advance) == 1000.7


def test_no_attempt_begins_later_than_the_time_given(clock: ManualClock) -> None:
    tries: list[float] = []

    def attempt() -> None:
        tries.append(clock.now)
        raise LockUnavailable("a server", "acquire", "no answer")

    with pytest.raises(LockUnavailable):
        keep_trying(attempt, for_seconds=3.0, clock=clock, sleep=clock.advance)
    assert 1002.0 < tries[-1] <= 1003.0


def test_a_clock_that_refuses_to_tell_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that fake the time may answer EINVAL for the time since boot: no task could run."""

    def refuse(_clock: int) -> float:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(time, "clock_gettime", refuse)
    assert _boottime() is time.monotonic

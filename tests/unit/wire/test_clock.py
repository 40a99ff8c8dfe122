"""The clock that leases are measured with."""

import time

import pytest

from celery_redislock.wire import clock


def test_a_clock_that_refuses_to_tell_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that fake the time may answer EINVAL for the time since boot: no task could run."""

    def refuse(_clock: int) -> float:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(time, "clock_gettime", refuse)
    assert clock._boottime() is time.monotonic

"""Beats whose clocks are apart: an interval needs no common one."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery.schedules import schedule

from tests.unit.scheduling.world import START, World


def every(seconds: float, **options: Any) -> Callable[..., Any]:
    return lambda now, app: schedule(timedelta(seconds=seconds), nowfun=now, app=app, **options)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("clock", [-20, -3, 3, 20, 50])
def test_the_death_of_a_beat_whose_clock_is_another_delays_no_interval(world: World, clock: float) -> None:
    """``docs/periodic-tasks.md``: a beat is killed, and the next tick is a moment late, in all beats."""
    first = world.beat({"entry": every(2)}, clock=clock)
    world.run(11)
    world.beat({"entry": every(2)})
    world.run(10)
    world.kill(first)
    world.run(20)

    assert {each.by for each in world.sent} == {0, 1}
    assert 1.9 <= min(world.gaps("entry")) <= max(world.gaps("entry")) <= 2.3
    assert set(world.ticks("entry").values()) == {1}


@pytest.mark.parametrize("clock", [-50, -3, 3, 50])
def test_an_interval_that_begins_with_the_hour_is_due_by_the_clock(
    monkeypatch: pytest.MonkeyPatch, clock: float
) -> None:
    """``relative=True`` rounds the due time, so that it is one moment only by the sender's reading."""
    world = World(monkeypatch, START + timedelta(minutes=30))
    for each in (clock, 0):
        world.beat({"entry": every(3600, relative=True)}, clock=each)
    world.run(4 * 3600)

    assert len(world.times("entry")) == 4
    assert min(world.gaps("entry")) > 3500

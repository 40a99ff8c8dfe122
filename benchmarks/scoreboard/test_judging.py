"""What the scoreboard concludes from facts, and the schedule it makes up."""

import pickle
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery
from celery.schedules import crontab

from benchmarks.scoreboard.bytheclock import ByTheClock
from benchmarks.scoreboard.judging import Body, once_a_tick


@pytest.mark.parametrize(
    ("starts", "passed", "seen"),
    [
        ([10.0, 13.0, 18.9], True, "3 runs for 3 ticks"),
        ([9.9, 10.1, 13.1, 16.1, 19.0], True, "3 runs for 3 ticks"),
        ([10.1, 10.2, 13.1, 16.1], False, "4 runs for 3 ticks"),
        ([10.1, 16.1], False, "2 runs for 3 ticks: 1 missed"),
        ([10.1, 16.1, 16.2], False, "3 runs for 3 ticks: 1 missed, 1 repeated"),
        ([], False, "0 runs for 3 ticks: 3 missed"),
    ],
)
def test_a_schedule_holds_if_each_tick_had_one_run(starts: list[float], passed: bool, seen: str) -> None:
    bodies = [Body("periodic", "(1,)", "id", 1, 0, False, start) for start in starts]

    outcome = once_a_tick(bodies, 10.0, 3.0, 3)

    assert (outcome.passed, outcome.seen) == (passed, seen)


def test_a_run_of_one_entry_does_not_stand_for_another() -> None:
    bodies = [Body("periodic", args, "id", 1, 0, False, 10.1) for args in ("(1,)", "(1,)", "(2,)")]

    assert once_a_tick(bodies[1:], 10.0, 3.0, 1, entries=2).passed
    assert not once_a_tick(bodies[:2], 10.0, 3.0, 1, entries=2).passed
    assert once_a_tick(bodies, 10.0, 3.0, 1, entries=3).seen == "3 runs for 3 ticks: 1 missed, 1 repeated"


@pytest.mark.parametrize("ago", [0.0, 0.5, 29.5, 59.9, 60.0, 61.0, 600.0])
@pytest.mark.parametrize("second", [0.0, 0.001, 30.0, 59.999])
def test_by_the_clock_is_due_when_a_crontab_is(ago: float, second: float) -> None:
    """Rows 20 and 21 say "as crontab"; with a minute it is one."""
    app = Celery("scoreboard", set_as_current=False)
    now = datetime(2026, 3, 1, 12, 7, tzinfo=timezone.utc) + timedelta(seconds=second)
    last = now - timedelta(seconds=ago)

    due, left = ByTheClock(60, nowfun=lambda: now, app=app).is_due(last)
    wanted, until = crontab(nowfun=lambda: now, app=app).is_due(last)

    assert (due, left) == (wanted, pytest.approx(until, abs=0.001))


def test_by_the_clock_is_the_same_after_it_was_in_a_schedule_file() -> None:
    assert pickle.loads(pickle.dumps(ByTheClock(3))) == ByTheClock(3)  # noqa: S301  its own
    assert ByTheClock(3) != ByTheClock(4)

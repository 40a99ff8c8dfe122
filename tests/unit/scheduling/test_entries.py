"""Entries that a ``lock_period`` refuses: said when a worker or a beat starts."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab

from celery_redislock import SingletonTask
from celery_redislock.receiving.check import problems_of_app
from celery_redislock.scheduling.entries import entries_of, problems_of


def nothing() -> None:
    """What the tasks do."""


@pytest.fixture
def app() -> Celery:
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.task(name="unique", shared=False, base=SingletonTask, lock_period=300)(nothing)
    app.task(name="without", shared=False, base=SingletonTask)(nothing)
    app.task(name="plain", shared=False)(nothing)
    return app


def problems(app: Celery, schedule: Any, task: str = "unique", **options: Any) -> list[str]:
    app.conf.beat_schedule = {"entry": {"task": task, "schedule": schedule, "options": options}}
    return problems_of(app, entries_of(app))


EARLY = [300.0, timedelta(seconds=299), crontab(), crontab(minute="*/5"), crontab(minute="0,3,30", hour="4")]
LATE = [300.1, timedelta(hours=1), crontab(minute="*/6"), crontab(minute="0", hour="4", day_of_week="1")]


def test_an_entry_that_is_due_before_its_period_is_over_is_a_problem(app: Celery) -> None:
    """Every other tick is refused, and nobody would know why. It is said where it can be told."""
    for schedule in EARLY:
        (problem,) = problems(app, schedule)
        assert "'entry'" in problem
        assert "lock_period of 300 s that it or its task unique" in problem
    assert [problems(app, schedule) for schedule in (*LATE, BaseSchedule())] == [[]] * 5


@pytest.mark.parametrize("hour", [0, 4, 20])
def test_the_due_times_of_another_day_are_seen_at_any_hour(app: Celery, hour: int) -> None:
    """Celery 5.5 finds the first one only, unless it is that day."""
    now = datetime(2026, 6, 1, hour, 10, tzinfo=timezone.utc)
    schedule = crontab(minute="0,3,30", hour="4", app=app, nowfun=lambda: now)
    assert len(problems(app, schedule)) == 1


def test_only_tasks_with_a_period_are_looked_at_and_the_entrys_own_option_counts(app: Celery) -> None:
    """As it does at the publish; a wrong one is a problem, and no error.

    A schedule may have ten thousand entries, and fifty due times of a crontab take a millisecond.
    """

    class Unasked(crontab):
        def remaining_delta(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("asked")

    assert [problems(app, Unasked(), task=task) for task in ("without", "plain", "unheard-of")] == [[]] * 3
    with pytest.raises(AssertionError, match="asked"):
        problems(app, Unasked())
    assert len(problems(app, 1.0, task="without", lock_period=60)) == 1
    assert problems(app, 600.0, lock_period=60) == []
    (problem,) = problems(app, 1.0, task="without", lock_period="long")
    assert "lock_period is 'long'" in problem


def test_a_wrong_option_of_an_entry_is_a_problem_that_names_the_entry(app: Celery) -> None:
    """Nobody else would say so before a tick: it would be an error then, and the tick would be spent."""
    unknown = "without.apply_async: redislock_catchupp is no option; did you mean redislock_catchup?"
    for task, option, said in (
        ("unique", {"redislock_catchup": "nonee"}, "redislock_catchup is 'nonee'; give 'one' or 'none'"),
        ("plain", {"redislock_catchup": "nonee"}, "redislock_catchup is 'nonee'; give 'one' or 'none'"),
        ("without", {"redislock_catchupp": "none"}, unknown),
    ):
        assert problems(app, 3600.0, task=task, **option) == [f"the entry 'entry' of the schedule: {said}"]
        assert problems(app, 3600.0, task=task, redislock_catchup="none") == []


def test_a_pattern_that_matches_no_entry_is_a_problem(app: Celery) -> None:
    """Its entries would be sent by each beat, and nobody would know why."""
    problems(app, 3600.0, task="plain")
    entries = entries_of(app)
    (problem,) = problems_of(app, entries, ["ent*", "pla?n", "nightly-*"])
    assert "'nightly-*' matches no entry" in problem
    assert problems_of(app, [], ["*"]) == []


def test_a_worker_says_it_too(app: Celery) -> None:
    """Whoever starts the worker may never see beat's log."""
    (problem,) = problems(app, 60.0)
    assert problem in problems_of_app(app)

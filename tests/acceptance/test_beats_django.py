"""django-celery-beat's scheduler: two beats on one database send each tick once, and its rows say so."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.database import Database
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE
from tests.acceptance.test_beats import INTERVAL, SLACK, UNIQUE, ProjectMaker, assert_once

pytest.importorskip("django_celery_beat")


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path}/schedule.db")


@pytest.fixture
def start(new_project: ProjectMaker, database: Database) -> Callable[[], Project]:
    """Starts two beats, which look for changes of their schedule every second."""

    def start() -> Project:
        project = new_project()
        plan = {"database": database.url}
        scheduler = ("-S", "django_celery_beat.schedulers:DatabaseScheduler", "--max-interval", "1")
        project.start_beats_apart(plan, plan, arguments=scheduler)
        return project

    return start


@pytest.mark.timing
def test_entries_of_the_database_are_sent_once(start: Any, database: Database, key: str) -> None:
    """The crontab is due when the beats start, as it was missed, and at each minute that begins."""
    minutely = f"{key} minutely"
    database.save("often", UNIQUE, key, interval=INTERVAL)
    database.save("minutely", UNIQUE, minutely, crontab={}, last_run_at=-300.0)
    began = time.time()
    project = start()
    ticks = project.wait_ticks(key, 5)

    assert_once(ticks)
    minutes = range(int(began // 60) + 1, int((ticks[-1].wall - SLACK) // 60) + 1)
    caught_up, *others = project.ticks(minutely)
    assert caught_up.at < ticks[1].at
    assert [int(tick.wall // 60) for tick in others if tick.wall < ticks[-1].wall - SLACK] == [
        minute for minute in minutes if minute * 60 > caught_up.wall
    ]


@pytest.mark.slow
@pytest.mark.timing
def test_a_one_off_is_sent_once_each_time_it_is_enabled(start: Any, database: Database, key: str) -> None:
    """The beat that did not send it leaves its row alone; its count would swallow the next one."""
    database.save("once", UNIQUE, key, one_off=True, clocked=4)
    project = start()

    def wait_disabled() -> None:
        # Celery looks at a clocked one again when it has read the schedule anew.
        database.save("another", UNIQUE, f"{key} another", interval=3600)
        wait_until(lambda: not database.row("once")["enabled"], PATIENCE, "it is disabled")

    project.wait_ticks(key, 1)
    wait_disabled()
    assert len(project.ticks(key)) == 1
    database.enable("once")
    project.wait_ticks(key, 2)
    wait_disabled()
    assert len(project.ticks(key)) == 2

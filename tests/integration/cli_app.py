"""An app with a schedule, for the tests of the command line; its server comes from the environment."""

import os
from typing import Any

from celery import Celery
from celery.beat import BeatLazyFunc, Scheduler
from celery.schedules import crontab, schedule

from celery_redislock import Resources, SingletonTask
from tests.integration.commands import ODD

app = Celery("cli_app", broker=os.environ["CLI_APP_URL"], include=["tests.integration.cli_app_more"])
app.conf.update(
    broker_transport_options={"global_keyprefix": os.environ["CLI_APP_PREFIX"]},
    broker_connection_timeout=1,
    task_publish_retry=False,
    redislock_beat=["tick"],
    beat_schedule={
        "nightly": {"task": "shop.nightly", "schedule": crontab(minute="0", hour="3")},
        ODD: {"task": "shop.nightly", "schedule": 3600.0, "args": (42,)},
        "refused": {"task": "shop.nightly", "schedule": 3600.0, "options": {"on_conflict": "raise"}},
        "tick": {"task": "shop.plain", "schedule": 1.0},
        "alone": {
            "task": "shop.plain",
            "schedule": crontab(minute="0", hour="4"),
            "args": (1,),
            "kwargs": {"lazy": BeatLazyFunc(os.getenv, "CLI_APP_PREFIX")},
            "options": {"queue": "other", "priority": 3, "redislock_catchup": "none"},
        },
        "by name": {"task": "another.programs", "schedule": 3600.0},
    },
)


@app.task(base=SingletonTask, name="shop.sync_account")
def sync_account(account_id: int, deep: bool = False) -> None:
    """Take a lock per arguments."""


@app.task(base=SingletonTask, name="shop.nightly", lock_key="night")
def nightly(number: int = 0) -> None:
    """Take one lock by name."""


@app.task(base=SingletonTask, name="shop.report", lock_key="shop.report")
def report(day: str) -> None:
    """Take one lock, called as the task is."""


def nothing() -> None:
    """Take the lock that it is declared with."""


OTHERS: dict[str, dict[str, Any]] = {
    "shop.alone": {"lock": "while_executing", "lock_key": "one"},
    "shop.beside": {"lock": "until_and_while_executing", "lock_key": "beside"},
    "shop.three": {"lock_key": "three", "lock_limit": lambda _: 3, "on_conflict": "raise"},
    "shop.two": {"lock": "while_executing", "lock_key": Resources("two:a", "two:b")},
}
for name, options in OTHERS.items():
    app.task(base=SingletonTask, name=name, **options)(nothing)


@app.task(name="shop.plain")
def plain(number: int = 0, lazy: str = "") -> None:
    """Take no lock."""


class Untidy(schedule):
    """Written over several lines, as django-celery-beat's crontabs are."""

    def __repr__(self) -> str:
        return "<each:\n        minute>\n        "


class Rows(Scheduler):
    """A scheduler whose entries are in a database, as django-celery-beat's are."""

    @property
    def schedule(self) -> dict[str, Any]:
        """Return the rows; ``Scheduler`` writes an attribute of this name."""
        minute = Untidy(60.0, app=self.app)
        return {"row": self.Entry(name="row", task="shop.nightly", schedule=minute, app=self.app)}

    def setup_schedule(self) -> None:
        """Do what a command that only looks must not do."""
        raise AssertionError("not lazy")


class Broken(Rows):
    """Its database is away."""

    @property
    def schedule(self) -> dict[str, Any]:
        """Fail, as a driver does."""
        raise ConnectionError("no database at db:5432")

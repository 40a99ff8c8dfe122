"""The database of django-celery-beat's scheduler: made, filled, changed and read as an admin's page does it.

Each of these is a process of its own (``python -m tests.acceptance.database URL VERB TEXT``): Django's
settings are made once in a process, and tests have others.
"""

import json
import sys
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

from tests.acceptance.processes import run_check


class Database:
    """A database with the tables of django-celery-beat."""

    def __init__(self, url: str) -> None:
        """Make its tables; ``url``: ``sqlite:///path``."""
        self.url = url
        self._do("migrate")

    def save(self, name: str, task: str, *args: Any, **fields: Any) -> None:
        """Save a periodic task: a new one, or another schedule for one.

        ``fields``: one of ``interval`` (seconds), ``crontab`` (its fields), ``clocked`` (seconds from now);
        and the model's own, ``last_run_at`` in seconds from now.
        """
        self._do("save", {"name": name, "task": task, "args": json.dumps(args), **fields})

    def enable(self, name: str) -> None:
        """Enable a periodic task again."""
        self._do("save", {"name": name, "enabled": True})

    def row(self, name: str) -> dict[str, Any]:
        """Return ``enabled`` and ``total_run_count`` of a periodic task."""
        row: dict[str, Any] = json.loads(self._do("row", {"name": name}))
        return row

    def _do(self, verb: str, about: Any = None) -> str:
        command = [sys.executable, "-m", "tests.acceptance.database", self.url, verb, json.dumps(about)]
        done = run_check(command, {})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def configure(url: str) -> None:
    """Make Django's settings in this process."""
    import django
    from django.conf import settings

    path = urlsplit(url).path
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": {"timeout": 20}}
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_beat"],
        DATABASES={"default": database},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        USE_TZ=True,
        TIME_ZONE="UTC",
        SECRET_KEY="of a test",  # noqa: S106  nothing is signed with it
    )
    django.setup()


def _save(about: dict[str, Any]) -> None:
    from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

    now = datetime.now(timezone.utc)
    if "interval" in about:
        about["interval"] = IntervalSchedule.objects.create(every=about["interval"], period="seconds")
    if "crontab" in about:
        about["crontab"] = CrontabSchedule.objects.create(**about["crontab"])
    if "clocked" in about:
        moment = now + timedelta(seconds=about["clocked"])
        about["clocked"] = ClockedSchedule.objects.create(clocked_time=moment)
    if "last_run_at" in about:
        about["last_run_at"] = now + timedelta(seconds=about["last_run_at"])
    task = PeriodicTask.objects.filter(name=about["name"]).first() or PeriodicTask()
    for field, value in about.items():
        setattr(task, field, value)
    task.save()


def _main(url: str, verb: str, about: Any) -> None:
    from django.core.management import call_command

    configure(url)
    if verb == "migrate":
        call_command("migrate", verbosity=0)
    elif verb == "save":
        _save(about)
    else:
        from django_celery_beat.models import PeriodicTask

        row = PeriodicTask.objects.get(name=about["name"])
        sys.stdout.write(json.dumps({"enabled": row.enabled, "total_run_count": row.total_run_count}))


if __name__ == "__main__":
    _main(*sys.argv[1:3], json.loads(sys.argv[3]))

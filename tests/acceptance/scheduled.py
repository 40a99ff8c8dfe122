"""The project with a schedule: what a beat imports, or a worker with a beat in it.

The plan has, beside what ``project.py`` reads:

- ``schedule``: the entries by name, as in Celery's setting, but with schedules that JSON can carry
  (:func:`_schedule`)
- ``database``: of the schedule (``database.py``), for django-celery-beat's scheduler
- ``main``: the app's name
- ``unknown``: names of tasks that this beat does not import
- ``name``: it does not begin while ``<name>@starting`` is kept on
"""

import json
import os
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery.beat import PersistentScheduler
from celery.schedules import BaseSchedule, crontab, schedstate
from celery.signals import after_task_publish, beat_init, before_task_publish

from tests.acceptance.database import configure
from tests.acceptance.project import app
from tests.acceptance.ticks import SENT, about_message


class Multiples(BaseSchedule):
    """Due at each multiple of some seconds of the clock, as a crontab is at each minute."""

    def __init__(self, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = seconds

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Due as soon as one has passed since the last run."""
        last, now = self.maybe_make_aware(last_run_at).timestamp(), self.now().timestamp()
        left = (last // self.seconds + 1) * self.seconds - now
        return schedstate(left <= 0, self.seconds - now % self.seconds if left <= 0 else left)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return how long it is to the next one."""
        return timedelta(seconds=self.is_due(last_run_at).next)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Multiples) and other.seconds == self.seconds

    __hash__ = None  # type: ignore[assignment]  # as Celery's own


class Gated(PersistentScheduler):
    """Stops while ``<key>@taken`` is kept on: before the publish of a tick begins, after it was taken."""

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send it, later."""
        app.journal.reach(entry.args[0], "taken")
        super().apply_entry(entry, producer=producer)


class OwnTick(PersistentScheduler):
    """A scheduler with a ``tick`` of its own, which goes another way."""

    def tick(self, *arguments: Any, **options: Any) -> Any:
        """Send what is due, as Celery does."""
        return super().tick(*arguments, **options)


def _schedule(plan: Any) -> Any:
    """Return a schedule: seconds, ``{"seconds": of the clock}``, or ``{"crontab": its fields}``."""
    if not isinstance(plan, Mapping):
        return plan
    return Multiples(**plan) if "seconds" in plan else crontab(**plan["crontab"])


def _note_sending(sender: str, headers: dict[str, Any], body: Any, **_: Any) -> None:
    """Write into message and journal that it leaves; stop before while ``<key>@sending`` is kept on."""
    key = next(iter(body[0]), body[1].get("key"))
    headers[SENT] = about = {"key": key, "pid": os.getpid(), "at": time.monotonic(), "wall": time.time()}
    app.journal.note(f"{key} leaves", about_message(headers))
    app.journal.reach(key, "sending")
    about.update(at=time.monotonic(), wall=time.time())


def _note_sent(sender: str, headers: dict[str, Any], body: Any, **_: Any) -> None:
    """Stop while ``<key>@sent`` is kept on."""
    app.journal.reach(headers[SENT]["key"], "sent")


@beat_init.connect(weak=False)
def _watch(sender: Any, **_: Any) -> None:
    # Here, so that a worker around this beat, and its children, write nothing into what they publish.
    before_task_publish.connect(_note_sending, weak=False)
    after_task_publish.connect(_note_sent, weak=False)


_plan = json.loads(os.environ["PROJECT_PLAN"])
if "database" in _plan:
    configure(_plan["database"])
app.main = _plan.get("main", app.main)
# As an app usually is: a schedule that was read from a file goes by the zone of the current one.
app.set_default()
app.conf.beat_schedule = {
    name: {**entry, "schedule": _schedule(entry["schedule"])} for name, entry in _plan["schedule"].items()
}
app.finalize()
for _name in _plan.get("unknown", ()):
    del app.tasks[_name]
if "name" in _plan:
    app.journal.reach(_plan["name"], "starting")

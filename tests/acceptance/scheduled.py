"""The project with a schedule: what a beat imports, or a worker with a beat in it.

The plan has, beside what ``project.py`` reads: ``schedule``, the entries by name; ``database`` for that of
django-celery-beat; ``unknown``, tasks that this beat does not import; ``name``: it does not begin while
``<name>@starting`` is kept on.
"""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from celery.schedules import crontab
from celery.signals import beat_init, before_task_publish

from tests.acceptance.database import configure
from tests.acceptance.project import app
from tests.acceptance.ticks import SENT, about_message


def _schedule(plan: Any) -> Any:
    """Return a schedule: seconds, or ``{"crontab": its fields}``."""
    return crontab(**plan["crontab"]) if isinstance(plan, Mapping) else plan


def _note_sending(sender: str, headers: dict[str, Any], body: Any, **_: Any) -> None:
    """Write into message and journal that it leaves."""
    key = next(iter(body[0]), body[1].get("key"))
    headers[SENT] = {"key": key, "pid": os.getpid(), "at": time.monotonic(), "wall": time.time()}
    app.journal.note(f"{key} leaves", about_message(headers))


@beat_init.connect(weak=False)
def _watch(sender: Any, **_: Any) -> None:
    # Here, so that a worker around this beat, and its children, write nothing into what they publish.
    before_task_publish.connect(_note_sending, weak=False)


_plan = json.loads(os.environ["PROJECT_PLAN"])
if "database" in _plan:
    configure(_plan["database"])
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

"""The entries of an app's schedule, as Celery reads them, and which of them a ``lock_period`` refuses."""

from collections.abc import Iterable
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from celery.beat import Scheduler
from celery.schedules import crontab

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.exceptions import LockOptionError

__all__ = ["entries_of", "period_problems"]

#: So many due times of a crontab are looked at for the shortest time between two.
_LOOKED_AT = 50


def entries_of(app: Any) -> list[Any]:
    """Return the entries of ``beat_schedule``; those of a database are known to its scheduler only."""
    scheduler = Scheduler(app, schedule={}, lazy=True)
    scheduler.update_from_dict(app.conf.beat_schedule or {})
    return [*scheduler.schedule.values()]


def period_problems(app: Any, entries: Iterable[Any]) -> list[str]:
    """Return a problem for each entry that comes again before its task's ``lock_period`` is over."""
    found = []
    for entry in entries:
        task = app.tasks.get(entry.task)
        if not hasattr(type(task), "_lock_names"):
            continue
        try:
            asked = {name: entry.options[name] for name in ("lock", "lock_period") if name in entry.options}
            options = declaration_of(task).for_call(asked)
        except LockOptionError as error:
            found.append(str(error))
            continue
        interval, period = _shortest_interval(entry.schedule), options.lock_period
        if options.scope is not None and period is not None and interval is not None and interval <= period:
            found.append(
                f"the entry {entry.name!r} of the schedule is due every {interval:g} s, and "
                f"lock_period={period:g} of its task {task.name} refuses every other tick; leave lock_period "
                "out: a scheduled task needs none, as each of its ticks is sent once"
            )
    return found


def _shortest_interval(schedule: Any) -> float | None:
    """Return the least seconds between two due times of a schedule; ``None`` where it cannot be told."""
    if isinstance(schedule, crontab):
        due, times = schedule.now(), list[datetime]()
        for _ in range(_LOOKED_AT):
            last, delta, _now = schedule.remaining_delta(due)
            due = last + delta
            times.append(due.astimezone(timezone.utc))
        return min((later - earlier).total_seconds() for earlier, later in pairwise(times))
    run_every = getattr(schedule, "run_every", None)
    return None if run_every is None else float(run_every.total_seconds())

"""The entries of an app's schedule, as Celery reads them: which are shared, and what is wrong with them."""

from collections.abc import Iterable
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from celery.beat import PersistentScheduler, Scheduler, Service
from celery.schedules import crontab

from celery_redislock.declaring.call_options import OF_ENTRIES
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.exceptions import LockOptionError

__all__ = ["entries_of", "is_shared", "problems_of", "scheduler_of"]

#: So many due times of a crontab are looked at for the shortest time between two.
_LOOKED_AT = 50


def entries_of(app: Any, scheduler: Any = None) -> list[Any]:
    """Return the entries of ``beat_schedule``; those of a database are known to its *scheduler* only."""
    if getattr(type(scheduler), "schedule", None) in {None, Scheduler.schedule, PersistentScheduler.schedule}:
        scheduler = Scheduler(app, schedule={}, lazy=True)
        scheduler.update_from_dict(app.conf.beat_schedule or {})
        scheduler.install_default_entries(scheduler.schedule)
    return [*scheduler.schedule.values()]


def scheduler_of(app: Any, name: str | None = None) -> Any:
    """Return the scheduler that the app names, or of this class, as ``celery beat --scheduler`` names it.

    It reads and writes no schedule file.
    """
    return Service(app, scheduler_cls=name or app.conf.beat_scheduler).get_scheduler(lazy=True)


def is_shared(app: Any, entry: Any, patterns: Iterable[str]) -> bool:
    """Whether the ticks of an entry are shared: its task is unique, or one of ``redislock_beat`` names it."""
    if hasattr(type(app.tasks.get(entry.task)), "_lock_names"):
        return True
    names = entry.name, str(entry.task)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def problems_of(app: Any, entries: Iterable[Any]) -> list[str]:
    """Return what is wrong with entries: their own options, and a ``lock_period`` that refuses ticks."""
    found = []
    for entry in entries:
        where, catchup = f"the entry {entry.name!r} of the schedule", entry.options.get(OF_ENTRIES, "one")
        if catchup not in {"one", "none"}:
            found.append(f"{where}: {OF_ENTRIES} is {catchup!r}; give 'one' or 'none'")
        task = app.tasks.get(entry.task)
        if not hasattr(type(task), "_lock_names"):
            continue
        try:
            asked = {name: entry.options[name] for name in ("lock", "lock_period") if name in entry.options}
            options = declaration_of(task).for_call(asked)
        except LockOptionError as error:
            found.append(f"{where}: {error}")
            continue
        period = options.lock_period
        if options.scope is None or period is None:
            continue
        interval = _shortest_interval(entry.schedule)
        if interval is not None and interval <= period:
            found.append(
                f"{where} may be due after {interval:g} s, and the lock_period of {period:g} s that it or "
                f"its task {task.name} has refuses what comes before that is over; leave lock_period out: "
                "a scheduled task needs none, as each of its ticks is sent once"
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

"""The entries of an app's schedule, as Celery reads them: which are shared, and what problems they have."""

from collections.abc import Iterable
from copy import copy
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import crontab

from celery_redislock.declaring.call_options import split_call_options
from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.unknown import OF_ENTRIES
from celery_redislock.exceptions import LockOptionError

#: So many due times of a crontab are looked at for the shortest time between two.
_LOOKED_AT = 50


def entries_of(app: Any, scheduler: Any = None) -> list[Any]:
    """Return the entries of ``beat_schedule``; those of a database are known to its *scheduler* only."""
    if getattr(type(scheduler), "schedule", None) in {None, Scheduler.schedule, PersistentScheduler.schedule}:
        scheduler = Scheduler(app, schedule={}, lazy=True)
        scheduler.update_from_dict(app.conf.beat_schedule or {})
        scheduler.install_default_entries(scheduler.schedule)
    return [*scheduler.schedule.values()]


def is_shared(app: Any, entry: Any, patterns: Iterable[str]) -> bool:
    """Whether the ticks of an entry are shared: its task is unique, or one of ``redislock_beat`` names it."""
    if is_unique(app.tasks.get(entry.task)):
        return True
    names = entry.name, str(entry.task)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def problems_of(app: Any, entries: Iterable[Any], patterns: Iterable[str] = ()) -> list[str]:
    """Return the problems of entries: their own options, and a ``lock_period`` that refuses ticks.

    Also the patterns of ``redislock_beat`` that match no entry.
    """
    entries = [*entries]
    names = {name for entry in entries for name in (entry.name, str(entry.task))}
    found = [
        f"redislock_beat: {pattern!r} matches no entry of the schedule, by its name or its task's"
        for pattern in patterns
        if names and not any(fnmatchcase(name, pattern) for name in names)
    ]
    for entry in entries:
        where = f"the entry {entry.name!r} of the schedule"
        catchup = entry.options.get(OF_ENTRIES, "one")
        if catchup not in {"one", "none"}:
            found.append(f"{where}: {OF_ENTRIES} is {catchup!r}; give 'one' or 'none'")
        task = app.tasks.get(entry.task)
        if not is_unique(task):
            continue
        try:
            own = split_call_options({**entry.options}, where=f"{task.name}.apply_async")
            options = declaration_of(task).for_call(own)
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
        due = schedule.now()
        times: list[datetime] = []
        # Of another day than that of "now" Celery 5.5 finds the first time only.
        moving = copy(schedule)
        moving.app = schedule.app
        moving.nowfun = lambda: due
        for _ in range(_LOOKED_AT):
            last, delta, _now = moving.remaining_delta(due)
            due = last + delta
            times.append(due.astimezone(timezone.utc))
        return min((later - earlier).total_seconds() for earlier, later in pairwise(times))
    run_every = getattr(schedule, "run_every", None)
    return None if run_every is None else float(run_every.total_seconds())

"""The schedule that beats share: its entries, when they were sent, why not, and by whom they are paused."""

import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf, isinf
from typing import Any

from celery.beat import Service

from celery_redislock.declaring.server import settings_of
from celery_redislock.operating import telling
from celery_redislock.operating.server import LockServer, Trouble
from celery_redislock.scheduling.entries import entries_of, is_shared
from celery_redislock.scheduling.state import NOTHING, Pause, State, States

#: Seconds after which an entry that is due and was not sent is told.
OVERDUE = 10.0

#: What is told of an entry that is well, and of one that is overdue.
SHARED = "shared"
NO_BEAT = "overdue: no beat sends it; see that one runs, and has this entry"


class Schedule:
    """The entries of an app's schedule by name, and what its beats share about them (``states``)."""

    def __init__(self, server: LockServer, scheduler: str | None = None) -> None:
        """Find the entries, a database's where the scheduler has one; connects to no lock server yet.

        Raises:
            Trouble: there is no app, or its schedule cannot be read or is not shared.
        """
        app = server.app
        self.store = store = server.store
        if app is None or not store.is_shared:
            raise Trouble("a schedule is an app's: name the app, celery -A proj redislock …")
        server.tasks()
        name = scheduler or app.conf.beat_scheduler
        try:
            # Lazy: it reads and writes no schedule file.
            self.scheduler = Service(app, scheduler_cls=name).get_scheduler(lazy=True)
            self.entries = {entry.name: entry for entry in entries_of(app, self.scheduler)}
        except Exception as error:
            raise Trouble(
                f"the entries of the scheduler {name} cannot be read: {type(error).__name__}: {error}"
            ) from error
        if type(self.scheduler).__module__.partition(".")[0] == "redbeat":
            raise Trouble("the schedule is RedBeat's, one beat of which sends all: nothing of it is shared")
        settings = settings_of(app)
        self.patterns = settings.beat if settings.enabled else None
        self._app = app
        self.states = States(store, app.main)

    def shares(self, entry: Any) -> bool:
        """Whether beats share an entry's ticks, by the settings and tasks of this program."""
        return self.patterns is not None and is_shared(self._app, entry, self.patterns)

    def has_state(self, name: str) -> bool:
        """Whether a beat has shared an entry of this name."""
        return self.states.read([name])[1] != [NOTHING]

    def rows(self) -> list[dict[str, Any]]:
        """Return the objects of ``--json``, by name: of each entry, and of each state that has none."""
        states = {state.entry: state for state in self.states.listed()}
        names = sorted({*self.entries, *states})
        now, pauses = self.states.pauses(names)
        ahead = time.time() - now  # of the server's clock
        return [self._row(name, states.get(name), pauses.get(name), ahead) for name in names]

    def _row(self, name: str, state: State | None, pause: Pause | None, ahead: float) -> dict[str, Any]:
        entry = self.entries.get(name)
        until = None if pause is None or isinf(pause.until) else pause.until + ahead
        about = pause.facts if pause else {}
        return {
            "name": name,
            "task": entry and str(entry.task),
            "schedule": entry and " ".join(str(entry.schedule).split()).strip("<> "),
            "in_schedule": entry is not None,
            "shared": entry is None or self.shares(entry),
            "last_sent": state and state.ran and state.ran.timestamp(),
            "beat": state and state.by,
            "next_due": state.due if state else _due(entry),
            "sending_since": state.taken_at + ahead if state and state.sending_until else None,
            "last_skip": state and state.skip and state.skip._asdict(),
            "paused": pause is not None,
            "paused_until": until,
            "paused_by": f"{about['by']} on {about.get('host', '-')}" if "by" in about else None,
            "paused_since": pause and pause.since,
            "pause_reason": about.get("reason"),
        }


def _due(entry: Any) -> float | None:
    """Return when an entry is due that no beat has shared; an interval counts from when its beat began."""
    if not hasattr(entry.schedule, "run_every"):
        with suppress(Exception):  # somebody's own schedule
            left = entry.schedule.remaining_estimate(entry.last_run_at)
            return time.time() + float(left.total_seconds())
    return None


def told_of_state(row: Mapping[str, Any]) -> str:
    """Tell what beats make of an entry: whether they share it, have paused it, are late, or skipped it."""
    since = row["sending_since"] and telling.moment(row["sending_since"])
    said: list[Any] = [
        not row["in_schedule"] and "not in this schedule",
        not row["shared"] and "not shared: each beat sends it",
        since and f"sending since {since}",
        row["paused"] and told_of_pause(row),
        is_overdue(row) and NO_BEAT,
    ]
    state = ", ".join(filter(None, said)) or SHARED
    return f"{state}; {told_of_skip(row['last_skip'])}" if row["last_skip"] else state


def is_overdue(row: Mapping[str, Any]) -> bool:
    """Whether an entry that beats share is due for longer than they take to send it."""
    due = row["next_due"] or inf
    return bool(row["shared"] and not row["paused"] and due < time.time() - OVERDUE)


def told_of_pause(row: Mapping[str, Any]) -> str:
    """Tell a pause: until when, by whom, since when and why, as far as that is known."""
    said = "paused"
    if row["paused_until"]:
        said += f" until {telling.moment(row['paused_until'])}"
    if row["paused_by"]:
        said += f" by {row['paused_by']}"
    if row["paused_since"]:
        said += f" since {telling.moment(row['paused_since'])}"
    return f"{said}: {row['pause_reason']}" if row["pause_reason"] else said


def told_of_skip(skip: Mapping[str, Any]) -> str:
    """Tell the last tick that was skipped: when, who held its key, and for how long."""
    ago = telling.duration(max(0.0, time.time() - skip["at"]))
    state = skip["state"] or "another program's lock"
    held = "" if skip["held_for"] is None else f", for {telling.duration(skip['held_for'])}"
    in_a_row = f", {skip['in_a_row']} skipped in a row" if skip["in_a_row"] > 1 else ""
    return f"last tick skipped {ago} ago: held by {skip['task_id']} ({state}{held}){in_a_row}"

"""The commands about the schedule: ``schedule``, and of an entry ``pause``, ``resume`` and ``run``."""

import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf, isinf
from typing import Any

import click
from celery.beat import Service

from celery_redislock.cli import output
from celery_redislock.cli.subject import Answer, LockServer, Trouble, answers, for_option
from celery_redislock.declaring.kinds import hint
from celery_redislock.declaring.server import settings_of
from celery_redislock.declaring.unknown import OF_ENTRIES
from celery_redislock.exceptions import DuplicateTask, RedisLockError
from celery_redislock.locks.acts import note_act, who
from celery_redislock.log import logger
from celery_redislock.scheduling.entries import entries_of, is_shared
from celery_redislock.scheduling.state import NOTHING, Pause, State, States

_entry = click.argument("name", metavar="ENTRY")


def _given_scheduler(ctx: click.Context, _param: object, value: str | None) -> str | None:
    """Return the scheduler that was named, before the command's name or behind it."""
    return value or (ctx.parent.params.get("scheduler") if ctx.parent else None)


_scheduler = click.option(
    "-S", "--scheduler", metavar="CLASS", callback=_given_scheduler,
    help="As for celery beat; by default the app's beat_scheduler.",
)  # fmt: skip

#: Seconds after which an entry that is due and was not sent is told, and what is told.
OVERDUE = 10.0
NO_BEAT = "overdue: is there a beat, and does it answer?"


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

    def unknown(self, name: str) -> Answer:
        """Say that there is no such entry."""
        remedy = hint(name, self.entries, "schedule shows those there are")
        return Answer({"entry": None}, [f"the schedule has no entry {name!r}; {remedy}"], 1)

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


def _cells(row: Mapping[str, Any]) -> list[object]:
    """Return an entry's line of the table."""
    sent, due, since = (
        row[key] and output.moment(row[key]) for key in ("last_sent", "next_due", "sending_since")
    )
    said: list[Any] = [
        not row["in_schedule"] and "not in this schedule",
        not row["shared"] and "not shared: each beat sends it",
        since and f"sending since {since}",
        row["paused"] and told_of_pause(row),
        row["shared"] and not row["paused"] and (row["next_due"] or inf) < time.time() - OVERDUE and NO_BEAT,
    ]
    state = ", ".join(filter(None, said)) or "shared"
    if row["last_skip"]:
        state += f"; {told_of_skip(row['last_skip'])}"
    sent = sent or (row["shared"] and "never")
    return [row["name"], row["task"], row["schedule"], sent, row["beat"], due, state]


def told_of_pause(row: Mapping[str, Any]) -> str:
    """Tell a pause: until when, by whom, since when and why, as far as that is known."""
    said = "paused"
    if row["paused_until"]:
        said += f" until {output.moment(row['paused_until'])}"
    if row["paused_by"]:
        said += f" by {row['paused_by']}"
    if row["paused_since"]:
        said += f" since {output.moment(row['paused_since'])}"
    return f"{said}: {row['pause_reason']}" if row["pause_reason"] else said


def told_of_skip(skip: Mapping[str, Any]) -> str:
    """Tell the last tick that was skipped: when, who held its key, and for how long."""
    ago = output.duration(max(0.0, time.time() - skip["at"]))
    state = skip["state"] or "another program's lock"
    held = "" if skip["held_for"] is None else f", for {output.duration(skip['held_for'])}"
    in_a_row = f", {skip['in_a_row']} skipped in a row" if skip["in_a_row"] > 1 else ""
    return f"last tick skipped {ago} ago: held by {skip['task_id']} ({state}{held}){in_a_row}"


@click.group("schedule", invoke_without_command=True)
@_scheduler
@answers
def listed(server: LockServer, scheduler: str | None) -> Answer:
    """List the entries of the schedule, and what the beats have made of them; pause, resume or run one.

    The state is "shared" (one of any number of beats sends each tick), "not shared: each beat sends it"
    (its task is not unique, and redislock_beat does not name it), "sending since …" (for more than ten
    seconds: its beat is dead or stopped, and there is no other), or "paused". If the last tick was skipped,
    because its task was still queued or running, the state also names the task id that held the key. A
    skipped tick was not sent.
    An entry that is "not in this schedule" has been sent by a beat with another one, such as a
    database's (--scheduler), or has been removed.

    Exit status: 0 (even if there are none); 2 on error.
    """
    rows = Schedule(server, scheduler).rows()
    head = ["NAME", "TASK", "SCHEDULE", "LAST SENT", "BEAT", "NEXT DUE", "STATE"]
    lines = output.table([head, *map(_cells, rows)]) if rows else ["the schedule has no entries"]
    return Answer({"entries": rows}, lines)


@listed.command("run")
@_entry
@_scheduler
@answers
def run_now(server: LockServer, name: str, scheduler: str | None) -> Answer:
    """Publish an entry's task now, with its arguments and options.

    This does not change the schedule: the entry's next tick is sent when it is due, and a paused entry stays
    paused. A unique task that is queued or running already is skipped, as by delay().

    Exit status: 0 sent; 1 it is a duplicate, or there is no such entry; 2 on error.
    """
    schedule = Schedule(server, scheduler)
    entry = schedule.entries.get(name)
    if entry is None:
        return schedule.unknown(name)
    entry.options = {key: value for key, value in entry.options.items() if key != OF_ENTRIES}
    task_id = None
    try:
        result = schedule.scheduler.apply_async(entry, advance=False)
        task_id = result.id
        how = ", by period" if getattr(result, "period", None) else ""
        skipped = f"duplicate of task {result.id}{how}" if getattr(result, "is_duplicate", False) else None
    except Exception as error:
        cause = error.__context__ or error  # Celery raises a SchedulingError in place of it
        if not isinstance(cause, DuplicateTask):
            if isinstance(cause, RedisLockError):
                raise cause from None
            raise Trouble(f"{name} was not sent: {type(cause).__name__}: {cause}") from error
        skipped = str(cause)
    outcome = f"skipped: {skipped}" if skipped else f"sent: {entry.task}[{task_id}]"
    note_act(schedule.store, "run", name, outcome)
    document = {"entry": name, "task_id": task_id, "skipped": skipped}
    line = f"skipped {name}: {skipped}" if skipped else f"sent {name}: {entry.task}[{task_id}]"
    return Answer(document, [line], 1 if skipped else 0)


@listed.command("pause")
@_entry
@for_option
@click.option("--reason", metavar="TEXT", help="Why; shown by schedule, and in the log.")
@_scheduler
@answers
def pause(
    server: LockServer, name: str, seconds: float | None, reason: str | None, scheduler: str | None
) -> Answer:
    """Let an entry's ticks pass unsent, on all beats.

    For the TIME given, else until the entry is resumed, a year at most. Ticks that pass meanwhile are not
    sent later. Messages that were sent before the pause still run. A second pause replaces the first. The
    command schedule shows who paused the entry, and why.

    Exit status: 0 paused; 1 there is no such entry; 2 on error.
    """
    schedule = Schedule(server, scheduler)
    entry = schedule.entries.get(name)
    has_state = schedule.has_state(name)
    if entry is None and not has_state:
        return schedule.unknown(name)
    if not (has_state or schedule.shares(entry)):
        remedy = "name it in redislock_beat, or make its task a unique one"
        if schedule.patterns is None:
            remedy = "redislock_beat is False, or locking is switched off"
        raise Trouble(f"{name} is not shared, so no beat asks whether it is paused; {remedy}")
    schedule.states.pause(name, seconds, {**who(), "reason": reason})
    until = "until it is resumed" if seconds is None else f"until {output.moment(time.time() + seconds)}"
    why = f": {reason}" if reason else ""
    logger.warning("paused the entry %r of the schedule by hand, %s%s", name, until, why)
    span = "until it is resumed" if seconds is None else f"for {seconds:g} s"
    note_act(schedule.store, "pause", name, span, reason)
    return Answer({"entry": name, "paused": True}, [f"paused {name} {until}"])


@listed.command("resume")
@_entry
@_scheduler
@answers
def resume(server: LockServer, name: str, scheduler: str | None) -> Answer:
    """End an entry's pause: its next tick is sent when it is due.

    Exit status: 0 resumed; 1 it was not paused, or there is no such entry; 2 on error.
    """
    schedule = Schedule(server, scheduler)
    if not schedule.states.resume(name):
        is_known = name in schedule.entries or schedule.has_state(name)
        return Answer({"entry": name}, [f"{name} is not paused"], 1) if is_known else schedule.unknown(name)
    logger.warning("resumed the entry %r of the schedule by hand", name)
    note_act(schedule.store, "resume", name, "resumed")
    return Answer({"entry": name, "paused": False}, [f"resumed {name}"])


COMMANDS: Mapping[str, click.Command] = {"schedule": listed}

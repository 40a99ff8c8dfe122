"""The commands about the schedule: ``schedule``, and of an entry ``pause``, ``resume`` and ``run``."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from celery_redislock.cli import output
from celery_redislock.cli.answer import Answer, answers, for_option
from celery_redislock.declaring.kinds import hint
from celery_redislock.declaring.unknown import OF_ENTRIES
from celery_redislock.exceptions import DuplicateTask, RedisLockError
from celery_redislock.locks.acts import note_act, who
from celery_redislock.log import logger
from celery_redislock.operating import telling
from celery_redislock.operating.schedule import Schedule, told_of_state
from celery_redislock.operating.server import LockServer, Trouble

_entry = click.argument("name", metavar="ENTRY")


def _given_scheduler(ctx: click.Context, _param: object, value: str | None) -> str | None:
    """Return the scheduler that was named, before the command's name or behind it."""
    return value or (ctx.parent.params.get("scheduler") if ctx.parent else None)


_scheduler = click.option(
    "-S", "--scheduler", metavar="CLASS", callback=_given_scheduler,
    help="As for celery beat; by default the app's beat_scheduler.",
)  # fmt: skip


_HEAD = ("NAME", "TASK", "SCHEDULE", "LAST SENT", "BEAT", "NEXT DUE", "STATE")

#: Celery's words around what one would write in a crontab.
_AROUND = re.compile(r"^(crontab|freq): | \(m/h/.*\)$")

#: How the table is cut, with short times.
_CUTS = {"BEAT": 5, "TASK": 5, "STATE": 16, "NAME": 12, "SCHEDULE": 9}.items()


def _table(rows: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    lines = output.table([_HEAD, *(_cells(row, telling.moment) for row in rows)], output.UNCUT, ())
    if max(map(len, lines)) <= width:
        return lines
    short = [{**row, "schedule": _AROUND.sub("", row["schedule"] or "")} for row in rows]
    return output.table([_HEAD, *(_cells(row, telling.briefly) for row in short)], width, _CUTS)


def _cells(row: Mapping[str, Any], told: Callable[[float], str]) -> list[object]:
    """Return an entry's line of the table; ``told`` writes a time."""
    sent, due = (row[key] and told(row[key]) for key in ("last_sent", "next_due"))
    sent = sent or (row["shared"] and "never")
    return [row["name"], row["task"], row["schedule"], sent, row["beat"], due, told_of_state(row)]


def _unknown(schedule: Schedule, name: str) -> Answer:
    """Say that there is no such entry."""
    remedy = hint(name, schedule.entries, "schedule shows those there are")
    return Answer({"entry": None}, [f"the schedule has no entry {name!r}; {remedy}"], 1)


@click.group("schedule", invoke_without_command=True)
@_scheduler
@output.wide_option
@answers
def listed(server: LockServer, scheduler: str | None, wide: bool) -> Answer:
    """List the entries of the schedule; pause, resume or run one.

    It shows what the beats have made of each. The state is "shared" (one of any number of beats sends each
    tick), "not shared: each beat sends it" (its task is not unique, and redislock_beat does not name it),
    "sending since …" (for more than ten seconds: its beat is dead or stopped, and there is no other), or
    "paused". If the last tick was skipped, because its task was still queued or running, the state also names
    the task id that held the key. A skipped tick was not sent. An entry that is "not in this schedule" has
    been sent by a beat with another one, such as a database's (--scheduler), or has been removed.

    Exit status: 0 (even if there are none); 2 on error.
    """
    rows = Schedule(server, scheduler).rows()
    lines = _table(rows, output.width_of(wide=wide)) if rows else ["the schedule has no entries"]
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
        return _unknown(schedule, name)
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
        return _unknown(schedule, name)
    if not (has_state or schedule.shares(entry)):
        remedy = "name it in redislock_beat, or make its task a unique one"
        if schedule.patterns is None:
            remedy = "redislock_beat is False, or locking is switched off"
        raise Trouble(f"{name} is not shared, so no beat asks whether it is paused; {remedy}")
    schedule.states.pause(name, seconds, {**who(), "reason": reason})
    until = "until it is resumed" if seconds is None else f"until {telling.moment(time.time() + seconds)}"
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
        return Answer({"entry": name}, [f"{name} is not paused"], 1) if is_known else _unknown(schedule, name)
    logger.warning("resumed the entry %r of the schedule by hand", name)
    note_act(schedule.store, "resume", name, "resumed")
    return Answer({"entry": name, "paused": False}, [f"resumed {name}"])


COMMANDS: Mapping[str, click.Command] = {"schedule": listed}

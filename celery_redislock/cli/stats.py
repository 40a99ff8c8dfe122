"""The command about figures: ``stats``."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from celery_redislock.cli import output
from celery_redislock.cli.census import EVENTS, Figures, census
from celery_redislock.cli.subject import LockServer, as_json_option

_HEAD = ["TASK", *map(str.upper, EVENTS), "QUEUED", "RUNNING", "LATE", "IN LINE"]


@click.command()
@click.option("--task", metavar="NAME", help="Only this task; a full name, or a pattern.")
@click.option(
    "--watch", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Repeat every so many seconds."
)
@as_json_option
@click.pass_context
def stats(ctx: click.Context, task: str | None, watch: float | None, as_json: bool) -> None:
    """Show what was counted of each task, what its calls hold now, and how many wait.

    \b
    ACCEPTED  claims taken at publish, or by a worker   WAITED    messages that were put into a line
    STARTED   runs that took their lock                 LOST      runs that lost their lock
    SKIPPED   calls and runs that were refused          FORCED    locks that were released by force
    ASKED     the same, if on_conflict is a callable    RESTORED  messages of killed workers
    LATE      runs that hold a lock whose renewal is overdue: most likely dead

    Counting starts again after 30 days. With redislock_metrics the mean time that calls waited and runs held
    their lock is shown, too. It looks at no more than 10,000 locks.

    Exit status: 0 (even if nothing was counted); 2 on error.
    """  # noqa: D301  click wants the character itself, as the mark of a text not to be wrapped
    server = LockServer.of(ctx)
    with suppress(KeyboardInterrupt):
        _show(server, task, watch, as_json=as_json)


def _show(server: LockServer, task: str | None, watch: float | None, *, as_json: bool) -> None:
    while True:
        since, figures = census(server, task=task)
        if as_json:
            tasks = {name: _document(one) for name, one in sorted(figures.items())}
            output.write_json({"server": server.store.server, "since": since, "tasks": tasks})
        else:
            if watch is not None:
                click.clear()
            begun = "" if since is None else f", counted since {output.moment(since)}"
            output.say(f"{server.store.server}{begun}")
            click.echo(_table(figures) if figures else "nothing was counted, and nothing is held")
        if watch is None:
            return
        time.sleep(watch)


def _table(figures: Mapping[str, Figures]) -> str:
    is_timed = any(one.times for one in figures.values())
    rows: list[list[object]] = [[*_HEAD, *(["WAIT", "HOLD"] if is_timed else [])]]
    for name, one in sorted(figures.items()):
        now = [one.held.get("queued", 0), one.held.get("running", 0), one.late, one.in_line]
        times = [output.duration(one.mean(what)) for what in ("wait", "hold")] if is_timed else []
        rows.append([name, *(one.events[event] for event in EVENTS), *now, *times])
    return output.table(rows)


def _document(one: Figures) -> dict[str, Any]:
    means = {"mean_wait": one.mean("wait"), "mean_hold": one.mean("hold")}
    return {"events": one.events, "held": one.held, "late": one.late, "in_line": one.in_line, **means}


COMMANDS: Mapping[str, click.Command] = {"stats": stats}

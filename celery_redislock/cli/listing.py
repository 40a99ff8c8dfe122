"""``list``: which locks are held, and which windows have not passed."""

import json
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice

import click

from celery_redislock.cli.place import Place, Trouble, nearest_task, place_of, reported
from celery_redislock.cli.view import LockView, printable, table

__all__ = ["list_locks"]


@click.command("list")
@click.argument("pattern", required=False)
@click.option("--task", help="Only locks held for this task (its full name).")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def list_locks(ctx: click.Context, pattern: str | None, task: str | None, limit: int, as_json: bool) -> None:
    """List the locks that are held, soonest to expire first.

    A lock that is free, but whose lock_period has not passed since the last acceptance, is listed
    with the state "window": it refuses all the same.

    PATTERN matches keys as a shell does file names: * ? [abc].

    Exit status: 0 there are some, 1 there are none, 2 trouble.
    """
    with reported():
        place = place_of(ctx)
        views = _look(place, pattern, task, limit + 1)
    shown = views[:limit]
    if as_json:
        document = {
            "server": place.store.server,
            "locks": [view.as_json() for view in shown],
            "more": len(views) > limit,
        }
        click.echo(json.dumps(document, indent=2))
    elif shown:
        click.echo(table(shown))
        if len(views) > limit:
            click.echo(f"… there are more: --limit is {limit}", err=True)
    else:
        which = "".join([f" like {pattern!r}" if pattern else "", f" for {task}" if task else ""])
        click.echo(printable(f"no lock{which} is held on {place.store.server}"))
        if task is not None:
            _say_which_task(place, task)
    ctx.exit(0 if shown else 1)


def _say_which_task(place: Place, task: str) -> None:
    with suppress(Trouble):  # the question is answered, whether or not all modules can be imported here
        known = place.unique_tasks()
        near = [] if task in known else nearest_task(task, known)
        if near:
            click.echo(printable(f"there is no such task; did you mean {' or '.join(near)}?"), err=True)


def _look(place: Place, pattern: str | None, task: str | None, limit: int) -> list[LockView]:
    holds = place.holds(wanted=lambda name: pattern is None or fnmatchcase(name, pattern))
    views = (LockView.of(hold) for hold in holds)
    found = list(islice((view for view in views if task is None or view.task == task), limit))
    # Some may have been renewed since the names were read.
    return sorted(found, key=lambda view: float("inf") if view.remaining is None else view.remaining)

"""``show``: everything about one lock."""

import time

import click

from celery_redislock.cli.subject import (
    Place,
    Seen,
    duration,
    look,
    place_of,
    printable,
    reported,
    write_json,
)
from celery_redislock.locks.store import ACCEPTED


@click.command()
@click.argument("subject", metavar="KEY | TASK [ARGUMENT]... | TASK_ID", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def show(ctx: click.Context, subject: tuple[str, ...], as_json: bool) -> None:
    """Show who holds a lock, and how to release it.

    A TASK's arguments are JSON each (a word that is no JSON is a string); NAME=JSON is a keyword
    argument; they are bound as by delay(). Put -- in front of one that begins with a dash.
    Without an app there are no tasks to name, only keys. A TASK_ID stands for all locks it holds.

    Exit status: 0 it is held, 1 it is not, 2 trouble.
    """
    with reported():
        place = place_of(ctx)
        key, found = look(place, subject)
    if as_json:
        lock = {"lock": found[0] if found else None, "release_command": place.release_command(key)}
        write_json({"server": place.store.server, "key": key, **lock, "locks": found})
    elif found:
        click.echo("\n\n".join(_description(place, seen) for seen in found))
    else:
        by_id = ", and no task of that id holds a lock" if subject == (key,) else ""
        click.echo(printable(f"nobody holds the key {key}{by_id}"))
    ctx.exit(0 if found else 1)


def _description(place: Place, seen: Seen) -> str:
    holder = seen.holder
    since, remaining = "-", "no end"
    if seen.age is not None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(time.time() - seen.age))
        since = f"{moment} ({duration(seen.age)} ago)"
    if seen.remaining is not None:
        remaining = duration(seen.remaining) + ("" if holder.state == ACCEPTED else ", unless renewed")
    rows = {
        "key": seen.key,
        "state": holder.state,
        "task": holder.task or "-",
        "owner": holder.owner,
        "where": seen.where,
        "since": since,
        "remaining": remaining,
        "token": holder.token,
        "server": place.store.server,
        "release with": place.release_command(seen.key),
    }
    return "\n".join(f"{name:<13} {printable(value)}" for name, value in rows.items())

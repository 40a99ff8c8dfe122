"""``show``: everything about one lock."""

import time

import click

from celery_redislock.cli.subject import (
    Place,
    Seen,
    duration,
    key_of,
    place_of,
    printable,
    reported,
    write_json,
)
from celery_redislock.locks.store import ACCEPTED


@click.command()
@click.argument("subject", metavar="KEY | TASK [ARGUMENT]...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def show(ctx: click.Context, subject: tuple[str, ...], as_json: bool) -> None:
    """Show who holds a lock, and how to release it.

    A TASK's arguments are JSON each (a word that is no JSON is a string); NAME=JSON is a keyword
    argument; they are bound as by delay(). Put -- in front of one that begins with a dash.
    Without an app there are no tasks to name, only keys.

    Exit status: 0 it is held, 1 it is not, 2 trouble.
    """
    with reported():
        place = place_of(ctx)
        key = key_of(place, subject)
        hold = place.store.inspect(key)
    seen = None if hold is None else Seen.of(hold)
    if as_json:
        command = place.release_command(key)
        write_json({"server": place.store.server, "key": key, "lock": seen, "release_command": command})
    elif seen is None:
        click.echo(printable(f"nobody holds the key {key}"))
    else:
        click.echo(_description(place, seen))
    ctx.exit(0 if seen else 1)


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

"""``show``: everything about one lock."""

import json
import time

import click

from celery_redislock.cli.place import Place, place_of, reported
from celery_redislock.cli.subject import Subject, subject_of
from celery_redislock.cli.view import LockView, duration, printable
from celery_redislock.work import ACCEPTED

__all__ = ["say_nothing_held", "show"]


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
        asked = subject_of(place, subject)
        key = asked.key or ""
        hold = place.store.inspect(key)
        view = None if hold is None else LockView.of(hold)
    if as_json:
        document = {
            "server": place.store.server,
            "key": key,
            "lock": None if view is None else view.as_json(),
            "release_command": place.release_command(key),
        }
        click.echo(json.dumps(document, indent=2))
    elif view is None:
        with reported():
            say_nothing_held(place, asked)
    else:
        click.echo(_description(place, view))
    ctx.exit(0 if view else 1)


def say_nothing_held(place: Place, asked: Subject) -> None:
    """Say that nobody holds it, and what may have been meant."""
    click.echo(printable(f"nobody holds {asked.key}"))
    near = place.nearest(asked.key or "", asked.tasks) if asked.task is None else []
    if near:
        click.echo(printable(f"did you mean {' or '.join(near)}?"), err=True)


def _description(place: Place, view: LockView) -> str:
    since = "-"
    if view.since is not None and view.age is not None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(view.since))
        since = f"{moment} ({duration(view.age)} ago)"
    remaining = "no end" if view.remaining is None else duration(view.remaining)
    if view.remaining is not None and view.state != ACCEPTED:
        remaining += ", unless renewed"
    rows = {
        "key": view.key,
        "state": f"{view.state}: {_MEANINGS.get(view.state, '')}".rstrip(": "),
        "task": view.task or "-",
        "owner": view.owner,
        "where": view.where,
        "since": since,
        "remaining": remaining,
        "token": view.token,
        "server": place.store.server,
        "release with": place.release_command(view.key),
    }
    return "\n".join(f"{name:<13} {printable(value)}" for name, value in rows.items())


_MEANINGS = {
    "queued": "its message is on the way to a worker",
    "running": "its body is at work",
    "window": "accepted so recently that no other one is, yet",
    "foreign": "another program's lock on the same key",
}

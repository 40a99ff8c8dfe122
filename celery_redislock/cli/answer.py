"""What every command needs: its options, its lock server, a question before it acts, and its answer."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import click

from celery_redislock.cli import output
from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.limits import A_YEAR
from celery_redislock.operating import telling
from celery_redislock.operating.server import LockServer, Place, Trouble

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(_ctx: object, _param: object, value: str | None) -> float | None:
    if value is None:
        return None
    found = re.fullmatch("([0-9]{1,12})([smhd]?)", value)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= A_YEAR:
        raise click.BadParameter(f"{value!r} is no time of up to a year; write 90, 90s, 15m, 1h or 2d")
    return seconds


def time_option(*names: str, help: str) -> Callable[[F], F]:  # noqa: A002  click's name
    """Return an option that takes a time of up to a year."""
    return click.option(*names, callback=_seconds, metavar="TIME", help=help)


for_option = time_option("--for", "seconds", help="90, 90s, 15m, 1h or 2d.")
as_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


#: How the table of those who wait is cut.
_CUTS = {"PARKED BY": 6, "TASK": 8, "ABOUT": 8, "KEY": 12, "OWNER": 9, "PLACE": 10}.items()


def table_of(places: Sequence[Place], width: int) -> list[str]:
    """Show these places for people."""
    rows: list[list[object]] = [["KEY", "PLACE", "TASK", "OWNER", "PARKED BY", "SINCE", "ABOUT"]]
    for each in places:
        one = each.waiter
        since = telling.duration(telling.age(one))
        # Of several locks that is known under the first.
        sent = f", sent {each.sends}x" if each.sends else ""
        place = f"{each.rank} of {each.length}{telling.told_of(one)}" if each.rank else f"handed on{sent}"
        rows.append([one.key, place, one.task, one.owner, telling.process(one), since, one.about])
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    return output.table(rows, width, _CUTS)


def ask(question: str, about: Sequence[str] = (), otherwise: str = "nothing was changed") -> None:
    """Ask before something is changed, unless ``--yes`` or ``--json`` says not to.

    Where the answer is no, the command ends with status 1.
    """
    given = click.get_current_context().params
    if given.get("yes") or given.get("as_json"):
        return
    if not sys.stdin.isatty():
        raise Trouble(
            "standard input is no terminal, so nobody can be asked: add --yes to act without asking"
        )
    for line in about:
        output.say(line)
    if not click.confirm(telling.printable(question)):
        click.echo(otherwise)
        raise click.exceptions.Exit(1)


def server_of(ctx: click.Context) -> LockServer:
    """Return the server that the command's options name; connects to nothing yet."""
    root = ctx.find_root()
    if "url" in root.params:
        if root.params["url"] is None:
            raise Trouble("no lock server: give --url redis://host:port/db, or set REDIS_URL")
        return LockServer.at(root.params["url"], root.params["prefix"])
    try:
        return LockServer.of_app(ctx.obj.app)
    except LockOptionError as error:
        if root.params.get("app"):
            raise
        raise Trouble(
            "no Celery app was given, and Celery's default one names no Redis server; name your app: "
            "celery -A proj redislock …, or a server: celery-redislock --url redis://host:port/db …"
        ) from error


class Answer(NamedTuple):
    """What a command has found or done: the document for ``--json``, lines for people, the exit status."""

    document: Mapping[str, object]
    lines: Iterable[str]
    status: int = 0


def answers(command: Callable[..., Answer]) -> Callable[..., None]:
    """Give a command its lock server and ``--json``; print what it answers, and end with its exit status."""

    @as_json_option
    @click.pass_context
    @wraps(command)
    def run(ctx: click.Context, /, *, as_json: bool, yes: bool = False, **words: Any) -> None:  # noqa: ARG001  ask() reads it
        if ctx.invoked_subcommand is not None:
            return
        server = server_of(ctx)
        answer = command(server, **words)
        if as_json:
            output.write_json({"server": server.store.server, **answer.document})
        else:
            for line in answer.lines:
                output.say(line)
        ctx.exit(answer.status)

    return run

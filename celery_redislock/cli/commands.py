"""The commands about locks: ``list``, ``show`` and ``release``."""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice

import click

from celery_redislock.cli.subject import (
    Place,
    Seen,
    Trouble,
    as_json_option,
    duration,
    held,
    look,
    moment,
    nobody,
    place_of,
    printable,
    table,
    write_json,
)
from celery_redislock.locks.store import ACCEPTED, QUEUED, RUNNING

logger = logging.getLogger("celery_redislock")

_subject = click.argument("subject", metavar="KEY | TASK [ARGUMENT]... | TASK_ID", nargs=-1, required=True)


@click.command("list")
@click.argument("pattern", required=False)
@click.option("--task", metavar="NAME", help="Only locks held for this task (its full name).")
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Show at most so many."
)
@as_json_option
@click.pass_context
def list_locks(ctx: click.Context, pattern: str | None, task: str | None, limit: int, as_json: bool) -> None:
    """List the locks that are held, soonest to expire first.

    PATTERN matches keys as a shell does file names: * ? [abc]. Quote it.

    The state is "queued" (the message is on its way to a worker), "running", or "period": the lock is
    free, but its lock_period has not passed since the last acceptance, so it refuses all the same.
    WHERE is the host and the process that took the lock.

    Exit status: 0, also if there are none; 2 trouble.
    """
    place = place_of(ctx)
    wanted = (
        seen
        for seen in held(place)
        if (pattern is None or fnmatchcase(seen.key, pattern)) and (task is None or seen.holder.task == task)
    )
    found = list(islice(wanted, limit + 1))
    # Some may have been renewed since the names were read.
    shown = sorted(found[:limit], key=lambda seen: seen.holder.remaining)
    if as_json:
        write_json({"server": place.store.server, "locks": shown, "more": len(found) > limit})
    elif shown:
        click.echo(_table(shown))
        if len(found) > limit:
            click.echo(f"… there are more: --limit is {limit}", err=True)
    else:
        which = "".join([f" like {pattern!r}" if pattern else "", f" for {task}" if task else ""])
        click.echo(printable(f"no lock{which} is held on {place.store.server}"))


def _table(shown: Sequence[Seen]) -> str:
    rows: list[list[str]] = [["KEY", "STATE", "TASK", "OWNER", "WHERE", "AGE", "REMAINING"]]
    for seen in shown:
        holder = seen.holder
        owner = holder.owner if len(holder.owner) <= 40 else f"{holder.owner[:39]}…"
        times = [duration(seen.age), "no end" if seen.remaining is None else duration(seen.remaining)]
        cells = [seen.key, holder.state, holder.task or "-", owner, seen.where, *times]
        rows.append([printable(cell) for cell in cells])
    return table(rows)


@click.command()
@_subject
@as_json_option
@click.pass_context
def show(ctx: click.Context, subject: tuple[str, ...], as_json: bool) -> None:
    """Show who holds a lock, and how to release it.

    A TASK's arguments are JSON each (a word that is no JSON is a string); NAME=JSON is a keyword
    argument; they are bound as by delay(). Put -- in front of one that begins with a dash.
    Without an app there are no tasks to name, only keys. A TASK_ID stands for all locks it holds.

    Exit status: 0 it is held, 1 it is not, 2 trouble.
    """
    place = place_of(ctx)
    key, found = look(place, subject)
    if as_json:
        lock = {"lock": found[0] if found else None, "release_command": place.release_command(key)}
        write_json({"server": place.store.server, "key": key, **lock, "locks": found})
    else:
        click.echo("\n\n".join(_description(place, seen) for seen in found) or nobody(place, key, subject))
    ctx.exit(0 if found else 1)


def _description(place: Place, seen: Seen) -> str:
    holder = seen.holder
    since, remaining = "-", "no end"
    if seen.age is not None:
        since = moment(time.time() - seen.age)
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


@click.command()
@_subject
@click.option("--reason", required=True, help="Why; it is logged.")
@click.option("--queued", is_flag=True, help="Only the claim of a queued message: no run's lock, no period.")
@click.option("--yes", is_flag=True, help="Do not ask before; for scripts. With --json nobody is asked.")
@as_json_option
@click.pass_context
def release(
    ctx: click.Context, subject: tuple[str, ...], reason: str, queued: bool, yes: bool, as_json: bool
) -> None:
    """Take a lock away from its holder.

    A run that loses its lock goes on, and learns of it at its next renewal; until it ends, another
    run may start beside it. Only the holder seen here loses the lock, not one that came meanwhile.

    The lock is named as for show. A TASK_ID stands for all locks it holds; with --queued, a TASK
    without arguments stands for all its queued claims: for use after a purge.

    Exit status: 0 released, 1 nothing was released, 2 trouble.
    """
    place = place_of(ctx)
    key = subject[0]
    if queued and len(subject) == 1 and key in place.tasks():
        seen = [each for each in held(place) if each.holder.task == key]
    else:
        key, seen = look(place, subject)
    kept = [each for each in seen if queued and each.holder.state != QUEUED]
    chosen = [each for each in seen if each not in kept]
    if chosen and not (yes or as_json):
        _confirm(chosen)
    released = []
    for each in chosen:
        answer = place.store.force_release(each.key, expected=each.holder.token)
        if answer.took_away:
            facts = each.key, each.holder.owner, each.holder.state, reason
            logger.warning("released %r by force from %r (%s): %r", *facts)
            released.append(each)
        elif answer.held_by is not None:
            kept.append(Seen.of(answer.held_by))
    if as_json:
        write_json({"server": place.store.server, "released": released, "kept": kept})
    else:
        for each in released:
            click.echo(f"released {printable(each.key)}: taken from {each}")
        for each in kept:
            click.echo(f"kept {printable(each.key)}: held by {each}")
        if not seen:
            click.echo(nobody(place, key, subject))
        if not released:
            click.echo("nothing was released")
    ctx.exit(0 if released else 1)


def _confirm(chosen: Sequence[Seen]) -> None:
    if not sys.stdin.isatty():
        raise Trouble(
            "standard input is no terminal, so nobody can be asked: add --yes to release without asking"
        )
    for seen in chosen:
        click.echo(f"{printable(seen.key)} is held by {seen}")
    if any(seen.holder.state == RUNNING for seen in chosen):
        click.echo("A running task goes on without its lock.")
    if not click.confirm("Release it?" if len(chosen) == 1 else f"Release these {len(chosen)}?"):
        click.echo("nothing was released")
        raise click.exceptions.Exit(1)


COMMANDS: Mapping[str, click.Command] = {"list": list_locks, "release": release, "show": show}

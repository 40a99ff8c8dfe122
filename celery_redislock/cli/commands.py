"""The commands about locks: ``list``, ``show``, ``waiting`` and ``release``."""

import math
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice

import click

from celery_redislock.cli import output
from celery_redislock.cli.subject import LockServer, Trouble, as_json_option, find, nobody
from celery_redislock.locks.store import ACCEPTED, QUEUED, RUNNING
from celery_redislock.log import logger
from celery_redislock.publishing import promote
from celery_redislock.publishing.handle import Holder, take_away

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
    free, but its lock_period has not passed since the last acceptance, so it refuses the next call.
    WHERE is the host and the process that took the lock.

    Exit status: 0, also if there are none; 2 trouble.
    """
    server = LockServer.of(ctx)
    wanted = (
        holder
        for holder in server.holders()
        if (pattern is None or fnmatchcase(holder.key, pattern)) and (task is None or holder.task == task)
    )
    found = list(islice(wanted, limit + 1))
    # Some may have been renewed since the names were read.
    shown = sorted(found[:limit], key=lambda holder: holder.remaining)
    if as_json:
        output.write_json({"server": server.store.server, "locks": shown, "more": len(found) > limit})
    elif shown:
        click.echo(_table(shown))
        if len(found) > limit:
            click.echo(f"… there are more: --limit is {limit}", err=True)
    else:
        which = "".join([f" like {pattern!r}" if pattern else "", f" for {task}" if task else ""])
        output.say(f"no lock{which} is held on {server.store.server}")


def _table(shown: Sequence[Holder]) -> str:
    rows: list[list[object]] = [["KEY", "STATE", "TASK", "OWNER", "WHERE", "AGE", "REMAINING"]]
    for holder in shown:
        owner = holder.owner if len(holder.owner) <= 40 else f"{holder.owner[:39]}…"
        age = output.duration(output.age(holder))
        remaining = output.duration(holder.remaining)
        rows.append([holder.key, holder.state, holder.task, owner, output.process(holder), age, remaining])
    return output.table(rows)


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
    server = LockServer.of(ctx)
    key, found = find(server, subject)
    if as_json:
        lock = {"lock": found[0] if found else None, "release_command": server.release_command(key)}
        output.write_json({"server": server.store.server, "key": key, **lock, "locks": found})
    elif found:
        click.echo("\n\n".join(_description(server, holder) for holder in found))
    else:
        output.say(nobody(server, key, subject))
    ctx.exit(0 if found else 1)


def _description(server: LockServer, holder: Holder) -> str:
    can_be_renewed = holder.state != ACCEPTED and math.isfinite(holder.remaining)
    rows = {
        "key": holder.key,
        "state": holder.state,
        "task": holder.task or "-",
        "owner": holder.owner,
        "where": output.process(holder),
        "since": "-" if holder.since is None else output.moment(holder.since),
        "remaining": output.duration(holder.remaining) + (", unless renewed" if can_be_renewed else ""),
        "token": holder.token,
        "queued": holder.queued,
        "server": server.store.server,
        "release with": server.release_command(holder.key),
    }
    return output.table(row for row in rows.items() if row[1] is not None)


@click.command()
@click.argument("subject", metavar="[KEY | TASK [ARGUMENT]...]", nargs=-1)
@click.option("--all", "of_all", is_flag=True, help="With --drain: the lines of all locks.")
@click.option("--drain", is_flag=True, help="Send what waits to its queues, in order, without the lock.")
@click.option("--yes", is_flag=True, help="Do not ask before; for scripts. With --json nobody is asked.")
@as_json_option
@click.pass_context
def waiting(
    ctx: click.Context, subject: tuple[str, ...], of_all: bool, drain: bool, yes: bool, as_json: bool
) -> None:
    """Show who waits in line for a lock, in order.

    The lock is named as for show. --drain empties its line, or with --all every line: the messages go to
    the ends of their queues. Those that cannot have their lock then wait again. Use it before this package
    is taken out; where redislock_enabled is off, every worker does it by itself.

    Exit status: 0 somebody waits, or has left; 1 nobody; 2 trouble.
    """
    server = LockServer.of(ctx)
    if bool(subject) == of_all or (of_all and not drain):
        raise Trouble("name one lock, or give --all together with --drain")
    key = find(server, subject)[0] if subject else ""
    if drain:
        ctx.exit(_drain(server, key, yes=yes, as_json=as_json))
    length, waiters = server.store.waiting(key)
    holders = [Holder.of(waiter.hold) for waiter in waiters]
    if as_json:
        output.write_json({"server": server.store.server, "key": key, "waiting": holders})
    elif holders:
        rows: list[list[object]] = [["PLACE", "TASK", "OWNER", "PARKED BY", "SINCE"]]
        for place, holder in enumerate(holders, start=1):
            age = output.duration(output.age(holder))
            rows.append([place, holder.task, holder.owner, output.process(holder), age])
        click.echo(output.table(rows))
    else:
        output.say(f"nobody waits for {key} on {server.store.server}")
    ctx.exit(0 if length else 1)


def _drain(server: LockServer, key: str, *, yes: bool, as_json: bool) -> int:
    """Empty the line of a key, or all of them; return the exit status."""
    what = f"the line of {key}" if key else "the lines of all locks"
    if not (yes or as_json):
        if not sys.stdin.isatty():
            raise Trouble("standard input is no terminal, so nobody can be asked: add --yes to drain")
        if not click.confirm(output.printable(f"Send what waits in {what} to its queues?")):
            return 1
    if server.app is not None:
        promote.install(server.app, server.store)
    moved = 0
    while True:
        count, given = server.store.drain(key)
        moved += count + len(given)
        if not count and not given:
            break
    logger.warning("drained %s by hand: %d waiting messages are back in their queues", what, moved)
    if as_json:
        output.write_json({"server": server.store.server, "key": key or None, "drained": moved})
    else:
        output.say(f"{moved} waiting messages are back in their queues")
    return 0 if moved else 1


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

    A run that loses its lock continues, and learns of it at its next renewal; until it ends, another
    run may start beside it. Only the holder seen here loses the lock, not one that came meanwhile.

    The lock is named as for show. A TASK_ID stands for all locks it holds; with --queued, a TASK
    without arguments stands for all its queued claims: for use after a purge.

    Exit status: 0 released, 1 nothing was released, 2 trouble.
    """
    server = LockServer.of(ctx)
    key = subject[0]
    if queued and len(subject) == 1 and key in server.tasks():
        seen = [holder for holder in server.holders() if holder.task == key]
    else:
        key, seen = find(server, subject, queued=queued)
    kept = [holder for holder in seen if queued and holder.state != QUEUED]
    chosen = [holder for holder in seen if holder not in kept]
    if chosen and not (yes or as_json):
        _confirm(chosen)
    released = []
    for holder in chosen:
        answer = take_away(server.store, holder, reason)
        if answer.took_away:
            released.append(holder)
        elif answer.held_by is not None:
            kept.append(Holder.of(answer.held_by))
    if as_json:
        output.write_json({"server": server.store.server, "released": released, "kept": kept})
    else:
        for holder in released:
            output.say(f"released {holder.key}: taken from {output.in_brief(holder)}")
        for holder in kept:
            output.say(f"kept {holder.key}: held by {output.in_brief(holder)}")
        if not seen:
            output.say(nobody(server, key, subject))
        if not released:
            click.echo("nothing was released")
    ctx.exit(0 if released else 1)


def _confirm(chosen: Sequence[Holder]) -> None:
    if not sys.stdin.isatty():
        raise Trouble(
            "standard input is no terminal, so nobody can be asked: add --yes to release without asking"
        )
    for holder in chosen:
        output.say(f"{holder.key} is held by {output.in_brief(holder)}")
    if any(holder.state == RUNNING for holder in chosen):
        click.echo("A running task continues without its lock.")
    if not click.confirm("Release it?" if len(chosen) == 1 else f"Release these {len(chosen)}?"):
        click.echo("nothing was released")
        raise click.exceptions.Exit(1)


COMMANDS: Mapping[str, click.Command] = {
    "list": list_locks,
    "release": release,
    "show": show,
    "waiting": waiting,
}

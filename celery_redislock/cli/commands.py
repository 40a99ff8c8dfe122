"""The commands about locks: ``list``, ``show`` and ``release``."""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice

import click

from celery_redislock.cli import output
from celery_redislock.cli.subject import LockServer, as_json_option, ask, find, nobody, table_of
from celery_redislock.locks.store import ACCEPTED, QUEUED, RUNNING
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
    """Show who holds a lock, how many wait for it, and how to release it.

    A TASK's arguments are JSON each (a word that is no JSON is a string); NAME=JSON is a keyword
    argument; they are bound as by delay(). Put -- in front of one that begins with a dash.
    Without an app there are no tasks to name, only keys. A TASK_ID stands for all locks it holds, and
    for its places in the lines of others.

    Exit status: 0 it is held, or waits, 1 neither, 2 trouble.
    """
    server = LockServer.of(ctx)
    key, found = find(server, subject)
    # A key is that key alone; what holds by a task id may wait elsewhere.
    is_id = len(subject) == 1 and not any(holder.key == subject[0] for holder in found)
    places = [place for place in server.places() if place.waiter.owner == subject[0]] if is_id else []
    if as_json:
        command = server.release_command(key) if found else None
        lock = {"lock": found[0] if found else None, "release_command": command}
        waits = {
            "in_line": server.store.waiting(key, last=0)[0],
            "limit": output.limit_as_json(server.store.limit(key)),
            "waits": [each.document() for each in places],
        }
        output.write_json({"server": server.store.server, "key": key, **lock, "locks": found, **waits})
    elif found or places:
        texts = [_description(server, holder) for holder in found]
        click.echo("\n\n".join([*texts, *([table_of(places)] if places else [])]))
    else:
        output.say(nobody(server, key, subject))
        if (limit := server.store.limit(key)) is not None:
            output.say(f"the limit of {key} is {output.of_limit(limit)}")
    ctx.exit(0 if found or places else 1)


def _description(server: LockServer, holder: Holder) -> str:
    can_be_renewed = holder.state != ACCEPTED and math.isfinite(holder.remaining)
    length, _ = server.store.waiting(holder.key, last=0)
    limit = server.store.limit(holder.key)
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
        "in line": f"{length} waiting" if length else None,
        "limit": None if limit is None else output.of_limit(limit),
        "server": server.store.server,
        "release with": server.release_command(holder.key),
    }
    return output.table(row for row in rows.items() if row[1] is not None)


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
    about = [f"{holder.key} is held by {output.in_brief(holder)}" for holder in chosen]
    if any(holder.state == RUNNING for holder in chosen):
        about.append("A running task continues without its lock.")
    ask("Release it?" if len(chosen) == 1 else f"Release these {len(chosen)}?", about, "nothing was released")


COMMANDS: Mapping[str, click.Command] = {
    "list": list_locks,
    "release": release,
    "show": show,
}

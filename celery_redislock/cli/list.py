"""``list``: which locks are held, and which windows have not passed."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import islice

import click

from celery_redislock.cli.subject import Seen, duration, held, place_of, printable, reported, write_json


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

    Exit status: 0, also if there are none; 2 trouble.
    """
    with reported():
        place = place_of(ctx)
        wanted = (
            seen
            for seen in held(place)
            if (pattern is None or fnmatchcase(seen.key, pattern))
            and (task is None or seen.holder.task == task)
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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)

"""The command that lists locks: ``list``."""

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from celery_redislock.cli import output
from celery_redislock.cli.subject import LockServer, as_json_option, time_option
from celery_redislock.publishing.handle import Holder

task_option = click.option(
    "--task", metavar="NAME", help="Only locks held for this task; a full name, or a pattern."
)
host_option = click.option(
    "--host", metavar="NAME", help="Only locks held by this host; a name, or a pattern."
)

#: What a list is sorted by. Who does not say since when comes last.
_ORDERS: Mapping[str, Callable[[Holder], Any]] = {
    "age": lambda holder: holder.since if holder.since is not None else float("inf"),
    "remaining": lambda holder: holder.remaining,
    "key": lambda holder: holder.key,
    "task": lambda holder: (holder.task or "", holder.key),
}

_HEAD = ("KEY", "STATE", "TASK", "OWNER", "WHERE", "AGE", "REMAINING", "ABOUT")

#: The columns that are cut to fit a terminal, in this order, and what is left of each at least; where that
#: is not enough, they are cut further.
_CUT = (*{3: 9, 0: 12, 2: 8, 4: 6, 7: 8}.items(), (3, 5), (0, 6), (2, 5), (4, 5), (7, 5))


@click.command("list")
@click.argument("pattern", required=False)
@task_option
@host_option
@click.option(
    "--state",
    type=click.Choice(["queued", "running", "period", "foreign"]),
    multiple=True,
    help="Only locks in this state; may be given several times.",
)
@time_option("--older-than", "older_than", help="Only locks at least this old: 90, 90s, 15m, 1h or 2d.")
@click.option("--sort", type=click.Choice([*_ORDERS]), default="age", show_default=True, help="The order.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Show at most this many."
)
@click.option("--wide", is_flag=True, help="Cut nothing to fit the terminal.")
@as_json_option
@click.pass_context
def list_locks(
    ctx: click.Context, pattern: str | None, task: str | None, host: str | None, state: tuple[str, ...],
    older_than: float | None, sort: str, limit: int, wide: bool, as_json: bool,
) -> None:  # fmt: skip
    """List the locks that are held, the oldest first.

    PATTERN matches keys as a shell matches file names: * ? [abc]. Quote it.

    The state is "queued" (the message is on its way to a worker), "running", or "period": the lock is
    free, but its lock_period has not passed since the last acceptance, so it refuses the next call.
    WHERE is the host and the process that took the lock; ABOUT is what lock_describe says of the call.

    The last line counts all locks that match, however many are shown. On a terminal the columns are cut to
    its width.

    Exit status: 0 (even if nothing is held); 2 on error.
    """
    server = LockServer.of(ctx)
    holders = server.holders(key=pattern, task=task, host=host)
    found = sorted((one for one in holders if _fits(one, state, older_than)), key=_ORDERS[sort])
    shown = found[:limit]
    if as_json:
        output.write_json({"server": server.store.server, "locks": shown, "more": len(found) > limit})
        return
    if not shown:
        told = told_patterns(pattern, task, host)
        told += " in that state or for so long" if state or older_than else ""
        output.say(f"no lock{told} is held on {server.store.server}, under the prefix {server.store.prefix}")
        return
    is_cut = sys.stdout.isatty() and not wide
    click.echo(_table(shown, shutil.get_terminal_size().columns if is_cut else None))
    click.echo(_totals(found, len(shown)))


def told_patterns(pattern: str | None, task: str | None, host: str | None) -> str:
    """Tell which locks were asked for."""
    told = {f" like {pattern!r}": pattern, f" for {task}": task, f" by {host}": host}
    return "".join(words for words, given in told.items() if given is not None)


def _fits(holder: Holder, state: tuple[str, ...], older_than: float | None) -> bool:
    age = output.age(holder)
    return (not state or holder.state in state) and (older_than is None or (age or 0.0) >= older_than)


def _table(shown: Sequence[Holder], width: int | None) -> str:
    rows: list[list[str]] = [[*_HEAD]]
    for holder in shown:
        age = output.duration(output.age(holder))
        left = output.duration(holder.remaining)
        where = output.process(holder)
        cells = (holder.key, holder.state, holder.task, holder.owner, where, age, left, holder.about)
        rows.append([output.printable(cell or "-") for cell in cells])
    if all(holder.about is None for holder in shown):
        rows = [row[:-1] for row in rows]
    return output.table(rows if width is None else _cut(rows, width))


def _cut(rows: list[list[str]], width: int) -> list[list[str]]:
    """Cut columns until the table fits, or each has its least width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for column, least in _CUT:
        if column < len(widths):
            over = sum(widths) + 2 * (len(widths) - 1) - width
            widths[column] = max(min(least, widths[column]), widths[column] - max(0, over))
    return [[_shortened(cell, most) for cell, most in zip(row, widths, strict=True)] for row in rows]


def _shortened(cell: str, most: int) -> str:
    return cell if len(cell) <= most else f"{cell[: most - 1]}…"


def _totals(found: Sequence[Holder], shown: int) -> str:
    counts = Counter(one.state for one in found)
    states = ", ".join(f"{number} {state}" for state, number in counts.most_common())
    oldest = max(output.age(one) or 0.0 for one in found)
    locks = "1 lock" if len(found) == 1 else f"{len(found)} locks"
    more = "" if shown == len(found) else f"; {shown} are shown: --limit"
    return f"{locks}: {states}; oldest {output.duration(oldest)}{more}"


COMMANDS: Mapping[str, click.Command] = {"list": list_locks}

"""The commands about locks: ``list`` and ``release``."""

from collections import Counter
from collections.abc import Mapping, Sequence

import click

from celery_redislock.cli import output
from celery_redislock.cli.answer import Answer, answers, ask, time_option
from celery_redislock.locks.hold import hold_in_line
from celery_redislock.operating import telling
from celery_redislock.operating.held import ORDERS, STATES, all_of, chosen, document_of
from celery_redislock.operating.server import LockServer, is_pattern
from celery_redislock.operating.subject import find, nobody
from celery_redislock.publishing.handle import Holder, take_away
from celery_redislock.store.store import ACCEPTED, QUEUED, RUNNING

task_option = click.option(
    "--task", metavar="NAME", help="Only locks held for this task; a full name, or a pattern."
)
host_option = click.option(
    "--host", metavar="NAME", help="Only locks held by this host; a name, or a pattern."
)

_HEAD = ("KEY", "STATE", "TASK", "OWNER", "WHERE", "AGE", "REMAINING", "ABOUT")

#: How the table is cut; where that is not enough, further.
_CUTS = (
    *{"OWNER": 9, "KEY": 12, "TASK": 8, "WHERE": 6, "ABOUT": 8}.items(),
    *{"OWNER": 5, "KEY": 6, "TASK": 5, "WHERE": 5, "ABOUT": 5}.items(),
)


@click.command("list")
@click.argument("pattern", required=False)
@task_option
@host_option
@click.option(
    "--state",
    type=click.Choice(STATES),
    multiple=True,
    help="Only locks in this state; may be given several times.",
)
@time_option("--older-than", "older_than", help="Only locks at least this old: 90, 90s, 15m, 1h or 2d.")
@click.option("--sort", type=click.Choice([*ORDERS]), default="age", show_default=True, help="The order.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Show at most this many."
)
@output.wide_option
@answers
def list_locks(
    server: LockServer, pattern: str | None, task: str | None, host: str | None, state: tuple[str, ...],
    older_than: float | None, sort: str, limit: int, wide: bool,
) -> Answer:  # fmt: skip
    """List the locks that are held, the oldest first.

    PATTERN matches keys as a shell matches file names: * ? [abc]. Quote it.

    The state is "queued" (the message is on its way to a worker), "running", "running, late" (not renewed in
    time: probably dead), "hold" (an operator's), "foreign" (another program's; shown where calls wait for
    it), or "period": the lock is free, but its lock_period has not passed since the last acceptance, so it
    refuses the next call. WHERE is the host and the process that took the lock; ABOUT is what lock_describe
    says of the call, or why an operator holds it.

    The last line counts all locks that match, however many are shown. On a terminal the columns are cut to
    its width.

    Exit status: 0 (even if nothing is held); 2 on error.
    """
    holders = all_of(server, key=pattern, task=task, host=host)
    found = chosen(holders, states=state, older_than=older_than, sort=sort)
    document = document_of(found, limit)
    shown = document["locks"]
    width = output.width_of(wide=wide)
    if shown:
        lines = [*_table(shown, width), *output.folded(_totals(found, len(shown)), width)]
    else:
        told = told_patterns(pattern, task, host)
        told += " in that state or for so long" if state or older_than else ""
        store = server.store
        nothing = f"no lock{told} is held on {store.server}, under the prefix {store.prefix}"
        lines = output.folded(nothing, width)
    return Answer(document, lines)


def told_patterns(pattern: str | None, task: str | None, host: str | None) -> str:
    """Tell which locks were asked for."""
    told = {f" like {pattern!r}": pattern, f" for {task}": task, f" by {host}": host}
    return "".join(words for words, given in told.items() if given is not None)


def _table(shown: Sequence[Holder], width: int) -> list[str]:
    rows: list[list[object]] = [[*_HEAD]]
    for holder in shown:
        age = telling.duration(telling.age(holder))
        left = telling.duration(holder.remaining)
        where = telling.process(holder)
        state = f"{holder.state}, late" if holder.is_late else holder.state
        rows.append([holder.key, state, holder.task, holder.owner, where, age, left, holder.about])
    if all(holder.about is None for holder in shown):
        rows = [row[:-1] for row in rows]
    return output.table(rows, width, _CUTS)


def _totals(found: Sequence[Holder], shown: int) -> str:
    counts = Counter(one.state for one in found)
    late = sum(one.is_late for one in found)
    told = {RUNNING: f" ({late} late)"} if late else {}
    states = ", ".join(f"{number} {state}{told.get(state, '')}" for state, number in counts.most_common())
    oldest = max(telling.age(one) or 0.0 for one in found)
    locks = "1 lock" if len(found) == 1 else f"{len(found)} locks"
    more = "" if shown == len(found) else f"; {shown} are shown: --limit"
    return f"{locks}: {states}; oldest {telling.duration(oldest)}{more}"


_WORDS = "KEY | TASK [ARGUMENT]... | TASK_ID"

#: So many holders are named one by one before they lose their locks.
NAMED = 10

NOTHING = "nothing was released"


@click.command()
@click.argument("subject", metavar=f"{_WORDS} | PATTERN", nargs=-1)
@task_option
@host_option
@click.option("--reason", help="Why; it is logged. Required, except with --dry-run.")
@click.option("--dry-run", is_flag=True, help="Show what would be released, and release nothing.")
@click.option("--queued", is_flag=True, help="Only the claim of a queued message: no run's lock, no period.")
@click.option("--yes", is_flag=True, help="Do not ask before; for scripts. With --json nobody is asked.")
@answers
def release(
    server: LockServer, subject: tuple[str, ...], task: str | None, host: str | None,
    reason: str | None, dry_run: bool, queued: bool,
) -> Answer:  # fmt: skip
    """Release a lock by force, or all of a task, a host or a PATTERN.

    A run that loses its lock continues, and learns of it at its next renewal; until it ends, another
    run may start beside it. Only the holder shown here loses the lock, not one that has acquired it since.

    It ends a hold (see "hold"), and the first in line starts. A hold that waits for runs to end is released
    before them: they keep the lock.

    Name the lock as for explain. A TASK_ID stands for all locks that it holds. With --queued, a TASK
    without arguments stands for all its queued claims, also under a former name; use that after a
    purge. A PATTERN (* ? [abc]) stands for the keys that it matches, if no key of that name is held.
    --task releases what calls of a task hold, also if no code has that name any more. --host releases the
    locks of runs on a host, or with --queued the claims that were published there. With --task or --host, a
    PATTERN narrows the choice.

    Exit status: 0 released (--dry-run: there is something to release); 1 nothing was released;
    2 on error.
    """
    if reason is None and not dry_run:
        raise click.UsageError("Missing option '--reason': it is logged")
    nothing, seen = _named(server, subject, task, host, queued=queued)
    if host is not None and not queued:
        # A claim says where it was published. Its message may be anywhere, and run.
        seen = [holder for holder in seen if holder.state == RUNNING]
    kept = [holder for holder in seen if queued and holder.state != QUEUED]
    chosen = [holder for holder in seen if holder not in kept]
    released = []
    if reason is not None and not dry_run:
        if chosen:
            question = "Release it?" if len(chosen) == 1 else f"Release these {len(chosen)}?"
            ask(question, _summary(chosen), NOTHING)
        for holder in chosen:
            answer = take_away(server.store, holder, reason)
            if answer.took_away:
                released.append(holder)
            elif answer.held_by is not None:
                kept.append(Holder.of(answer.held_by))
    lines = _summary(chosen) if dry_run and chosen else []
    lines += [f"released {each.key}: taken from {telling.in_brief(each)}" for each in released]
    lines += [f"kept {each.key}: held by {telling.in_brief(each)}" for each in kept]
    if len(released) + len(kept) > NAMED:
        lines.append(f"released {len(released)}, kept {len(kept)}")
    if queued and any(holder.state == ACCEPTED for holder in kept):
        lines.append("a period is no claim: to end it, release it without --queued")
    lines += [*([] if seen else [nothing]), *([] if released else [NOTHING])]
    would = {"would_release": chosen} if dry_run else {}
    status = 0 if released or (dry_run and chosen) else 1
    return Answer({**would, "released": released, "kept": kept}, lines, status)


def _named(
    server: LockServer, words: tuple[str, ...], task: str | None, host: str | None, *, queued: bool
) -> tuple[str, list[Holder]]:
    """Return who holds what these words and options name, and what to say if nobody does."""
    if task is None and host is None:
        if not words:
            raise click.UsageError(f"Missing argument '{_WORDS}': name a lock, or give --task or --host")
        is_task = queued and len(words) == 1 and words[0] in server.tasks()
        key, seen = (words[0], []) if is_task else find(server, words, queued=queued)
        if not queued and (key == words[0] or words[0] in server.tasks()):
            # An operator's, which waits for those who hold it: it is the one that is to end.
            names = dict.fromkeys((key, *key.split(" ")))  # several resources
            waiting = next(filter(None, (hold_in_line(server.store, name) for name in names)), None)
            seen = seen if waiting is None else [Holder.in_line(waiting)]
        if seen or len(words) > 1 or not (queued or is_pattern(key)):
            return nobody(server, key, words), seen
        if not is_pattern(key):  # a task, or the name that one had
            task = key
            words = ()
    if len(words) > 1:
        raise click.UsageError("--task and --host go with one PATTERN, and with no arguments of a task")
    pattern = words[0] if words else None
    nothing = f"no lock{told_patterns(pattern, task, host)} is held on {server.store.server}"
    return nothing, [*server.holders(key=pattern, task=task, host=host)]


def _summary(chosen: Sequence[Holder]) -> list[str]:
    """Tell who would lose a lock: each, where they are few, or else how many of which task."""
    if len(chosen) <= NAMED:
        about = [f"{holder.key} is held by {telling.in_brief(holder)}" for holder in chosen]
    else:
        counts = Counter((holder.task or "-", holder.state) for holder in chosen)
        about = [f"{count} of {task}, {state}" for (task, state), count in counts.most_common()]
    return [*about, *telling.told_of_release(chosen)]


COMMANDS: Mapping[str, click.Command] = {"list": list_locks, "release": release}

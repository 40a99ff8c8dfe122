"""The command about operators: ``history``, what they did."""

from collections.abc import Mapping
from fnmatch import filter as like
from typing import Any

import click

from celery_redislock.cli import output
from celery_redislock.cli.answer import Answer, answers
from celery_redislock.operating import telling
from celery_redislock.operating.server import LockServer
from celery_redislock.operating.subject import find

#: How the table is cut: a time to its minute.
_CUTS = {"WHEN": 17, "OUTCOME": 12, "WHO": 8, "KEY": 12, "REASON": 8}.items()


@click.command()
@click.argument("subject", metavar="[KEY | TASK [ARGUMENT]... | PATTERN]", nargs=-1)
@output.wide_option
@answers
def history(server: LockServer, subject: tuple[str, ...], wide: bool) -> Answer:
    """Show what operators did, who, when and why; of a lock, or of all. The last act comes last.

    An act is a release by force, a hold, a limit that was set or removed, a place in line that was moved or
    dropped, a line that was drained, and run, pause and resume of an entry of the schedule, whose name is its
    KEY.

    Write a TASK's arguments as for explain. A PATTERN (* ? [abc]) stands for the keys that it matches, if
    nothing was done to a key of that name.

    The lock server keeps the last 1,000 acts, for thirty days. For a user of it who may only read, name the
    KEY: a TASK is looked up among the locks that are held.

    Exit status: 0 (even if there are none); 2 on error.
    """
    name, *given = subject or ("*",)
    key = find(server, subject)[0] if given or (subject and name in server.tasks()) else name
    acts = server.store.acts()
    acts = [act for act in acts if key in _names(act)] or [act for act in acts if like(_names(act), key)]
    nobody = f"no operator did anything{f' to {key}' if subject else ''} on {server.store.server}"
    width = output.width_of(wide=wide)
    rows: list[list[object]] = [["WHEN", "WHO", "ACT", "KEY", "OUTCOME", "REASON"], *map(_cells, acts)]
    return Answer({"acts": acts}, output.table(rows, width, _CUTS) if acts else output.folded(nobody, width))


def _names(act: Mapping[str, Any]) -> set[str]:
    """Return what an act may be asked for by; that on a queued call's claim by the key of its lock, too."""
    key = str(act.get("key"))
    return {key, key.removeprefix("queued:")}


def _cells(act: Mapping[str, Any]) -> list[object]:
    by = f"{act.get('by', '-')}@{act.get('host', '-')}"
    return [telling.moment(act.get("since", 0)), by, *map(act.get, ("act", "key", "outcome", "reason"))]


COMMANDS: Mapping[str, click.Command] = {"history": history}

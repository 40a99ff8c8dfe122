"""The command that answers "task X does not run": ``explain``."""

from collections.abc import Mapping
from itertools import chain

import click

from celery_redislock.cli import output
from celery_redislock.cli.answer import Answer, answers
from celery_redislock.operating.explain import explanation
from celery_redislock.operating.server import LockServer


@click.command()
@click.argument("words", metavar="TASK [ARGUMENT]... | TASK_ID | KEY", nargs=-1, required=True)
@click.option("--quick", is_flag=True, help="Ask the lock server only: who holds it, and who waits.")
@answers
def explain(server: LockServer, words: tuple[str, ...], quick: bool) -> Answer:
    """Tell why a task does not run: its key, its holder, its message.

    It also tells who waits, who else was refused, and what a call would meet now.

    Write each argument of a TASK as JSON (a word that is no JSON is a string); NAME=JSON is a keyword
    argument. They are bound as by delay(). Put -- in front of an argument that begins with a dash. Without
    arguments, or by a former name, a TASK means all its calls. Without an app you can name only keys and
    task ids. A TASK_ID may be queued, received by a worker, waiting in line, running, over, or the last one
    that a key has refused within an hour.

    The command asks the app's workers, which takes a second or two, looks into its queues on Redis, and reads
    its schedule. It changes nothing. With --quick it does none of this, and is for scripts.

    Exit status: 0 something is known (with --quick: somebody holds it, or waits); 1 nothing is; 2 on error.
    """
    found = explanation(server, words, quick=quick)
    width = output.width_of()
    rows = [output.folded(text, width, f"{label:<13}", server.command) for label, text in found.rows]
    return Answer(found.document, chain.from_iterable(rows), 0 if found.is_known else 1)


COMMANDS: Mapping[str, click.Command] = {"explain": explain}

"""The command that checks a set-up: ``doctor``."""

from collections.abc import Mapping

import click

from celery_redislock.cli import output
from celery_redislock.cli.answer import as_json_option, server_of
from celery_redislock.operating.doctor import findings

#: Exit statuses, by the worst level that was found.
_STATUS = {"ok": 0, "note": 0, "warning": 1, "error": 2}


@click.command()
@as_json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check the settings, the lock server, the tasks and the workers.

    Of the workers it checks those that answer. It makes a worker's checks at start, and checks what a worker
    cannot see: memory, replicas, the clocks, other prefixes on the server, locks that other libraries left
    there, lines whose first message belongs to a broker without workers, workers with other settings, results
    that expire before a period, untested versions. It changes nothing. Without an app it checks only the
    server.

    Exit status: 0 all is well, 1 something is at risk, 2 something cannot work.
    """
    server = server_of(ctx)
    found = []
    for level, text in findings(server):
        found.append({"level": level, "text": text})
        if not as_json:
            output.say(f"{level:<9}{text}")
    if as_json:
        output.write_json({"server": server.store.server, "findings": found})
    ctx.exit(max(_STATUS[one["level"]] for one in found))


COMMANDS: Mapping[str, click.Command] = {"doctor": doctor}

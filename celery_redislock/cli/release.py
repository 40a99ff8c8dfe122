"""``release``: take a lock away from the holder that was seen."""

import logging
import sys
from collections.abc import Sequence

import click

from celery_redislock.cli.subject import (
    Seen,
    Trouble,
    held,
    look,
    place_of,
    printable,
    reported,
    write_json,
)
from celery_redislock.locks.store import QUEUED, RUNNING

logger = logging.getLogger("celery_redislock")


@click.command()
@click.argument("subject", metavar="KEY | TASK [ARGUMENT]... | TASK_ID", nargs=-1, required=True)
@click.option("--reason", required=True, help="Why; it is logged.")
@click.option("--queued", is_flag=True, help="Only the claim of a queued message, never a run's lock.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output; does not ask.")
@click.pass_context
def release(
    ctx: click.Context, subject: tuple[str, ...], reason: str, queued: bool, yes: bool, as_json: bool
) -> None:
    """Take a lock away from its holder.

    A run that loses its lock goes on, and learns of it at its next renewal; until it ends, another
    run may start beside it. Only the holder seen here loses the lock, not one that came meanwhile.

    With --queued, a TASK without arguments stands for all its queued claims: for use after a purge.
    A TASK_ID stands for all locks it holds.

    Exit status: 0 released, 1 nothing was released, 2 trouble.
    """
    with reported():
        place = place_of(ctx)
        if queued and len(subject) == 1 and subject[0] in place.tasks():
            seen = [each for each in held(place) if each.holder.task == subject[0]]
        else:
            _, seen = look(place, subject)
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
        _say(released, kept)
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


def _say(released: Sequence[Seen], kept: Sequence[Seen]) -> None:
    for seen in released:
        click.echo(f"released {printable(seen.key)}: taken from {seen}")
    for seen in kept:
        click.echo(f"kept {printable(seen.key)}: held by {seen}")
    if not released:
        click.echo("nothing was released")

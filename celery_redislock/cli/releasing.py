"""``release``: take a lock away from whoever was seen to hold it."""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from celery_redislock.cli.place import Place, Trouble, place_of, reported
from celery_redislock.cli.showing import say_nothing_held
from celery_redislock.cli.subject import Subject, subject_of
from celery_redislock.cli.view import LockView, printable
from celery_redislock.work import QUEUED, RUNNING

__all__ = ["release"]

logger = logging.getLogger("celery_redislock")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of one lock: taken from ``seen``, or not."""

    seen: LockView
    is_released: bool
    held_by: LockView | None


@click.command()
@click.argument("subject", metavar="KEY | TASK [ARGUMENT]...", nargs=-1, required=True)
@click.option("--reason", required=True, help="Why; it is logged.")
@click.option("--queued", is_flag=True, help="Only the claim of a queued message, never a run's lock.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output; does not ask.")
@click.pass_context
def release(
    ctx: click.Context, subject: tuple[str, ...], reason: str, queued: bool, yes: bool, as_json: bool
) -> None:
    """Take a lock away from its holder.

    A run that loses its lock goes on, and learns of it at its next renewal; from then on another
    one may run beside it. Only the holder seen here loses the lock, not one that came meanwhile.

    With --queued, a TASK without arguments stands for all its queued claims: for use after a purge.

    Exit status: 0 released, 1 nothing was released, 2 trouble.
    """
    with reported():
        place = place_of(ctx)
        asked = subject_of(place, subject, all_without_arguments=queued)
        seen = _seen(place, asked)
        spared = [view for view in seen if queued and view.state != QUEUED]
        chosen = [view for view in seen if view not in spared]
        if chosen and not (yes or as_json):
            _confirm(chosen)
        outcomes = [_Outcome(view, is_released=False, held_by=view) for view in spared]
        outcomes += [_take_away(place, view, reason) for view in chosen]
        if as_json:
            click.echo(json.dumps(_document(place, asked, reason, outcomes), indent=2))
        else:
            _say(place, asked, outcomes)
    ctx.exit(0 if any(outcome.is_released for outcome in outcomes) else 1)


def _seen(place: Place, asked: Subject) -> list[LockView]:
    if asked.key is None:
        views = [LockView.of(hold) for hold in place.holds()]
        return [view for view in views if view.task == asked.task and view.state == QUEUED]
    hold = place.store.inspect(asked.key)
    return [] if hold is None else [LockView.of(hold)]


def _confirm(seen: Sequence[LockView]) -> None:
    if not sys.stdin.isatty():
        raise Trouble(
            "standard input is no terminal, so nobody can be asked: add --yes to release without asking"
        )
    for view in seen:
        click.echo(printable(f"{view.key} is held by ") + str(view))
    if any(view.state == RUNNING for view in seen):
        click.echo("A running task goes on without its lock.")
    if not click.confirm("Release it?" if len(seen) == 1 else f"Release these {len(seen)}?"):
        click.echo("nothing was released")
        raise click.exceptions.Exit(1)


def _take_away(place: Place, seen: LockView, reason: str) -> _Outcome:
    answer = place.store.force_release(seen.key, expected=seen.token)
    if answer.took_away:
        logger.warning("released %r by force from %s (%s): %s", seen.key, seen.owner, seen.state, reason)
        return _Outcome(seen, is_released=True, held_by=None)
    holder = answer.held_by
    return _Outcome(seen, is_released=False, held_by=None if holder is None else LockView.of(holder))


def _document(place: Place, asked: Subject, reason: str, outcomes: Sequence[_Outcome]) -> dict[str, object]:
    return {
        "server": place.store.server,
        "key": asked.key,
        "task": asked.task,
        "reason": reason,
        "released": [outcome.seen.as_json() for outcome in outcomes if outcome.is_released],
        "kept": [
            {"seen": outcome.seen.as_json(), "held_by": outcome.held_by and outcome.held_by.as_json()}
            for outcome in outcomes
            if not outcome.is_released
        ],
    }


def _say(place: Place, asked: Subject, outcomes: Sequence[_Outcome]) -> None:
    if not outcomes and asked.key is None:
        click.echo(f"no queued claim of {asked.task} is held")
    elif not outcomes:
        say_nothing_held(place, asked)
    for outcome in outcomes:
        key = printable(outcome.seen.key)
        if outcome.is_released:
            click.echo(f"released {key}: taken from {outcome.seen}")
        elif outcome.held_by is None:
            click.echo(f"nothing was released: {key} was given back meanwhile by {outcome.seen}")
        elif outcome.held_by == outcome.seen:
            click.echo(f"nothing was released: {key} is no queued claim, it is held by {outcome.seen}")
        else:
            click.echo(f"nothing was released: {key} has passed on to {outcome.held_by}")

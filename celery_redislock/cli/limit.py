"""The command about how many may hold a lock: ``limit``."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace

import click

from celery_redislock.cli import output
from celery_redislock.cli.subject import LockServer, Trouble, as_json_option, for_option, handle_of
from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.options import LockOptions
from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.limits import A_YEAR
from celery_redislock.publishing.handle import LockHandle
from celery_redislock.store.store import MOST_HOLDERS

#: Said where a number was set, and the task of the key is not known.
_DOUBT = (
    "nothing shows that a task with this key has a lock_limit above 1, or a callable; without one the number "
    "has no effect"
)


@click.command()
@click.argument("words", metavar="KEY | TASK [ARGUMENT]... [N]", nargs=-1, required=True)
@for_option
@click.option("--reset", is_flag=True, help="Remove what was set: the task's own limit applies again.")
@as_json_option
@click.pass_context
def limit(
    ctx: click.Context, words: tuple[str, ...], seconds: float | None, reset: bool, as_json: bool
) -> None:
    """Let N hold a lock at once, instead of the number that its task says.

    The limit applies immediately, in all processes, for the TIME given, else for a year. A higher limit lets
    waiting messages start. A lower limit ends no run: no other one starts until fewer hold the lock. A task
    with lock_limit=1, or without it, asks for no limit, and its locks have none.

    Name the lock as for show. A KEY without N shows what is set.

    Exit status: 0 set, removed or shown; 1 nothing is set, or was set; 2 on error.
    """
    server = LockServer.of(ctx)
    is_look = not reset and len(words) == 1
    if server.app is not None and not is_look:
        from celery_redislock.receiving.proof import learn  # noqa: PLC0415  imports a worker's parts

        learn(server.app, server.store)
    *subject, number = words if not (reset or is_look) else (*words, "")
    if not (reset or is_look or re.fullmatch("[0-9]{1,9}", number)):
        raise Trouble(f"{number!r} is no whole number from 1 to {MOST_HOLDERS}: give N last, or --reset")
    if seconds is not None and (reset or is_look):
        raise Trouble("--for is how long an N counts: give N, without --reset")
    try:
        handle, beginnings = _handle(server, subject)
    except Trouble as error:
        if reset and words[-1].isdecimal():
            raise Trouble(f"{error.message}; --reset takes no N") from None
        raise
    value = int(number) if number else None
    is_sure = not value or handle.key.startswith(beginnings) or _has_limit(server, handle.key)
    warning = None if is_sure else _DOUBT
    was = handle.limit() if reset else None
    found = handle.limit(value, for_=seconds or A_YEAR, reset=reset)
    if warning:
        output.warn(warning)
    if as_json:
        what = {"set": output.limit_as_json(found), "warning": warning}
        output.write_json({"server": server.store.server, "key": handle.key, **what})
    elif reset and was is None:
        output.say(f"nothing was set for {handle.key}: its limit is the one that its task says")
    elif found is None:
        output.say(f"the limit of {handle.key} is the one that its task says")
    else:
        output.say(f"the limit of {handle.key} is {output.of_limit(found)}")
    ctx.exit(1 if found is None and was is None else 0)


def _has_limit(server: LockServer, key: str) -> bool:
    """Whether one that holds this key says so."""
    return any("limit" in hold.facts for hold in server.store.holders(key))


def _handle(server: LockServer, subject: list[str]) -> tuple[LockHandle, tuple[str, ...]]:
    """Return the handle, and how the keys begin of those tasks that have a limit."""
    name, *given = subject
    task = server.tasks().get(name)
    if task is not None:
        return handle_of(task, given), ("",)
    if given:
        raise Trouble(f"{name!r} is not a task known here, and a key takes no arguments")
    # Whose key it is cannot be told: a key of a task by its name, or of one that has a limit.
    unique = {each.name: each for each in server.tasks().values() if is_unique(each)}
    owner = unique.get(name.partition(":v1:")[0])
    options = [*_options([owner] if owner else unique.values())]
    has_limit = server.app is None or bool(options)
    # Where no task says so, a scope may have two locks.
    has_two = server.app is None or any(each.scope and each.scope.claims_beside for each in options)
    queued = f"queued:{name}" if has_two else None
    beginnings = [key.partition("{")[0] for each in options if isinstance(key := each.lock_key, str)]
    task = owner or SimpleNamespace(name="every unique task of this app")
    return LockHandle(task, server.store, name, queued, has_limit), ("",) if owner else tuple(beginnings)


def _options(tasks: Iterable[object]) -> Iterator[LockOptions]:
    """Yield the options of those tasks that have a limit."""
    for task in tasks:
        with suppress(LockOptionError):
            options = declaration_of(task).options
            if options.lock_limit != 1:
                yield options


COMMANDS: Mapping[str, click.Command] = {"limit": limit}

"""The command about how many may hold a lock: ``limit``."""

import getpass
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import click

from celery_redislock.cli import output
from celery_redislock.cli.subject import LockServer, Trouble, as_json_option, for_option, handle_of
from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.options import LockOptions
from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.limits import A_YEAR
from celery_redislock.publishing import promote
from celery_redislock.publishing.handle import LockHandle


@click.command()
@click.argument("words", metavar="KEY | TASK [ARGUMENT]... [N]", nargs=-1, required=True)
@for_option
@click.option("--reset", is_flag=True, help="Take back what was set: the task's own limit counts again.")
@as_json_option
@click.pass_context
def limit(
    ctx: click.Context, words: tuple[str, ...], seconds: float | None, reset: bool, as_json: bool
) -> None:
    """Let N hold a lock at once, instead of the number that its task says.

    It counts at once, in all processes, for the TIME given, else for a year. Raised, it lets those start
    who wait in line. Lowered, it ends no run: no other one starts until fewer hold the lock. A task that
    says lock_limit=1, or nothing, asks for no limit, and its locks have none.

    The lock is named as for show. A KEY without N shows what is set.

    Exit status: 0 set, taken back or shown; 1 nothing is set; 2 trouble.
    """
    server = LockServer.of(ctx)
    if server.app is not None:
        promote.install(server.app, server.store)
    is_look = not reset and len(words) == 1
    *subject, number = words if not (reset or is_look) else (*words, "")
    if not (reset or is_look or re.fullmatch("[0-9]+", number)):
        raise Trouble(f"{number!r} is no whole number: give N last, or --reset")
    handle = _handle(server, subject)
    value = int(number) if number else None
    by = None if is_look else _who()
    found = handle.limit(value, for_=seconds or A_YEAR, reset=reset, by=by)
    if as_json:
        what = output.limit_as_json(found)
        output.write_json({"server": server.store.server, "key": handle.key, "set": what})
    elif found is None:
        output.say(f"the limit of {handle.key} is the one that its task says")
    else:
        output.say(f"the limit of {handle.key} is {output.of_limit(found)}")
    ctx.exit(1 if found is None and not reset else 0)


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Python 3.13 raises the latter
        return f"uid {os.getuid()}"


def _handle(server: LockServer, subject: list[str]) -> LockHandle:
    name, *given = subject
    task = server.tasks().get(name)
    if task is not None:
        return handle_of(task, given)
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
    return LockHandle(owner or click.get_current_context().command, server.store, name, queued, has_limit)


def _options(tasks: Iterable[object]) -> Iterator[LockOptions]:
    """Yield the options of those tasks that have a limit."""
    for task in tasks:
        with suppress(LockOptionError):
            options = declaration_of(task).options
            if options.lock_limit != 1:
                yield options


COMMANDS: Mapping[str, click.Command] = {"limit": limit}

"""Where a command looks: the lock server of a Celery app, or of a URL."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import click

from celery_redislock.cli import Server
from celery_redislock.exceptions import LockOptionError, LockUnavailable, RedisLockError
from celery_redislock.locks.store import Hold, LockStore

__all__ = ["Place", "Trouble", "nearest_task", "place_of", "reported"]

#: More names than this are not looked through.
ALL = 100_000

_NO_APP = (
    "no Celery app was given, so Celery offers its default one, which has none of your tasks and no Redis; "
    "say which: celery -A proj redislock …, or name a server: celery-redislock --url redis://host:port/db …"
)


class Trouble(click.ClickException):
    """What keeps a command from answering; one line, exit status 2."""

    exit_code = 2


class Place:
    """One lock server, and the app whose tasks lock there.

    Attributes:
        store: of the locks.
        app: Celery's; ``None`` where only a URL was given.
        command: what to type before ``list``, ``show`` or ``release`` to look here again.
    """

    def __init__(self, store: LockStore, *, app: Any = None, command: str) -> None:
        """Look here; connects to nothing yet."""
        self.store = store
        self.app = app
        self.command = command

    def tasks(self) -> dict[str, Any]:
        """Return the app's tasks by name, those of included and discovered modules among them.

        Raises:
            Trouble: one of these modules cannot be imported.
        """
        if self.app is None:
            return {}
        try:
            self.app.loader.import_default_modules()
            self.app.finalize(auto=True)
        except Exception as error:
            message = (
                f"the app's task modules cannot be imported: {type(error).__name__}: {error}; "
                "start this where its workers start"
            )
            raise Trouble(_masked(message)) from error
        return dict(self.app.tasks)

    def unique_tasks(self) -> list[str]:
        """Return the names of the app's unique tasks, sorted; Celery's own, which its base may make so, not.

        Raises:
            Trouble: as :meth:`tasks`.
        """
        tasks = self.tasks()
        if not tasks:
            return []
        from celery_redislock.task import SingletonTask  # noqa: PLC0415  imports Celery

        unique = (name for name, task in tasks.items() if isinstance(task, SingletonTask))
        return sorted(name for name in unique if not name.startswith("celery."))

    def holds(self, *, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[Hold]:
        """Look at every lock whose name is wanted, soonest to expire first; one request each."""
        for name in self.store.names(limit=ALL):
            hold = self.store.inspect(name) if wanted(name) else None
            if hold is not None:
                yield hold

    def nearest(self, word: str, among: Sequence[str] = ()) -> list[str]:
        """Return what the word may have been meant for, among these and the held keys; three at most.

        A task's locks, where only its name is given; what is much like it; what has the same characters,
        swapped; a task named without its module.
        """
        names = list(dict.fromkeys([*among, *self.store.names()]))
        alike = get_close_matches(word, names, n=3, cutoff=0.6)
        swapped = [name for name in names if sorted(name) == sorted(word)]
        its_own = [name for name in names if name.startswith(f"{word}:")]
        return list(dict.fromkeys([*its_own, *swapped, *alike, *nearest_task(word, among)]))[:3]

    def release_command(self, key: str) -> str:
        """Return the command that releases this lock, as one would type it in a shell."""
        return f"{self.command} release --reason TEXT -- {shlex.quote(key)}"


def place_of(ctx: click.Context) -> Place:
    """Return where the command looks.

    Raises:
        Trouble: neither an app nor a URL names a Redis server.
    """
    if isinstance(ctx.obj, Server):
        return _place_of_url(ctx.obj)
    from celery_redislock.declaring.options import read_settings  # noqa: PLC0415  only here
    from celery_redislock.declaring.server import store_of  # noqa: PLC0415  imports redis

    app = ctx.obj.app
    named = ctx.find_root().params.get("app")
    try:
        settings = read_settings(app.main or "settings", app.conf.get, os.environ)
        store = store_of(app, settings)
    except LockOptionError as error:
        raise Trouble(_masked(str(error)) if named else _NO_APP) from None
    if not named:
        looked = f"{store.server} for keys that begin with {settings.prefix!r}"
        click.echo(f"no app given (-A): looking at {looked}", err=True)
    app_name = named if isinstance(named, str) else "proj"
    return Place(store, app=app, command=f"celery -A {shlex.quote(app_name)} redislock")


def nearest_task(word: str, tasks: Sequence[str]) -> list[str]:
    """Return the tasks the word may have been meant for: what is much like it, with its module or without."""
    last = [name for name in tasks if get_close_matches(word, [name.rpartition(".")[2]], cutoff=0.8)]
    return list(dict.fromkeys([*get_close_matches(word, tasks, n=3, cutoff=0.6), *last]))[:3]


@contextmanager
def reported() -> Iterator[None]:
    """Turn this package's errors into one line and exit status 2, passwords masked.

    Raises:
        Trouble: in place of them.
    """
    try:
        yield
    except LockUnavailable as error:
        message = (
            f"the lock server {error.server} does not answer as it should: {error.reason.rstrip('.')}; "
            "check that it runs, and that it is the right one"
        )
        raise Trouble(_masked(" ".join(message.split()))) from error
    except RedisLockError as error:
        raise Trouble(_masked(" ".join(str(error).split()))) from error


def _place_of_url(server: Server) -> Place:
    from celery_redislock.locks import connect  # noqa: PLC0415  imports redis

    if server.url is None:
        raise Trouble("no lock server: give --url redis://host:port/db, or set REDIS_URL")
    # Celery's way to write a unix socket.
    url = re.sub(r"^redis\+socket://", "unix://", server.url).replace("virtual_host=", "db=")
    command = "celery-redislock"
    if not server.is_from_environment:
        command += f" --url {shlex.quote(_masked(server.url))}"
    if server.prefix != "redislock":
        command += f" --prefix {shlex.quote(server.prefix)}"
    with reported():
        return Place(connect(url, prefix=server.prefix), command=command)


#: A word with a URL in it, and the marks a sentence sets behind it.
_URL = re.compile(r"""(\S*://\S*?)(['",;)]*)(?=\s|$)""")


def _masked(text: str) -> str:
    from celery_redislock.locks.connection import mask_password  # noqa: PLC0415  imports redis

    # Word by word: what stands behind a URL says what is wrong with it. Our own texts are masked already.
    return _URL.sub(lambda found: mask_password(found[1]) + found[2], text)

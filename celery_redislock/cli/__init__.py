"""The command line: ``celery -A proj redislock …``, and ``celery-redislock …`` for those without an app.

Exit status of every command but ``demo``: 0 found or done; 1 nothing is held,
nothing was found, or nothing was released; 2 usage, settings or server trouble.

Every ``celery`` command imports this module (click-plugins loads what the
entry point ``celery.commands`` names), so it imports nothing but what Celery's
own command line has imported before: click and click-didyoumean.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

import click
from click_didyoumean import DYMGroup

__all__ = ["Server", "main", "redislock"]

_COMMANDS: Mapping[str, str] = {
    "list": "celery_redislock.cli.listing:list_locks",
    "release": "celery_redislock.cli.releasing:release",
    "show": "celery_redislock.cli.showing:show",
}


@dataclass(frozen=True, slots=True)
class Server:
    """What ``celery-redislock`` was told about where to look.

    Attributes:
        url: of the server; ``None`` if it was told nothing.
        prefix: of the keys.
        is_from_environment: nobody typed the URL.
    """

    url: str | None
    prefix: str
    is_from_environment: bool

    def __repr__(self) -> str:
        """Leave the URL out: it may hold a password."""
        return f"Server(prefix={self.prefix!r})"


class _Commands(DYMGroup):
    """A group whose commands are imported when they are asked for."""

    places: ClassVar[Mapping[str, str]] = _COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's interface
        return sorted(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  same
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


class _StandaloneCommands(_Commands):
    places: ClassVar[Mapping[str, str]] = {**_COMMANDS, "demo": "celery_redislock.cli.showcase:demo"}


@click.group(cls=_Commands)
def redislock() -> None:
    """Look at the locks of unique tasks, and release them.

    \b
    celery -A proj redislock list
    celery -A proj redislock show proj.sync_account 42
    celery -A proj redislock release proj.sync_account 42 --reason "host died"
    """  # noqa: D301  click wants the character itself, as the mark of a text not to be wrapped


@click.group(cls=_StandaloneCommands)
@click.option("--url", metavar="URL", help="The lock server, redis://host:port/db (default: REDIS_URL).")
@click.option("--prefix", default="redislock", show_default=True, help="Beginning of every key.")
@click.pass_context
def main(ctx: click.Context, url: str | None, prefix: str) -> None:
    """Look at the locks on a Redis or Valkey server, without a Celery app."""
    given = os.environ.get("REDIS_URL") or None
    ctx.obj = Server(url or given, prefix, is_from_environment=not url)

"""The command line: ``celery -A proj redislock …``, and ``celery-redislock …`` for those without an app.

Exit status: 0 listed, found or released; 1 what was named is not held, or nothing
was released; 2 usage, settings or server trouble.

Every ``celery`` command imports this module (click-plugins loads what the
entry point ``celery.commands`` names), so it imports nothing but what Celery's
own command line has imported before: click.
"""

from importlib import import_module

import click

_COMMANDS = {"list": "list_locks", "release": "release", "show": "show"}


class _Commands(click.Group):
    """A group whose commands are imported when they are called for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's interface
        return sorted(_COMMANDS)  # not list(): here that is the module of this name, once it is imported

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  same
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"celery_redislock.cli.{cmd_name}")
        command: click.Command = getattr(module, _COMMANDS[cmd_name])
        return command


@click.group(cls=_Commands)
def redislock() -> None:
    """Look at the locks of unique tasks, and release them.

    \b
    celery -A proj redislock list
    celery -A proj redislock show proj.sync_account 42
    celery -A proj redislock release proj.sync_account 42 --reason "host died"
    """  # noqa: D301  click wants the character itself, as the mark of a text not to be wrapped


@click.group(cls=_Commands)
@click.option(
    "--url",
    envvar="REDIS_URL",
    show_envvar=True,
    metavar="URL",
    help="The lock server, redis://host:port/db.",
)
@click.option("--prefix", default="redislock", show_default=True, help="Beginning of every key.")
def main(url: str | None, prefix: str) -> None:
    """Look at the locks on a Redis or Valkey server, without a Celery app."""

"""The command line: ``celery -A proj redislock …``, and ``celery-redislock …`` for those without an app.

Exit status: 0 listed, found or done; 1 what was named is not held or not there, or nothing
was done; 2 usage, settings or server trouble.

Every ``celery`` command imports this module (click-plugins loads what the entry point ``celery.commands``
names), so it imports nothing but what Celery's own command line has imported before.
"""

from importlib import import_module
from typing import Any

import click

from celery_redislock.scheduling import plug

#: The commands, each with the module it is in.
_MODULES = {
    **dict.fromkeys(("list", "release"), "locks"),
    **dict.fromkeys(("hold", "limit", "waiting"), "line"),
    **dict.fromkeys(("exporter", "stats"), "figures"),
    **{name: name for name in ("doctor", "drill", "explain", "history", "schedule", "web")},
}

#: How help shows them: the groups in their order, and their commands.
_GROUPS = {
    "Why": ("explain", "doctor"),
    "Look": ("list", "waiting", "stats", "history", "web"),
    "Change": ("release", "hold", "limit"),
    "More": ("schedule", "exporter", "drill"),
}


class _Refused(click.ClickException):
    """What keeps a command from answering: one line, exit status 2."""

    exit_code = 2


class _Commands(click.Group):
    """A group whose commands are imported when they are called for; their errors are one line each."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's interface
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  same
        if cmd_name not in _MODULES:
            return None
        module = import_module(f"celery_redislock.cli.{_MODULES[cmd_name]}")
        command: click.Command = module.COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the commands in their groups, with the whole of their short texts."""
        widest = max(map(len, _MODULES))
        for group, names in _GROUPS.items():
            found = [(name.ljust(widest), self.get_command(ctx, name)) for name in names]
            with formatter.section(group):
                formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in found if each])

    def invoke(self, ctx: click.Context) -> Any:
        from celery_redislock.exceptions import RedisLockError  # noqa: PLC0415  see above
        from celery_redislock.operating.server import Trouble  # noqa: PLC0415  see above
        from celery_redislock.operating.telling import printable  # noqa: PLC0415  see above

        try:
            return super().invoke(ctx)
        except (RedisLockError, Trouble) as error:  # whose text shows no password
            raise _Refused(printable(" ".join(str(error).split()))) from error


# The entry point ``celery.commands`` is also how ``celery beat`` learns of this package.
plug.connect()


@click.group(cls=_Commands)
def redislock() -> None:
    """Look at the locks of unique tasks, and release them; look at the schedule that beats share.

    \b
    celery -A proj redislock explain proj.sync_account 42
    celery -A proj redislock list
    celery -A proj redislock waiting account:42
    celery -A proj redislock limit account:42 5 --for 30d
    celery -A proj redislock release proj.sync_account 42 --reason "host died"
    celery -A proj redislock hold account:42 --for 30m --reason "the bank is down"
    celery -A proj redislock history account:42
    celery -A proj redislock schedule
    celery -A proj redislock schedule pause nightly-report --for 2h
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
    """Look at the locks on a Redis or Valkey server, without a Celery app.

    To name a task and its arguments, give the app instead: celery -A proj redislock …
    """

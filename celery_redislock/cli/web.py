"""The command ``web``: the page about locks, for a browser on this machine."""

import signal
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address

import click

from celery_redislock.cli import output
from celery_redislock.cli.answer import server_of
from celery_redislock.declaring.declaration import is_unique
from celery_redislock.operating.server import Trouble
from celery_redislock.web.guard import HOST, at_home
from celery_redislock.web.page import page_of
from celery_redislock.web.server import PageServer

_HOST = "Another name that a browser may reach this page by; as often as there are names."


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=5556, show_default=True, help="0: any free.")
@click.option("--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--host", "names", multiple=True, metavar="NAME", help=_HOST)
@click.pass_context
def web(ctx: click.Context, port: int, bind: str, names: tuple[str, ...]) -> None:
    """Show locks, lines and the schedule as a page in a browser.

    It is served until it is stopped. The page changes nothing, and has no login. By default only this machine
    reaches it, as 127.0.0.1, localhost or [::1]; to another name it answers where --host gives that name. For
    other people, mount celery_redislock.web.application(app) in a site with a login.

    Exit status: 0 when it is stopped; 2 on error, such as a port that is taken.
    """
    server = server_of(ctx)
    for name in names:
        if not HOST.fullmatch(name):
            raise Trouble(f"--host {name!r} is no name of a host; write locks.example.org, or [fd00::7]")
    if server.app is not None and not any(map(is_unique, server.tasks().values())):
        raise Trouble("this app has no unique tasks, so the page would stay empty: celery -A names the app")
    server.store.names(limit=1)  # an operator is told now that it is away, not by an empty page
    try:
        httpd = PageServer(bind, port)
    except (OSError, UnicodeError) as error:
        raise Trouble(f"cannot listen at {bind}:{port}: {error}; see --bind and --port") from error
    with httpd, suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if not ip_address(httpd.server_name.strip("[]")).is_loopback:
            output.warn(
                "WARNING: this page has no login, and shows keys and names of tasks to whoever reaches "
                f"{bind}; put it behind a proxy with a login, or mount celery_redislock.web.application(app)"
            )
        httpd.set_app(at_home(page_of(server), httpd.hosts(names)))
        output.say(f"serving {server.store.server} at http://{httpd.server_name}:{httpd.server_port}/")
        httpd.serve_forever()


COMMANDS: Mapping[str, click.Command] = {"web": web}

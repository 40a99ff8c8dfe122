"""``celery-redislock demo``."""

import click

from celery_redislock.cli import Server

__all__ = ["demo"]


@click.command()
@click.option("--url", metavar="URL", help="A server to use instead of an embedded one (default: REDIS_URL).")
@click.option("-v", "--verbose", is_flag=True, help="Print the worker's log as well.")
@click.pass_obj
def demo(server: Server, url: str | None, verbose: bool) -> None:
    """Show what is promised: real worker, real tasks, duplicates visibly stopped.

    Takes about 20 seconds, needs no server (it starts one of its own) and leaves nothing behind.
    Exit status 0: everything was seen as promised; 1: not; 2: there was no server or no worker.
    """
    from celery_redislock.cli.demo.show import run  # noqa: PLC0415  imports Celery

    raise SystemExit(run(url or server.url, verbose=verbose))

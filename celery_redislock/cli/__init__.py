"""The command line: ``celery-redislock …``, and ``celery -A proj redislock …``."""

import os

import click

__all__ = ["main"]


@click.group()
def main() -> None:
    """Look at locks on a Redis or Valkey server, without a Celery app."""


@main.command("demo")
@click.option("--url", help="A server to use instead of an embedded one (also: REDIS_URL).")
@click.option("-v", "--verbose", is_flag=True, help="Print the worker's log as well.")
@click.pass_context
def _demo(ctx: click.Context, url: str | None, verbose: bool) -> None:
    """Show what is promised: a real worker, real tasks, duplicates visibly stopped."""
    from celery_redislock.cli.demo.show import run  # noqa: PLC0415  imports Celery

    ctx.exit(run(url or os.environ.get("REDIS_URL") or None, verbose=verbose))

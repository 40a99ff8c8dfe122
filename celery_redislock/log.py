"""The package's one logger: what to configure to see, or to silence, what it says."""

import logging
import sys
from time import monotonic
from typing import Any

logger = logging.getLogger("celery_redislock")

#: Seconds until the same is said again; and of how many it is known that it was said.
TOLD_AGAIN = 60.0
MOST = 10_000
_told_at: dict[str, float] = {}

#: The app that this process was started with, once its main thread has asked for it.
_app_given: list[str] = []


def command(words: str) -> str:
    """Return a command of Celery's for the app of this process, as one would type it in a shell.

    The app is the one that Celery's command line was given (``-A``), which tells it to the main thread alone:
    workers and beats ask when they start. A program that was started otherwise knows of none.
    """
    program: Any = sys.modules.get("celery.bin.celery")
    context = program and program.click.get_current_context(silent=True)
    root = context and context.find_root()
    if root and root.command is program.celery and isinstance(root.params.get("app"), str):
        from shlex import quote  # noqa: PLC0415  not for locks alone

        _app_given[:] = [quote(root.params["app"])]
    return f"celery -A {_app_given[0] if _app_given else 'YOUR_APP'} {words}"


def is_news(what: str) -> bool:
    """Whether this was not said within the last minute, by this process; from now on it was."""
    now = monotonic()
    if now - _told_at.get(what, -TOLD_AGAIN) < TOLD_AGAIN:
        return False
    if len(_told_at) >= MOST:
        _told_at.clear()
    _told_at[what] = now
    return True

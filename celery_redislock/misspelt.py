"""Settings of an app that are meant for ours and are none, told where they would have mattered."""

import logging
import weakref
from typing import Any

from celery.app.defaults import DEFAULTS

from celery_redislock.options import unknown_settings

__all__ = ["misspelt_settings", "tell_misspelt_settings"]

logger = logging.getLogger("celery_redislock")

_told: "weakref.WeakSet[Any]" = weakref.WeakSet()


def misspelt_settings(app: Any) -> list[str]:
    """Return a problem for each misspelt setting; whoever asks tells them, in place of the first lock."""
    _told.add(app)
    # Not Celery's own, which are many: this is part of a program's first publish.
    return unknown_settings(str(name) for name in app.conf if name not in DEFAULTS)


def tell_misspelt_settings(app: Any) -> None:
    """Log them, once per app and process; nothing with ``redislock_check = "ignore"``.

    A worker tells them when it starts. This is for the programs that only publish: what they misspell,
    the name of the lock server or the off switch, no worker will see.
    """
    if app in _told or app.conf.get("redislock_check") == "ignore":
        return
    for problem in misspelt_settings(app):
        logger.warning("redislock: %s", problem)

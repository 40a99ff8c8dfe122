"""The package's one logger: what to configure to see, or to silence, what it says."""

import logging
from time import monotonic

logger = logging.getLogger("celery_redislock")

#: Seconds until the same is said again; and of how many it is known that it was said.
TOLD_AGAIN = 60.0
MOST = 10_000
_told_at: dict[str, float] = {}


def is_news(what: str) -> bool:
    """Whether this was not said within the last minute, by this process; from now on it was."""
    now = monotonic()
    if now - _told_at.get(what, -TOLD_AGAIN) < TOLD_AGAIN:
        return False
    if len(_told_at) >= MOST:
        _told_at.clear()
    _told_at[what] = now
    return True

"""A limit that is set at run time, in place of the one that processes know."""

import json
import os
import time
from collections.abc import Sequence

from celery_redislock.locks.process import hostname
from celery_redislock.log import logger
from celery_redislock.store.store import Limit, LockStore

#: Seconds for which a limit counts that is set for no other time.
A_YEAR = 366 * 86400.0


def replace_limit(
    store: LockStore, keys: Sequence[str], value: int | None, seconds: float, *, by: str | None = None
) -> Limit | None:
    """Replace the limit of these locks, the last of which is what people know; ``None`` takes it back.

    Notes who did it, and logs a WARNING. One request for each; returns what is set now.
    """
    facts = {"by": by, "host": hostname(), "pid": os.getpid(), "since": time.time()}
    text = json.dumps({name: fact for name, fact in facts.items() if fact is not None})
    found = [store.limit(key, value, ttl=seconds, facts=text) for key in keys]
    said = "that of its processes again" if value is None else value
    logger.warning("the limit of %r is %s", keys[-1], said)
    return found[-1]

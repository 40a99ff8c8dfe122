"""A limit that is set at run time, in place of the one that processes know."""

import json
from collections.abc import Sequence

from celery_redislock.locks.acts import note_act, who
from celery_redislock.log import logger
from celery_redislock.store.store import Limit, LockStore

#: Seconds for which a limit counts that is set for no other time.
A_YEAR = 366 * 86400.0


def replace_limit(
    store: LockStore, keys: Sequence[str], value: int | None, seconds: float, *, by: str | None = None
) -> Limit | None:
    """Replace the limit of these locks, the last of which is what people know; ``None`` takes it back.

    Notes who did it, and logs a WARNING. One request for each, and one more; returns what is set now.
    ``by``: ``None`` stands for the user of this process.
    """
    named = {} if by is None else {"by": by}
    text = json.dumps({**who(), **named})
    found = [store.limit(key, value, ttl=seconds, facts=text) for key in keys]
    said = "that of its processes again" if value is None else value
    logger.warning("the limit of %r is %s", keys[-1], said)
    note_act(store, "limit", keys[-1], f"{said}" if value is None else f"{said} for {seconds:g} s", **named)
    return found[-1]

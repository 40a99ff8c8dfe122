"""What a worker and a beat say when they start: how many tasks are unique, and where the locks are."""

from collections.abc import Sequence
from typing import Any

import celery

from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.options import LockSettings
from celery_redislock.declaring.server import store_of
from celery_redislock.exceptions import LockOptionError
from celery_redislock.log import logger
from celery_redislock.scheduling.entries import is_shared

#: The first and the last minor version of Celery with which this package was tested.
TESTED = ((5, 5), (5, 7))

#: So many entries are named that are not shared.
NAMED = 10


def count_unique(app: Any) -> int:
    """Return how many tasks of an app take locks; one whose options are wrong would take them."""
    return sum(map(_takes_locks, app.tasks.values()))


def tell(app: Any, settings: LockSettings, remark: str = "", *, shared: int = 0) -> None:
    """Log one line at INFO; nothing where no task is unique and no entry is *shared*.

    Raises:
        LockOptionError: the lock server cannot be told.
    """
    count = count_unique(app)
    if not (count or shared):
        return
    where = "locking is switched off (redislock_enabled)"
    if settings.enabled:
        store = store_of(app, settings)
        where = f"locks on {store.server} (prefix {store.prefix})"
    is_tested = TESTED[0] <= celery.VERSION[:2] <= TESTED[1]
    untested = "" if is_tested else f"; Celery {celery.__version__} is untested"
    logger.info("redislock: %s, %s%s%s", _so_many(count, "unique task"), where, remark, untested)


def tell_of_beat(app: Any, settings: LockSettings, entries: Sequence[Any]) -> None:
    """Log one line as :func:`tell`, with how many of these entries are shared, and which are not."""
    others = sorted(each.name for each in entries if not is_shared(app, each, settings.beat or ()))
    shared = len(entries) - len(others)
    remark = f"; beat shares {shared} of {_so_many(len(entries), 'entry', 'entries')}"
    if others:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        remark += f', not shared: {", ".join(others[:NAMED])}{more} (redislock_beat = "all" shares all)'
    tell(app, settings, remark, shared=shared)


def _takes_locks(task: Any) -> bool:
    if not is_unique(task):
        return False
    try:
        return declaration_of(task).options.scope is not None
    except LockOptionError:
        return True


def _so_many(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"

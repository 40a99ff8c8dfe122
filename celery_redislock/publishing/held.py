"""Who holds the locks of an app: a list for programs, and for the command line."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from celery_redislock.declaring.server import store_of
from celery_redislock.exceptions import LockOptionError
from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import LockStore

#: More locks than this are not looked through.
ALL = 100_000


def held(
    app: Any,
    *,
    key: str | None = None,
    task: str | None = None,
    host: str | None = None,
    offset: int = 0,
    limit: int = 100,
) -> list[Holder]:
    """Return who holds locks now, for a page of one's own: in the order of their keys.

    One request for the keys, and one for each lock that is looked at: the first ``offset + limit`` of those
    whose key fits. What changes meanwhile may be missing, or shift a page by one. A lock that several hold is
    in the list once for each of them. Another program's locks are not.

    Args:
        app: the Celery app.
        key: a pattern of keys, as a shell has them for files: ``*``, ``?``, ``[abc]``.
        task: a pattern of task names. One that the app does not know (any more) is as good.
        host: a pattern of host names: of the workers that run, or of those that have published a claim.
        offset: so many are left out at the beginning.
        limit: so many are returned at most, from 1 to 100,000.

    Raises:
        LockOptionError: the offset or the limit is out of range; or the app names no lock server.
        LockUnavailable: the lock server cannot be reached.
    """
    problems = [
        f"{name}={value!r} is not a whole number from {least} to {ALL}"
        for name, value, least in (("offset", offset, 0), ("limit", limit, 1))
        if not isinstance(value, int) or not least <= value <= ALL
    ]
    if not hasattr(app, "conf"):
        problems.append(f"{app!r} is no Celery app")
    if problems:
        raise LockOptionError("held", problems)
    store = store_of(app)
    found = holders_of(store, sorted(store.names(limit=ALL)), key=key, task=task, host=host)
    return list(islice(found, offset, offset + limit))


def holders_of(
    store: LockStore,
    names: Sequence[str],
    *,
    key: str | None = None,
    task: str | None = None,
    host: str | None = None,
) -> Iterator[Holder]:
    """Look at these locks in their order; yield those holders whom all patterns fit."""
    for holds in store.holders_of_each(name for name in names if _fits(name, key)):
        for holder in map(Holder.of, holds):
            if _fits(holder.task, task) and _fits(holder.host, host):
                yield holder


def _fits(value: str | None, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(value or "", pattern)

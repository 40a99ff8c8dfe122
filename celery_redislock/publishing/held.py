"""Who holds the locks of an app, and who waits for them: lists for programs, and for the command line."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from celery_redislock.declaring.server import store_of
from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.keylock import LockByName
from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import LockStore

#: More locks than this are not looked through.
ALL = 100_000

#: Lines of which one call tells who is first.
MOST_LINES = 1000


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

    Two requests for each thousand keys, and one or two for each 250 locks that are looked at: the first
    ``offset + limit`` of those whose key fits. What changes meanwhile may be missing, or shift a page by one.
    A lock that several hold is in the list once for each of them. Another program's locks are not.

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
    store = _store_of(app, "held", offset, limit, ALL)
    found = holders_of(store, sorted(store.names(limit=ALL)), key=key, task=task, host=host)
    return list(islice(found, offset, offset + limit))


def waiting(
    app: Any, key: str | None = None, *, task: str | None = None, offset: int = 0, limit: int = 100
) -> list[Holder]:
    """Return who waits for locks now, for a page of one's own.

    With a key: all in its line, in order; before them those that were handed the lock and have not started,
    and behind them those that wait to be its queued call, in a scope that has two locks. One request for each
    hundred, and three more. Without a key: the first of each line, in the order of their keys; one that was
    handed the lock where nobody else is in the line. Two requests for each thousand lines there are, and one
    for each fifty. What changes meanwhile may be missing, or shift a page by one.

    ``Holder.place`` and ``Holder.length`` say where each stands, ``since`` when it was put into the line. A
    :class:`~celery_redislock.locks.Lock` that waits has no ``task``.

    Args:
        app: the Celery app.
        key: whose line; ``None``: all lines.
        task: a pattern of task names, as a shell has them for files.
        offset: so many are left out at the beginning.
        limit: so many are returned at most, from 1 to 100,000; without a key, to 1,000.

    Raises:
        LockOptionError: the offset or the limit is out of range; or the app names no lock server.
        LockUnavailable: the lock server cannot be reached.
        LockKeyError: the line of that key is another program's.
    """
    store = _store_of(app, "waiting", offset, limit, MOST_LINES if key is None else ALL)
    last = offset + limit - 1 if task is None else -1
    found = _heads(store) if key is None else _in_line(store, key, last)
    return list(islice((one for one in found if _fits(one.task, task)), offset, offset + limit))


def _heads(store: LockStore) -> Iterator[Holder]:
    lines = chain.from_iterable(store.walk_lines(limit=ALL))
    for line in sorted(lines, key=attrgetter("name")):
        yield Holder.in_line(line.first, 0 if line.is_handed_on else 1, line.length)


def _in_line(store: LockStore, key: str, last: int) -> Iterator[Holder]:
    """Yield who waits for a lock, up to the ``last`` rank, and then who waits to be its queued call."""
    for name in (key, LockByName(store, key).of_queue().key):
        length, waiters = store.waiting(name, last=last)
        handed_on = store.waiting(name, handed_on=True)[1]
        for place, waiter in enumerate([*handed_on, *waiters], start=1 - len(handed_on)):
            yield Holder.in_line(waiter, max(0, place), length)


def _store_of(app: Any, what: str, offset: object, limit: object, most: int) -> LockStore:
    problems = [
        f"{name}={value!r} is not a whole number from {least} to {greatest}"
        for name, value, least, greatest in (("offset", offset, 0, ALL), ("limit", limit, 1, most))
        if not isinstance(value, int) or not least <= value <= greatest
    ]
    if not hasattr(app, "conf"):
        problems.append(f"{app!r} is no Celery app")
    if problems:
        raise LockOptionError(what, problems)
    return store_of(app)


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
        yield from (one for one in map(Holder.of, holds) if fits(one, task=task, host=host))


def fits(holder: Holder, *, key: str | None = None, task: str | None = None, host: str | None = None) -> bool:
    """Whether all patterns fit a holder."""
    return _fits(holder.key, key) and _fits(holder.task, task) and _fits(holder.host, host)


def _fits(value: str | None, pattern: str | None) -> bool:
    return pattern is None or fnmatchcase(value or "", pattern)

"""In place of celery-singleton (its names and options as of 0.3.1)."""

import json
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import md5
from inspect import signature
from typing import Any, ClassVar

from celery_redislock.compat.translation import FromApp, TranslatedTask, at_publish
from celery_redislock.declaring.server import store_of
from celery_redislock.exceptions import DuplicateTask
from celery_redislock.locks.force import facts_of_force
from celery_redislock.log import logger
from celery_redislock.publishing.held import ALL, holders_of
from celery_redislock.store.store import QUEUED

__all__ = ["DuplicateTaskError", "Singleton", "clear_locks"]


class DuplicateTaskError(DuplicateTask):
    """A call was refused, because another task holds its key: ``task_id``, and the facts of the base."""


class Singleton(TranslatedTask):
    """A task of which one per arguments is queued or running; a duplicate gets the holder's result.

    Of the app, the settings ``singleton_raise_on_duplicate`` and ``singleton_lock_expiry`` count where a task
    says nothing; ``singleton_backend_url`` and ``singleton_key_prefix`` become ``redislock_url`` and
    ``redislock_prefix``, unless these are set. They are read when a task is bound.
    """

    abstract = True
    #: Names of the arguments that make a call unique. An empty list, and ``None``, stand for all.
    unique_on: Sequence[str] | str | None = None
    #: Whether a duplicate raises :class:`DuplicateTaskError`; ``None`` takes the setting, then ``False``.
    raise_on_duplicate: bool | None = None
    #: Seconds a claim outlives its publish, or the last sign of life of its message; ``None`` takes the
    #: setting, then an hour. A run renews its lock for as long as it takes.
    lock_expiry: float | timedelta | None = None

    _library: ClassVar[str] = "celery-singleton"
    _replaced: ClassVar[Mapping[str, str]] = {"generate_lock": "lock_key", "on_duplicate": "on_conflict"}

    def _their_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        if self.unique_on:
            names = [self.unique_on] if isinstance(self.unique_on, str) else self.unique_on
            bound = signature(self.run).bind(*args, **kwargs).arguments
            args = []
            kwargs = {name: bound[name] for name in names}
        text = self.name + json.dumps(args, sort_keys=True) + json.dumps(kwargs, sort_keys=True)
        prefix: str = self._get_app().conf.get("singleton_key_prefix", "SINGLETONLOCK_")
        return prefix + md5(text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def _translate(cls, said: Mapping[str, Any]) -> Mapping[str, Any]:
        native: dict[str, Any] = {}
        if "unique_on" in said:
            names = said["unique_on"] or None
            native["lock_key"] = (names,) if isinstance(names, str) else names and tuple(names)
        raises = said.get("raise_on_duplicate")
        if "raise_on_duplicate" in said:
            native["on_conflict"] = None if raises is None else at_publish(raises=raises)
        if "lock_expiry" in said:
            native["lock_queue_ttl"] = said["lock_expiry"]
        return native

    @classmethod
    def _from_app(cls, app: Any) -> FromApp:
        url, prefix, raises, expiry, backend = (
            app.conf.get(f"singleton_{name}")
            for name in ("backend_url", "key_prefix", "raise_on_duplicate", "lock_expiry", "backend_class")
        )
        surprises = []
        if cls.unique_on is not None and not cls.unique_on:
            surprises.append(
                f"unique_on={cls.unique_on!r} means all arguments, as in celery-singleton; leave it out, or "
                "write lock_key=() for one lock for all calls of the task"
            )
        if backend is not None:
            surprises.append(
                "singleton_backend_class means nothing here, where locks are on Redis or Valkey; "
                "set redislock_url"
            )
        return FromApp(
            {"redislock_url": url, "redislock_prefix": prefix},
            {"on_conflict": at_publish(raises=True) if raises else None, "lock_queue_ttl": expiry},
            surprises,
        )

    @staticmethod
    def _error_of(error: DuplicateTask) -> DuplicateTask:
        return DuplicateTaskError(error.key, error.task_id, error.expires_in, error.is_period)


# This class's own names are no unknown options of a subclass.
Singleton._lock_names = frozenset(dir(Singleton))


def clear_locks(app: Any) -> None:
    """Release the claims of all queued calls of the app's :class:`Singleton` tasks, each logged as WARNING.

    Their messages stay, and run; a duplicate of one may be queued beside it. A run keeps its lock. One
    request for each lock of the app, and another one for each claim.

    Raises:
        LockUnavailable: the lock server cannot be reached.
        LockOptionError: no setting names one.
    """
    warnings.warn(
        "clear_locks() is not needed: a lock ends with its run, a claim with its message or lock_queue_ttl",
        DeprecationWarning,
        stacklevel=2,
    )
    # First: tasks that are bound bring the lock server's URL.
    names = {name for name, task in app.tasks.items() if isinstance(task, Singleton)}
    store = store_of(app)
    for holder in holders_of(store, store.names(limit=ALL)):
        if holder.state == QUEUED and holder.task in names:
            # No act of an operator's for the history: programs call it at each start of a worker.
            by = facts_of_force(holder.owner, "clear_locks() was called")
            if store.force_release(holder.key, expected=holder.token, by=by).took_away:
                logger.warning("clear_locks() released %r, which %s had claimed", holder.key, holder.owner)

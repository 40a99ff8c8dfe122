"""Unique Celery tasks: a lock per task and arguments, on Redis or Valkey.

The names below are resolved on first use, so that importing this package, or
``celery_redislock.locks`` from it, imports neither Celery nor redis.

(PYTEST_DONT_REWRITE: without this word pytest warns if the package of a plugin is imported before it starts.)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redislock.declaring.keys.resources import Resources
    from celery_redislock.declaring.lock import Lock
    from celery_redislock.declaring.scopes import Conflict
    from celery_redislock.exceptions import (
        DuplicateTask,
        LockBusy,
        LockKeyError,
        LockLost,
        LockNotHeld,
        LockOptionError,
        LockUnavailable,
        RedisLockError,
    )
    from celery_redislock.locks.lease import Lease
    from celery_redislock.publishing.handle import Holder, LockHandle
    from celery_redislock.publishing.results import LockResult
    from celery_redislock.publishing.signals import lock_acquired, lock_conflict, lock_lost, lock_released
    from celery_redislock.task import SingletonTask

__all__ = [
    "Conflict", "DuplicateTask", "Holder", "Lease", "Lock", "LockBusy", "LockHandle", "LockKeyError",
    "LockLost", "LockNotHeld", "LockOptionError", "LockResult", "LockUnavailable", "RedisLockError",
    "Resources", "SingletonTask", "lock_acquired", "lock_conflict", "lock_lost", "lock_released",
]  # fmt: skip

__version__ = "0.1.0"

#: Where the names are that are neither errors nor signals.
_HOMES = {
    "Conflict": "declaring.scopes",
    "Holder": "publishing.handle",
    "Lease": "locks.lease",
    "Lock": "declaring.lock",
    "LockHandle": "publishing.handle",
    "LockResult": "publishing.results",
    "Resources": "declaring.keys.resources",
    "SingletonTask": "task",
}


if not TYPE_CHECKING:  # a checker would take every misspelt name for an object

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        others = "publishing.signals" if name.startswith("lock_") else "exceptions"
        home = import_module(f"{__name__}.{_HOMES.get(name, others)}")
        value = globals()[name] = getattr(home, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""How each library makes a task unique, as its own documentation says, in its best honest light.

Every choice that is not a library's default has its reason beside it, and is
told in this folder's README. The functions run in an environment where the
library is installed; nothing of it is imported before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EVERY", "LIBRARIES", "OURS", "PLAN", "SHORT", "Declaration", "Library"]

#: The environment variable that tells the library, the server's URL and the two times of a scenario, as JSON.
PLAN = "CELERY_REDISLOCK_SCOREBOARD_PLAN"
#: Seconds of the lock of a task that outlives it: scenario 11.
SHORT = 2
#: Seconds between two ticks of a schedule: scenarios 19 to 21.
EVERY = 3


@dataclass(frozen=True, slots=True)
class Declaration:
    """Keywords of ``app.task``.

    Attributes:
        unique: for a unique task.
        short_lived: for one whose lock has a TTL of ``SHORT`` seconds; ``None`` where none can be set.
        periodic: for one that beat sends every ``EVERY`` seconds; ``None``: as any unique task.
    """

    unique: Mapping[str, Any]
    short_lived: Mapping[str, Any] | None
    periodic: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Library:
    """One contender.

    Attributes:
        name: in the table.
        declare: prepares the app, whose broker is at the URL, and says how its tasks are declared.
        lacks: scenario -> why the library has no means for it.
    """

    name: str
    declare: Callable[[Any, str], Declaration]
    lacks: Mapping[str, str] = field(default_factory=dict)


def _redislock(app: Any, url: str) -> Declaration:
    from celery_redislock import SingletonTask

    return Declaration({"base": SingletonTask}, {"base": SingletonTask, "lock_ttl": SHORT})


def _singleton(app: Any, url: str) -> Declaration:
    from celery_singleton import Singleton

    return Declaration({"base": Singleton}, {"base": Singleton, "lock_expiry": SHORT})


def _once(app: Any, url: str) -> Declaration:
    from celery_once import QueueOnce

    app.conf.ONCE = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": url, "default_timeout": 3600},
    }
    # Its default is to raise; graceful, it skips a duplicate as all others here do.
    once = {"graceful": True}
    return Declaration(
        {"base": QueueOnce, "once": once},
        {"base": QueueOnce, "once": {**once, "timeout": SHORT}},
    )


def _heimdall(app: Any, url: str) -> Declaration:
    from celery_heimdall import HeimdallTask

    # By default (True) a run first waits up to a second for the lock it owns itself (1.0.1, task.py).
    heimdall = {"unique": True, "unique_lock_blocking": False}
    return Declaration(
        {"base": HeimdallTask, "heimdall": heimdall},
        {"base": HeimdallTask, "heimdall": {**heimdall, "unique_timeout": SHORT}},
        # Its "unique interval task". With a timeout as long as the interval it loses ticks.
        {
            "base": HeimdallTask,
            "heimdall": {**heimdall, "unique_timeout": 0.8 * EVERY, "unique_wait_for_expiry": True},
        },
    )


def _once_task(app: Any, url: str) -> Declaration:
    from celery_once_task import OnceTask, OnceTaskUnlockBootStep, configure, setup_once_task_signals

    # All three steps of its set-up, those for revoked tasks and for shutdown included.
    configure(redis_url=url)
    setup_once_task_signals()
    app.steps["worker"].add(OnceTaskUnlockBootStep)
    return Declaration({"base": OnceTask}, None)


def _rhubarb(app: Any, url: str) -> Declaration:
    from rhubarb.tasks import LockableTaskWithArgs

    # Its pages show LockableTask only, whose lock is the task's name: it would reject calls with other
    # arguments. This class of the same module (0.3.0) has a lock for the positional arguments.
    return Declaration(
        {"base": LockableTaskWithArgs},
        {"base": LockableTaskWithArgs, "lock_ttl": SHORT},
    )


OURS = "celery_redislock"
#: By name, ours first; a peer's name is that of its package.
LIBRARIES = {
    library.name: library
    for library in (
        Library(OURS, _redislock),
        Library("celery-singleton", _singleton),
        Library("celery-once", _once),
        Library("celery-heimdall", _heimdall),
        Library("celery-once-task", _once_task, {"11": "no TTL per task"}),
        Library("rhubarb", _rhubarb),
    )
}

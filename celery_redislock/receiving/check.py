"""What a worker checks when it starts: settings, the schedule, the lock server, the options of each task."""

from typing import Any

from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.options import risks
from celery_redislock.declaring.server import NoLockServerError, setting_problems, settings_of
from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.log import logger
from celery_redislock.receiving.parking import waits
from celery_redislock.scheduling.entries import entries_of, problems_of
from celery_redislock.scheduling.startup import tell
from celery_redislock.store.store import NOBODY, LockStore

#: The pools whose bodies run in a main thread, where a lost lock can interrupt them.
_INTERRUPTIBLE_POOLS = frozenset({"prefork", "solo"})


def check_worker(instance: Any = None, **_: Any) -> None:
    """Log where the locks are, and what would go wrong; with ``redislock_check="error"`` end the worker then.

    A worker with unique tasks and no lock server ends in any case: each publish and each run would fail.
    ``celeryd_after_setup`` of ``celery worker``: its log is there by now, its pool not yet (5.7.0).
    """
    try:
        tell(instance.app, settings_of(instance.app))
    except NoLockServerError as error:
        raise SystemExit(f"redislock: the worker does not start: {error}") from error
    except LockOptionError:
        pass  # each task reports it
    policy = instance.app.conf.get("redislock_check") or "warn"
    if policy == "ignore":
        return
    pool = getattr(getattr(instance, "pool_cls", None), "__module__", "").rpartition(".")[2]
    problems = problems_of_app(instance.app, pool)
    for problem in dict.fromkeys(problems):
        logger.warning("redislock: %s", problem)
    if problems and policy == "error":
        # An Exception would be swallowed by the signal; this one ends the worker.
        raise SystemExit(
            "redislock_check is 'error': the worker does not start with the problems logged above"
        )


def problems_of_app(app: Any, pool: str = "") -> list[str]:
    """Return what would go wrong with an app's tasks, schedule and lock server; ``pool``: of the worker."""
    problems, store, some_wait = problems_of_tasks(app, pool)
    if store is not None:
        problems += problems_of_server(store)
        if some_wait:
            problems += problems_of_waiting(store)
    return problems


def problems_of_tasks(app: Any, pool: str = "") -> tuple[list[str], LockStore | None, bool]:
    """Return what would go wrong with an app's settings, schedule and tasks; ``pool``: of the worker.

    And where its tasks lock, ``None`` if none does, and whether some of them wait in line.
    """
    problems = setting_problems(app)
    if app.conf.beat_schedule:
        problems += problems_of(app, entries_of(app))
    store = None
    some_wait = False
    for task in app.tasks.values():
        if not is_unique(task):
            continue
        try:
            declaration = declaration_of(task)
            if declaration.settings.enabled and declaration.options.scope is not None:
                store = declaration.store
            some_wait = some_wait or waits(declaration.options)
            limit = task.time_limit or app.conf.task_time_limit
            found = risks(declaration.options, declaration.settings, time_limit=limit)
            if declaration.options.on_lock_lost == "terminate" and pool not in _INTERRUPTIBLE_POOLS | {""}:
                found.append(
                    f"on_lock_lost='terminate' cannot interrupt a body in the pool {pool!r}; there only "
                    "self.lease.check() raises LockLost: call it, or use the prefork pool"
                )
            problems += [f"{task.name}: {problem}" for problem in found]
        except LockOptionError as error:
            problems.append(str(error))
    return problems, store, some_wait


def problems_of_server(store: LockStore) -> list[str]:
    """Return what would go wrong on a lock server."""
    try:
        # It changes nothing, and fails where a lock would: on a replica, a Cluster's node, without scripts.
        store.release("message:", NOBODY)
        policy = store.server_says("memory", "maxmemory_policy")
    except RedisLockError as error:
        return [str(error)]
    if policy in {None, "noeviction"}:
        return []
    problem = (
        f"the lock server {store.server} has maxmemory-policy {policy!r}: short of memory it deletes locks "
        "of running tasks; set it to 'noeviction', or give the locks a server of their own with redislock_url"
    )
    return [problem]


def problems_of_waiting(store: LockStore) -> list[str]:
    """Return what would go wrong with messages that wait on a lock server."""
    try:
        is_in_memory = "amqp" in store.home and store.server_says("persistence", "aof_enabled") == "0"
    except RedisLockError:
        return []  # the server's own problem is told
    if not is_in_memory:
        return []
    problem = (
        f"messages that wait for a lock move from RabbitMQ to the lock server {store.server}, which has no "
        "append-only file, and may be lost when it restarts; give it appendonly yes"
    )
    return [problem]

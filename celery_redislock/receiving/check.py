"""What a worker checks when it starts: settings, the schedule, the lock server, the options of each task."""

from typing import Any

from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.options import risks
from celery_redislock.declaring.server import setting_problems
from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.locks.store import LockStore
from celery_redislock.log import logger
from celery_redislock.scheduling.entries import entries_of, problems_of

__all__ = ["check_worker"]

#: The pools whose bodies run in a main thread, where a lost lock can interrupt them.
_INTERRUPTIBLE_POOLS = frozenset({"prefork", "solo"})


def check_worker(instance: Any = None, **_: Any) -> None:
    """Log what would go wrong later; with ``redislock_check="error"`` end the worker.

    ``celeryd_after_setup`` of ``celery worker``: its log is there by now, its pool not yet (5.7.0).
    """
    policy = instance.app.conf.get("redislock_check") or "warn"
    if policy == "ignore":
        return
    problems = _problems(instance)
    for problem in dict.fromkeys(problems):
        logger.warning("redislock: %s", problem)
    if problems and policy == "error":
        # An Exception would be swallowed by the signal; this one ends the worker.
        raise SystemExit(
            "redislock_check is 'error': the worker does not start with the problems logged above"
        )


def _problems(worker: Any) -> list[str]:
    app = worker.app
    problems = setting_problems(app)
    if app.conf.beat_schedule:
        problems += problems_of(app, entries_of(app))
    is_server_known = False
    pool = getattr(getattr(worker, "pool_cls", None), "__module__", "").rpartition(".")[2]
    for task in app.tasks.values():
        if not is_unique(task):
            continue
        try:
            declaration = declaration_of(task)
            if not is_server_known:
                problems += _server_problems(declaration.store)
                is_server_known = True
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
    return problems


def _server_problems(store: LockStore) -> list[str]:
    try:
        policy = store.eviction_policy()
    except RedisLockError as error:
        return [str(error)]
    if policy in {None, "noeviction"}:
        return []
    problem = (
        f"the lock server {store.server} has maxmemory-policy {policy!r}: short of memory it deletes "
        "locks of running tasks; set it to 'noeviction', or give the locks a server of their own "
        "with redislock_url"
    )
    return [problem]

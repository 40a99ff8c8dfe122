"""Signals of Celery: what ends a run or a message without us, and what a worker checks when it starts."""

import sys
from typing import Any

from celery import signals
from celery.states import FAILURE, IGNORED, REJECTED

from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.locks.store import LockStore
from celery_redislock.log import logger
from celery_redislock.scheduling import plug

__all__ = ["install"]

#: The pools whose bodies run in a main thread, where a lost lock can interrupt them.
_INTERRUPTIBLE_POOLS = frozenset({"prefork", "solo"})


def install() -> None:
    """Connect to Celery's signals; repeating it changes nothing."""
    signals.task_postrun.connect(_conclude, weak=False, dispatch_uid="celery_redislock.conclude")
    signals.task_unknown.connect(_release_unwanted, weak=False, dispatch_uid="celery_redislock.unknown")
    signals.task_rejected.connect(_release_unwanted, weak=False, dispatch_uid="celery_redislock.rejected")
    signals.worker_process_shutdown.connect(_last_call, weak=False, dispatch_uid="celery_redislock.last_call")
    signals.worker_init.connect(_prepare_worker, weak=False, dispatch_uid="celery_redislock.prepare")
    plug.connect()
    signals.celeryd_after_setup.connect(_check_worker, weak=False, dispatch_uid="celery_redislock.check")


def _conclude(task: Any = None, state: Any = None, retval: Any = None, **_: Any) -> None:
    """``task_postrun``, in the process of the body: it is sent in (almost) every way a run ends."""
    if not is_unique(task) or (request := task.request_stack.top) is None:
        return
    run = request.__dict__.get("redislock_run", False)
    if run is False:
        # ``before_start`` ended it; retried or requeued, the message brings its claim again.
        if state in {FAILURE, IGNORED, REJECTED} and not request.is_eager and request.id:
            from celery_redislock.running.delivery import release_dropped
            from celery_redislock.running.finish import is_requeued

            if not is_requeued(task, retval):
                headers = {**(request.headers or {}), "id": request.id, "retries": request.retries}
                release_dropped(task.app, headers, request.delivery_info)
        return
    if run is not None and (
        run.can_come_again or run.lease is None or not run.lease.ended or state == FAILURE
    ):
        from celery_redislock.running.finish import conclude

        conclude(run, state)


def _release_unwanted(sender: Any = None, message: Any = None, **_: Any) -> None:
    """``task_unknown``, ``task_rejected``: the message will never run, so its claim is released."""
    from celery_redislock.running.delivery import release_dropped

    release_dropped(sender.app, getattr(message, "headers", None), getattr(message, "delivery_info", None))


def _last_call(**_: Any) -> None:
    """``worker_process_shutdown``, in a pool child: it ends without the interpreter's exit functions."""
    watchdog = sys.modules.get("celery_redislock.locks.watchdog")
    if watchdog is not None:
        watchdog.last_call()


def _prepare_worker(sender: Any = None, **_: Any) -> None:
    """``worker_init``, in the main process before the pool exists."""
    import celery_redislock.publishing.publish
    import celery_redislock.running.unique  # noqa: F401  before the fork, so that pool children share them
    from celery_redislock.receiving.consumer import Unreceived

    sender.app.steps["consumer"].add(Unreceived)
    program = sys.modules.get("celery.apps.worker")
    if program is None or not isinstance(sender, program.Worker):
        _check_worker(sender)  # one in another program, whose log is its own matter


def _check_worker(instance: Any = None, **_: Any) -> None:
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
    from celery_redislock.declaring.options import risks
    from celery_redislock.declaring.server import setting_problems

    app = worker.app
    problems = setting_problems(app)
    if app.conf.beat_schedule:
        from celery_redislock.scheduling.entries import entries_of, problems_of

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

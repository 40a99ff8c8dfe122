"""Hooks into Celery's life cycle: checks when tasks are bound and workers start, last-resort releases."""

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from celery import signals

from celery_redislock.declaring.call_options import from_header
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.options import read_settings, risks
from celery_redislock.declaring.server import setting_problems
from celery_redislock.exceptions import LockOptionError, RedisLockError

__all__ = [
    "as_written",
    "check_when_bound",
    "give_claim_back",
    "install",
    "locks_eagerly",
    "releasing_on_error",
]

logger = logging.getLogger("celery_redislock")

#: Seconds a claim without a task is tried to be given back; the options that would say are not known here.
UNWANTED_TTL = 3600.0


def install() -> None:
    """Connect to Celery's signals; repeating it changes nothing."""
    signals.task_postrun.connect(_settle, weak=False, dispatch_uid="celery_redislock.settle")
    signals.task_unknown.connect(_unwanted, weak=False, dispatch_uid="celery_redislock.unknown")
    signals.task_rejected.connect(_unwanted, weak=False, dispatch_uid="celery_redislock.rejected")
    signals.worker_process_shutdown.connect(_last_call, weak=False, dispatch_uid="celery_redislock.last_call")
    signals.worker_init.connect(_prepare_worker, weak=False, dispatch_uid="celery_redislock.prepare")
    signals.celeryd_after_setup.connect(_check_program, weak=False, dispatch_uid="celery_redislock.check")


def check_when_bound(cls: Any) -> None:
    """Resolve a task class's options once, to raise what is wrong where the task is declared.

    Abstract bases, which have no body or no name yet, are checked with the tasks derived from them.

    Raises:
        LockOptionError: all that is wrong.
    """
    from celery import Task

    if cls.name is None or cls.run is Task.run:
        return
    # Not cls(): a task class may do real work in its __init__, once.
    declaration_of(cls.__new__(cls))


def locks_eagerly(task: Any) -> bool:
    """Whether a direct call takes a lock: ``redislock_eager``."""
    return declaration_of(task).settings.eager


def releasing_on_error(before_start: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a task's ``before_start``: what it raises ends the run before the lock would be entered.

    Celery stores that failure before any later hook of the child runs (5.7.0,
    ``app/trace.py``), so the claim is given back here.
    """

    @functools.wraps(before_start)
    def guarded(self: Any, task_id: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return before_start(self, task_id, args, kwargs)
        except Exception as error:
            _settle_unstarted(self, error)
            raise

    guarded._redislock_wrapped = True  # type: ignore[attr-defined]  # so that it is wrapped once
    return guarded


def as_written(cls: type, name: str) -> Callable[..., Any]:
    """Return a method of a task class, to be called with the task first, whatever kind it was written as.

    A static method gets no task and a class method the class, as Python does it.
    """
    written: Callable[..., Any] = inspect.getattr_static(cls, name)
    if not isinstance(written, staticmethod | classmethod):
        return written

    @functools.wraps(written.__func__)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return written.__get__(self, type(self))(*args, **kwargs)

    return method


def give_claim_back(app: Any, header: Any, *, undo: bool = True) -> None:
    """Give back the claim of a message that will never run; logs what goes wrong.

    Args:
        app: whose settings name the lock server; the task's own options are not asked.
        header: the message's, ``None`` for none.
        undo: its window as well: no copy of it has run.
    """
    from celery_redislock.declaring.server import store_of
    from celery_redislock.guard import Guard

    if header is None or header.key is None or not header.claimed:
        return
    try:
        settings = read_settings("settings", app.conf.get, os.environ)
        if not settings.enabled:
            return
        Guard(store_of(app, settings)).give_back_unrun(header.key, header.token, ttl=UNWANTED_TTL, undo=undo)
    except RedisLockError as problem:
        logger.warning(
            "could not give back the claim on %r, which is left to expire: %s", header.key, problem
        )


def _settle_unstarted(task: Any, error: Exception) -> None:
    from celery.exceptions import Retry

    from celery_redislock.exits import goes_back
    from celery_redislock.header import Header

    request = task.request
    header = Header.of(request.headers, request.id)
    if header is None or header.key is None or request.is_eager:
        return
    if not header.claimed and not header.is_copy and not (request.delivery_info or {}).get("redelivered"):
        return  # a copy may have left a claim when it went back to its queue
    if isinstance(error, Retry) or goes_back(task, error):
        return  # a message that carries this claim is on its way again
    try:
        declaration = declaration_of(task)
        if from_header(declaration.options, header.options).is_window and not header.has_passing_claim:
            return
        declaration.guard.give_back(header.key, header.token, ttl=declaration.options.lock_queue_ttl)
    except RedisLockError as problem:
        logger.warning(
            "could not give back the claim on %r, which is left to expire: %s", header.key, problem
        )


def _unwanted(sender: Any = None, message: Any = None, **_: Any) -> None:
    """``task_unknown``, ``task_rejected``: the message will never run, so its claim goes with it."""
    from celery_redislock.header import Header

    headers = getattr(message, "headers", None) or {}
    give_claim_back(sender.app, Header.of(headers, str(headers.get("id"))))


def _settle(task: Any = None, **_: Any) -> None:
    """``task_postrun``: the one hook of a child that runs in (almost) every way a run ends."""
    from celery_redislock.run import run_of

    run = run_of(task.request_stack.top) if task is not None and hasattr(task, "request_stack") else None
    if run is not None:
        run.settle()


def _last_call(**_: Any) -> None:
    """``worker_process_shutdown``, in a pool child: it ends without the interpreter's exit functions."""
    watchdog = sys.modules.get("celery_redislock.locks.watchdog")
    if watchdog is not None:
        watchdog.last_call()


def _prepare_worker(sender: Any = None, **_: Any) -> None:
    """``worker_init``, in the main process before the pool exists."""
    import celery_redislock.publisher
    import celery_redislock.runner  # noqa: F401  before the fork, so that pool children share them

    program = sys.modules.get("celery.apps.worker")
    if program is None or not isinstance(sender, program.Worker):
        _check_worker(sender.app)  # one in another program, whose log is its own matter


def _check_program(instance: Any = None, **_: Any) -> None:
    """``celeryd_after_setup`` of ``celery worker``: its log is there by now, its pool not yet (5.7.0)."""
    _check_worker(instance.app)


def _check_worker(app: Any) -> None:
    """Say now what would go wrong later."""
    from celery_redislock.task import SingletonTask

    tasks = [task for task in app.tasks.values() if isinstance(task, SingletonTask)]
    policy = app.conf.get("redislock_check") or "warn"
    if policy == "ignore":
        return
    problems = setting_problems(app)
    is_server_known = False
    for task in tasks:
        try:
            declaration = declaration_of(task)
            if not is_server_known:
                problems += _server_problems(declaration)
                is_server_known = True
            limit = task.time_limit or app.conf.task_time_limit
            found = risks(declaration.options, declaration.settings, time_limit=limit)
            problems += [f"{task.name}: {risk}" for risk in found]
        except LockOptionError as error:
            problems.append(str(error))
    for problem in dict.fromkeys(problems):
        logger.warning("redislock: %s", problem)
    if problems and policy == "error":
        # An Exception would be swallowed by the signal; this one ends the worker.
        message = "redislock_check is 'error': the worker does not start with the problems logged above"
        raise SystemExit(message)


def _server_problems(declaration: Any) -> list[str]:
    store = declaration.guard.store
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

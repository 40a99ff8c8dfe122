"""Signals of Celery: what ends a run or a message without us, and what happens when a worker starts."""

import sys
from contextlib import suppress
from typing import Any

from celery import signals
from celery.states import FAILURE, IGNORED, REJECTED

from celery_redislock.declaring.declaration import is_unique
from celery_redislock.log import command
from celery_redislock.scheduling import plug


def install() -> None:
    """Connect to Celery's signals; repeating it changes nothing."""
    signals.task_postrun.connect(_conclude, weak=False, dispatch_uid="celery_redislock.conclude")
    signals.task_unknown.connect(_release_unwanted, weak=False, dispatch_uid="celery_redislock.unknown")
    signals.task_rejected.connect(_release_unwanted, weak=False, dispatch_uid="celery_redislock.rejected")
    signals.worker_process_shutdown.connect(_last_call, weak=False, dispatch_uid="celery_redislock.last_call")
    signals.worker_init.connect(_prepare_worker, weak=False, dispatch_uid="celery_redislock.prepare")
    plug.connect()


def _conclude(task: Any = None, state: Any = None, retval: Any = None, **_: Any) -> None:
    """``task_postrun``, in the process of the body: it is sent in (almost) every way a run ends."""
    if task is None or (request := task.request_stack.top) is None:
        return
    run = request.__dict__.get("redislock_run", False)
    if run is False:
        # ``before_start`` ended it; retried or requeued, the message brings its claim again.
        failed = state in {FAILURE, IGNORED, REJECTED} and not request.is_eager and request.id
        if failed and is_unique(task):
            from celery_redislock.running.finish import is_requeued
            from celery_redislock.running.leavings import release_dropped

            if not is_requeued(task, retval):
                headers = {**(request.headers or {}), "id": request.id, "retries": request.retries}
                release_dropped(task.app, headers, request.delivery_info)
        return
    if run is not None and (run.again or run.lease is None or not run.lease.ended or state == FAILURE):
        from celery_redislock.running.finish import conclude

        conclude(run, state)


def _release_unwanted(sender: Any = None, message: Any = None, **_: Any) -> None:
    """``task_unknown``, ``task_rejected``: the message will never run, so its claim is released."""
    from celery_redislock.running.leavings import release_dropped

    release_dropped(sender.app, getattr(message, "headers", None), getattr(message, "delivery_info", None))


def _last_call(**_: Any) -> None:
    """``worker_process_shutdown``, in a pool child: it ends without the interpreter's exit functions."""
    if (watchdog := sys.modules.get("celery_redislock.locks.watchdog")) is not None:
        watchdog.last_call()
    if (notes := sys.modules.get("celery_redislock.locks.notes")) is not None:
        notes.NOTES.write()


def _prepare_worker(sender: Any = None, **_: Any) -> None:
    """``worker_init``, in the main process before the pool exists."""
    import celery_redislock.publishing.publish
    import celery_redislock.running.unique  # noqa: F401  before the fork, so that pool children share them
    from celery_redislock.declaring.server import settings_of, store_of
    from celery_redislock.exceptions import RedisLockError
    from celery_redislock.publishing import promote
    from celery_redislock.receiving.check import check_worker
    from celery_redislock.receiving.consumer import Unreceived
    from celery_redislock.receiving.in_hand import InHand
    from celery_redislock.receiving.sweep import Sweeping
    from celery_redislock.receiving.whereabouts import may_be_there

    signals.celeryd_after_setup.connect(check_worker, weak=False, dispatch_uid="celery_redislock.check")
    command("")  # what its threads print
    sender.app.steps["consumer"].update((Unreceived, InHand, Sweeping))
    # Before the pool exists: its children publish what they promote, too.
    if any(map(is_unique, sender.app.tasks.values())):
        with suppress(RedisLockError):  # the check at the worker's start tells
            promote.install(sender.app, store_of(sender.app, settings_of(sender.app)), may_be_there)
    program = sys.modules.get("celery.apps.worker")
    if program is None or not isinstance(sender, program.Worker):
        check_worker(sender)  # one in another program, whose log is its own matter

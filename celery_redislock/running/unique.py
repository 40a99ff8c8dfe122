"""The running side of a unique task, from top to bottom: start, body, finish.

All of this runs in the process and thread that runs the body, inside ``Task.__call__``: the one place in a
pool child where the end of a body is seen before what follows is published and its result is stored
(celery 5.7.0, ``app/trace.py``). Where the lock is released with the result, ``running/result.py`` does so
next.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery_redislock.running.duplicate import Answered
from celery_redislock.running.finish import finish
from celery_redislock.running.interrupt import run_interruptible
from celery_redislock.running.life import BEGIN
from celery_redislock.running.run import Run
from celery_redislock.running.start import start


def run_unique(
    task: Any, request: Any, body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Run the body of a task's current request, pushed by Celery's tracer, under its lock, where it has one.

    Raises what the body raised, and what ``Delivery.of`` and ``start`` say.
    """
    run = Run.begin(task, request)
    if run is None:
        return body(*args, **kwargs)
    try:
        start(run)
    except Answered as answered:
        return answered.result
    if run.options.on_lock_lost == "terminate" and run.locks.running is not None:
        if run.lease is not None:
            # A body that is interrupted needs time to end while nobody else has the lock.
            run.lease.limit_trust(1 / 3)
        body = partial(run_interruptible, run, body)
    run.state = BEGIN[run.state]
    try:
        value = body(*args, **kwargs)
    except BaseException as error:
        finish(run, error)
        raise
    finish(run, None)
    return value

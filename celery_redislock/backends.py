"""What a result backend keeps, and for whom."""

from typing import Any

import celery.app.task
from celery.backends.base import DisabledBackend

__all__ = ["ignores_result", "is_readable", "is_result_ignored", "stores_nothing"]

#: Since Celery 5.7 a message may want a result of a task that else ignores it.
_MESSAGE_DECIDES = hasattr(celery.app.task, "get_actual_ignore_result")


def is_readable(backend: Any) -> bool:
    """Whether this process can read others' results: ``rpc://`` keeps them on the caller's queue."""
    return not stores_nothing(backend) and backend.as_uri() != "rpc://"


def stores_nothing(backend: Any) -> bool:
    """Whether the app has no result backend."""
    return isinstance(backend, DisabledBackend)


def ignores_result(task: Any, request: Any) -> bool:
    """Whether nobody stores what a child's request comes to."""
    return is_result_ignored(task, request.__dict__.get("ignore_result"))


def is_result_ignored(task: Any, asked: bool | None) -> bool:
    """Whether nobody stores what a message comes to: as it asks itself, or else as its task does.

    Before Celery 5.7 a task that ignores results does so whatever its message says, which is false by default
    (5.5.0, ``app/trace.py``, ``build_tracer``).
    """
    task_decides = asked is None or (task.ignore_result and not _MESSAGE_DECIDES)
    return bool(task.ignore_result if task_decides else asked)

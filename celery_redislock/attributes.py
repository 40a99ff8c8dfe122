"""What a task class defines: its lock options, and what looks like one or stands in their way."""

import inspect
from typing import Any

from celery_redislock.options import INHERIT, unknown_attributes
from celery_redislock.options.table import TASK_ROWS

__all__ = ["attribute_problems", "attributes_of"]


def attributes_of(task: Any) -> dict[str, Any]:
    """Return its lock options; callables unbound, or they would be called with the task as first argument."""
    found = {}
    for name in TASK_ROWS:
        value = inspect.getattr_static(task, name, INHERIT)
        found[name] = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if found["lock"] is INHERIT and task.name.startswith("celery."):
        # Celery's own tasks (chord_unlock, map, …) get this base class from Celery(task_cls=…).
        found["lock"] = None
    return found


def attribute_problems(task: Any) -> list[str]:
    """Say what is wrong with what the task defines beside its lock options: slips, a foreign ``Request``."""
    return [*unknown_attributes(_own_attributes(task)), *_request_problems(task)]


def _own_attributes(task: Any) -> list[str]:
    from celery_redislock.task import SingletonTask

    return sorted(set(dir(type(task))) - set(dir(SingletonTask)))


def _request_problems(task: Any) -> list[str]:
    if task.Request == "celery_redislock.request:LockRequest":
        return []
    from celery.utils.imports import symbol_by_name

    from celery_redislock.request import LockRequest

    if issubclass(symbol_by_name(task.Request), LockRequest):
        return []
    problem = (
        f"its Request class {task.Request!r} is not a subclass of celery_redislock.request.LockRequest, "
        "so nothing would free the lock of a killed pool child; derive it from that class"
    )
    return [problem]

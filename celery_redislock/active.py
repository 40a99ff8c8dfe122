"""Whose body is on here."""

from celery._state import _task_stack

from celery_redislock.run import Run, run_of

__all__ = ["active_run"]


def active_run(task_id: str) -> Run | None:
    """Return the run of this task id whose body is on in this thread (or greenlet), if there is one."""
    for task in reversed(_task_stack.stack):
        run = run_of(task.request_stack.top)
        if run is not None and run.in_body and run.work.task_id == task_id:
            return run
    return None

"""What Celery is about to do with a message whose run has ended badly, told before it does.

Each of these repeats a decision of ``celery.worker.request.Request.on_failure``
or ``on_timeout`` (celery 5.5.0 to 5.7.0), because a dead child's hold has to be
settled before the outcome is stored or the message published again.
"""

from typing import TYPE_CHECKING

from billiard.exceptions import WorkerLostError
from celery import Task
from celery.worker.request import Request

if TYPE_CHECKING:
    from celery_redislock.request import LockRequest

__all__ = ["LEAVES_EXITS", "is_loss", "will_be_requeued", "will_be_retried"]

#: Since 5.7 Request.on_failure knows the exit of a child, which billiard 4.3 reports before it is gone.
#: Before, it is not always called then, and acknowledges such a message as it does a failed one.
LEAVES_EXITS = hasattr(Request, "_worker_lost_info")


def will_be_requeued(request: "LockRequest", error: BaseException) -> bool:
    """Whether Celery leaves the message to be delivered again (5.7.0, Request.on_failure)."""
    if not request.task.acks_late or request.acknowledged:
        return False
    if is_loss(request, error):
        return bool(request.task.reject_on_worker_lost) and not will_be_retried(request)
    if isinstance(error, SystemExit | KeyboardInterrupt) and not LEAVES_EXITS:
        return False
    return bool(request._already_cancelled)


def is_loss(request: "LockRequest", error: BaseException) -> bool:
    """Whether Celery takes the child for lost: since 5.7 also where it exited by itself."""
    if isinstance(error, SystemExit | KeyboardInterrupt) and LEAVES_EXITS:
        return not (request._already_cancelled or request._already_revoked)
    return isinstance(error, WorkerLostError)


def will_be_retried(request: "LockRequest") -> bool:
    """Whether Celery publishes the task anew for a lost child: ``retry_on_worker_lost``, since 5.7."""
    if not hasattr(Task, "retry_on_worker_lost") or not request.task.retry_on_worker_lost:
        return False  # where Celery does not know the name, a task that sets it fails
    most = request.task.max_retries
    return most is None or request._request_dict.get("retries", 0) < most

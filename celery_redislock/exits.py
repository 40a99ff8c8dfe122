"""What becomes of a message whose run has ended, told in the child before Celery decides it.

It may go back to its queue, and then its next delivery needs its claim. Or the pool child ends with its
run, by ``SystemExit``: in a cold shutdown, and after a lost connection, the main
process ends a child whose message it has not acknowledged: that is delivered
again. Where the run was revoked, or ended its process itself, it is not. Only
the main process knows which, and settles it before it stores an outcome.
Released in the child, the key would be free for whoever comes before the next
delivery.
"""

import os
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject

if TYPE_CHECKING:
    from celery_redislock.run import Run

__all__ = ["comes_again", "goes_back", "settled_by_main_process"]


def comes_again(run: "Run", error: BaseException | None) -> bool:
    """Whether a message whose run ended so may be delivered again; arguments as below."""
    return goes_back(run.task, error) or settled_by_main_process(run, error)


def goes_back(task: Any, error: BaseException | None) -> bool:
    """Whether a message goes back to its queue: acknowledged early, it cannot.

    Args:
        task: the bound task.
        error: what ended its run, ``None`` if it returned.
    """
    return isinstance(error, Reject) and bool(error.requeue) and bool(task.acks_late)


def settled_by_main_process(run: "Run", error: BaseException | None) -> bool:
    """Whether a run whose body ended so leaves its lease to the main process.

    Args:
        run: in this child; its message says whether the main process will hear of its exit.
        error: what ended the body, ``None`` if it returned.
    """
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        return False
    may_come_again = run.task.acks_late or getattr(run.task, "retry_on_worker_lost", False)
    return bool(may_come_again) and run.raw.get("settled_by") not in {None, os.getpid()}

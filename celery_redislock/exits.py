"""A pool child that ends with its run, by ``SystemExit``: who settles what the run holds.

In a cold shutdown, and after a lost connection, the main process ends a child
whose message it has not acknowledged: that is delivered again. Where the run
was revoked, or ended its process itself, it is not. Only the main process knows
which, and settles it before it stores an outcome. Released in the child, the
key would be free for whoever comes before the next delivery.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redislock.run import Run

__all__ = ["settled_by_main_process"]


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

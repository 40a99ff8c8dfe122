"""What is locked for one call, and what its holder tells those who are refused. Knows no Celery."""

import os
import time
from typing import Any, NamedTuple

from celery_redislock.locks.lock import hostname
from celery_redislock.locks.store import Hold

__all__ = ["ACCEPTED", "QUEUED", "RUNNING", "Work", "state_of_holder"]

#: The states a holder writes about itself: its message is on its way, its run is on, or it was accepted
#: and stands for its window, whatever becomes of the run.
QUEUED, RUNNING, ACCEPTED = "queued", "running", "window"


class Work(NamedTuple):
    """What is to be locked, and what the holder tells those who are refused.

    Attributes:
        key: the lock's name.
        task: the task's name.
        task_id: the owner.
        arguments: digest of the task and all its arguments, empty where the key is one itself: who has
            the same key and the same digest does the same work.
        is_ignored: nobody will store what it comes to.
    """

    key: str
    task: str
    task_id: str
    arguments: str
    is_ignored: bool = False

    def __str__(self) -> str:
        """As Celery's own log lines name a task."""
        return f"{self.task}[{self.task_id}]"

    def about(self, state: str, *, message: str | None = None) -> dict[str, Any]:
        """Describe the holder: no argument values, they may be private."""
        about = {
            "task": self.task,
            "id": self.task_id,
            "args": self.arguments,
            "state": state,
            "host": hostname(),
            "pid": os.getpid(),
            "since": round(time.time(), 3),
        }
        if message is not None:
            about["message"] = message
        if self.is_ignored:
            about["ignored"] = True
        return about


def state_of_holder(hold: Hold) -> str | None:
    """Return what a holder does, as it wrote it; a window's is ``ACCEPTED``, another program's ``None``."""
    state = ACCEPTED if hold.is_window else hold.about.get("state")
    return None if state is None else str(state)

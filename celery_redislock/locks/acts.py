"""What operators do: who did it, kept on the lock server for thirty days."""

import json
import os
import time
from typing import Any

from celery_redislock.exceptions import RedisLockError
from celery_redislock.locks.process import hostname
from celery_redislock.log import logger
from celery_redislock.store.store import LockStore


def who() -> dict[str, Any]:
    """Describe who acts, and when: the user of this process, or its number where it has no name."""
    from getpass import getuser  # noqa: PLC0415  imports the terminal's module

    try:
        by = getuser()
    except (KeyError, OSError):  # Python 3.13 raises the latter
        by = f"uid {os.getuid()}"
    return {"by": by, "host": hostname(), "pid": os.getpid(), "since": time.time()}


def note_act(
    store: LockStore, act: str, key: str, outcome: str, reason: str | None = None, **more: str
) -> None:
    """Note what was done, for ``celery redislock history``; one request.

    What was done stays done where the server refuses the note, or does not answer: a WARNING says so.

    Args:
        store: of the lock, or of the schedule.
        act: the command, or its option, in a word.
        key: of the lock, or the name of the schedule's entry.
        outcome: what came of it.
        reason: why, if that was said.
        more: ``by``: who did it, where that is not the user of this process.
    """
    said = {**who(), **more, "act": act, "key": key, "outcome": outcome, "reason": reason}
    try:
        store.acts(json.dumps(said))
    except RedisLockError as error:
        logger.warning("the history of operators' acts lacks the %s of %r: %s", act, key, error)

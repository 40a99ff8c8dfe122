"""What happens to a duplicate: the strategies, and the words they leave behind."""

import logging
import math
import random
import shlex
import time
from collections.abc import Callable
from functools import lru_cache

from celery_redislock.declaring.scopes import Conflict, Side
from celery_redislock.exceptions import DuplicateTask, LockOptionError
from celery_redislock.locks.store import Hold
from celery_redislock.signals import lock_conflict
from celery_redislock.work import ACCEPTED, Work, state_of_holder

__all__ = [
    "Conflict",
    "Side",
    "announce",
    "choose",
    "duplicate_error",
    "jittered",
    "log_skip",
    "put_off_delay",
]

logger = logging.getLogger("celery_redislock")

#: What a callable strategy may answer; other names come with their strategies.
_NAMES = frozenset({"skip", "raise", "retry"})

#: Seconds a duplicate inside a workflow waits for its holder the first time; doubled each time.
FIRST_PUT_OFF = 0.5


def choose(strategy: str | Callable[..., object], conflict: Conflict) -> str:
    """Return the name of the strategy for this duplicate.

    Raises:
        LockOptionError: a callable answered with a name that is no strategy.
    """
    name = strategy if isinstance(strategy, str) else strategy(conflict)
    if not isinstance(name, str) or name not in _NAMES:
        problem = f"the on_conflict callable returned {name!r}; return one of {', '.join(sorted(_NAMES))}"
        raise LockOptionError(conflict.task.name, [problem])
    return name


def announce(conflict: Conflict, hold: Hold, *, what_happens: str) -> None:
    """Send the signal ``lock_conflict``.

    Args:
        conflict: the duplicate.
        hold: of the holder.
        what_happens: ``skip``, ``raise`` or ``retry`` (it comes back later), whatever was chosen.
    """
    if math.isinf(hold.expires_in):
        _warn_of_endless(conflict.key)
    lock_conflict.send(
        sender=conflict.task,
        key=conflict.key,
        task_id=conflict.task_id,
        holder=hold,
        side=conflict.side,
        strategy=what_happens,
    )


def duplicate_error(hold: Hold) -> DuplicateTask:
    """Return the error of strategy ``raise``."""
    return DuplicateTask(hold.name, hold.owner, hold.expires_in, state_of_holder(hold) == ACCEPTED)


def log_skip(work: Work, hold: Hold, *, side: Side) -> None:
    """Write the one line that says why a task did not run."""
    logger.info(
        "skipped %s at %s: %r is held by %s (%s%s; expires %s)",
        work,
        "publish" if side == "client" else "start",
        work.key,
        hold.owner,
        _what(hold),
        _age(hold),
        _end(hold),
        extra={"redislock": {"key": work.key, "task_id": work.task_id, "holder": hold.owner, "side": side}},
    )


def _age(hold: Hold) -> str:
    since = hold.about.get("since")
    if since is None:
        return ""
    age = f"{max(0.0, time.time() - float(since)):.1f} s"
    return f", accepted {age} ago" if state_of_holder(hold) == ACCEPTED else f", for {age}"


def _end(hold: Hold) -> str:
    if math.isinf(hold.expires_in):
        return "never"
    return f"in {hold.expires_in:.1f} s" + ("" if state_of_holder(hold) == ACCEPTED else " unless renewed")


@lru_cache(maxsize=1000)
def _warn_of_endless(key: str) -> None:
    """Once per key and process: cached, so that a second call does nothing."""
    logger.warning(
        "%r is held by another program's lock that never expires, so no task of that key will run until "
        "somebody releases it: celery -A proj redislock release --reason TEXT -- %s; "
        "let that program set a time to live (SET key value NX PX milliseconds)",
        key,
        shlex.quote(key),
    )


def _what(hold: Hold) -> str:
    state = state_of_holder(hold)
    return "its window has not passed" if state == ACCEPTED else state or "a foreign lock"


def put_off_delay(times: int, *, longest: float) -> float:
    """Seconds until a workflow's duplicate looks again: soon at first, then twice as long each time.

    Args:
        times: how often it was put off already.
        longest: ``lock_retry_delay``, never exceeded by more than the jitter.
    """
    return jittered(min(longest, FIRST_PUT_OFF * 2.0 ** min(times, 30)))


def jittered(delay: float) -> float:
    """Spread a delay by a fifth either way, so that many duplicates do not come back at once."""
    return delay * random.uniform(0.8, 1.2)  # noqa: S311  not for secrets

"""A duplicate, on either side: choose its strategy, announce it, describe it in the log."""

import logging
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from celery_redislock.declaring.keys import OF_ALL
from celery_redislock.declaring.scopes import ALIASES, STRATEGIES, Choice, Conflict, Side, Skip
from celery_redislock.exceptions import DuplicateTask, LockOptionError
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.log import command, logger
from celery_redislock.publishing.signals import lock_conflict
from celery_redislock.store.store import ACCEPTED, RATED, Hold

#: What a callable may return: which of many is the newest is nothing that it can tell of one.
CHOSEN = STRATEGIES.keys() - {"coalesce"}


def choose(
    choice: Choice,
    task: Any,
    lock: TaskLock,
    hold: Hold,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    side: Side,
) -> str | Skip:
    """Return the strategy for a duplicate, a publish or a run: its name, or for a run ``Skip``.

    A call under another one's idempotency key is refused, unless a callable decides otherwise.

    Raises:
        LockOptionError: a callable returned what is no strategy.
    """
    if isinstance(choice, str):
        return "raise" if lock.told and is_other_job(lock, hold) else choice
    name = choice(conflict_of(task, lock, hold, args, kwargs, side))
    if isinstance(name, Skip):
        return name if side == "server" else "skip"
    if isinstance(name, str) and name in ALIASES:
        return ALIASES[name]
    if not isinstance(name, str) or name not in CHOSEN:
        known = ", ".join(sorted(CHOSEN))
        problem = f"the on_conflict callable returned {name!r}; return one of {known}, or Skip(result)"
        raise LockOptionError(task.name, [problem])
    return name


def conflict_of(
    task: Any,
    lock: TaskLock,
    hold: Hold,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    side: Side,
) -> Conflict:
    """Return what a task's own callables are given."""
    call = tuple(args or ()), dict(kwargs or {})
    is_other = is_other_job(lock, hold)
    return Conflict(task, *call, lock.owner, lock.key, hold.owner, hold.expires_in, side, is_other)


def announce(task: Any, lock: TaskLock, hold: Hold, side: Side, *, what_happens: str) -> None:
    """Send the signal ``lock_conflict``.

    ``what_happens`` is the strategy that is carried out: ``wait`` where the duplicate waits although another
    one was chosen.
    """
    if hold.expires_in == math.inf:
        _warn_of_endless(lock.key)
    if lock_conflict.receivers:
        lock_conflict.send(
            sender=task, key=lock.key, task_id=lock.owner, holder=hold, side=side, strategy=what_happens
        )


def duplicate_error(lock: TaskLock, hold: Hold) -> DuplicateTask:
    """Return the error of the strategy ``raise``."""
    return DuplicateTask(
        lock.key,
        hold.owner,
        hold.expires_in,
        hold.state == ACCEPTED,
        has_other_arguments=is_other_job(lock, hold),
        is_rate=hold.state == RATED,
    )


def is_other_job(lock: TaskLock, hold: Hold) -> bool:
    """Whether the key is an idempotency key, and its holder was called with other arguments."""
    return len(lock.args) == OF_ALL and lock.tells_otherwise(hold)


def why_held(hold: Hold) -> str:
    """Tell in a line of the log what keeps a run from its key."""
    if hold.state == RATED:
        return f"{hold.name!r} has had the starts of its lock_rate; a place opens in {hold.expires_in:.1f} s"
    return f"{hold.name!r} is held by {hold.owner}"


def explain(key: str) -> str:
    """Return the command that tells why what needs this key does not run."""
    return command(f"redislock explain {shlex.quote(key)}")


def log_wait(lock: TaskLock, why: str, *, was_told: bool) -> None:
    """Write the line that says why a message waits: once for each message at INFO, and then at DEBUG."""
    level = logging.DEBUG if was_told else logging.INFO
    logger.log(level, "%s waits: %s: %s", lock, why, explain(lock.key))


def log_merge(lock: TaskLock, owner: str, merged: int) -> None:
    """Write that a call has taken the place of this one: the first of many at INFO, the others at DEBUG."""
    level = logging.DEBUG if merged > 1 else logging.INFO
    line = "%s is merged into %s, which waits and runs with its arguments: %s"
    logger.log(level, line, lock, owner, explain(lock.key))


def log_skip(lock: TaskLock, hold: Hold, *, side: Side) -> None:
    """Write the one line that says why a task did not run."""
    if not logger.isEnabledFor(logging.INFO):
        return
    is_period = hold.state in _OF_TIME
    age = ""
    end = "never"
    if hold.since is not None:
        age = f"{max(0.0, time.time() - hold.since):.1f} s"
        age = f", accepted {age} ago" if is_period else f", for {age}"
    if math.isfinite(hold.expires_in):
        end = f"in {hold.expires_in:.1f} s" + ("" if is_period else " unless renewed")
    logger.info(
        "skipped %s at %s: %r is held by %s (%s%s; expires %s)%s: %s",
        lock,
        "publish" if side == "client" else "start",
        lock.key,
        hold.owner,
        _OF_TIME.get(hold.state or "", hold.state or "a foreign lock"),
        age,
        end,
        _OTHER_ARGUMENTS if lock.told and lock.tells_otherwise(hold) else "",
        explain(lock.key),
        extra={"redislock": {"key": lock.key, "task_id": lock.owner, "holder": hold.owner, "side": side}},
    )


#: What nobody renews, by its state.
_OF_TIME = {ACCEPTED: "its period has not passed", RATED: "its rate has had its starts"}

#: In the line of a skip whose key leaves arguments out.
_OTHER_ARGUMENTS = (
    ", which was called with other arguments that lock_key leaves out "
    "(to run both, one after the other, add lock='while_executing')"
)


@lru_cache(maxsize=1000)
def _warn_of_endless(key: str) -> None:
    """Warn once per key and process: cached, so that a second call does nothing."""
    logger.warning(
        "%r is held by another program's lock that never expires, so no task of that key will run until "
        "somebody releases it: %s; let that program set a time to live (SET key value NX PX milliseconds)",
        key,
        command(f"redislock release --reason TEXT -- {shlex.quote(key)}"),
    )

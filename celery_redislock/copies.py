"""Second copies of a message: has its outcome been recorded, and by whom.

A lock is free before its run's outcome is recorded (that is what lets the
next link of a chain start). So whoever finds a free lock with a copy of a
message in hand looks for that outcome: in the result backend, or, where
results are ignored or cannot be read by others, in a done mark.
"""

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import states
from celery.utils.time import maybe_iso8601

from celery_redislock.backends import ignores_result, is_readable, stores_nothing
from celery_redislock.delay import is_broadcast
from celery_redislock.exceptions import LockLost, LockUnavailable
from celery_redislock.header import Header
from celery_redislock.locks.store import DoneMark, Hold
from celery_redislock.redeliver import visibility_timeout

if TYPE_CHECKING:
    from celery_redislock.run import Run

__all__ = [
    "DUPLICATE_OF",
    "UNPUBLISHED",
    "DoneNote",
    "Outcome",
    "is_identified",
    "is_overdue",
    "is_revoked",
    "is_same_message",
    "may_still_come",
    "outcome_of",
    "outcome_recorded",
    "record_may_follow",
    "state_of",
    "timeout_requeues",
]

#: A holder that was killed, or kept from its work by its lock, came to nothing; whoever waited for it does
#: the work itself.
_KILLED = (WorkerLostError, TimeLimitExceeded, Terminated, LockLost, LockUnavailable)

#: Begins the reason under which a skipped duplicate is revoked.
DUPLICATE_OF = "duplicate of"

#: Ends the reason under which a task id is revoked because its publish was refused.
UNPUBLISHED = ", and so not published"

#: Seconds a done mark outlives the visibility timeout. That one begins when a message is received; then
#: kombu looks only every 100 s for what has to be delivered again (5.7.0, transport/redis.py), and what is
#: may wait in its queue behind others.
MARK_MARGIN = 3600.0

#: Seconds two hosts' clocks may differ before an outcome is taken for that of an earlier job of the same id.
CLOCK_TOLERANCE = 2.0


class Outcome(NamedTuple):
    """Another run's recorded outcome."""

    result: Any
    succeeded: bool

    def value(self) -> Any:
        """Return what that run returned, or raise what it raised."""
        if not self.succeeded:
            raise self.result
        return self.result


class DoneNote(NamedTuple):
    """A done mark to write when a run ends.

    Attributes:
        mark: what is written.
        is_late: links, errbacks, a chain or a chord follow, or a result is sent that only its caller can
            read: written when those are on their way, not before.
    """

    mark: DoneMark
    is_late: bool

    @classmethod
    def needed(cls, run: "Run") -> "DoneNote | None":
        """Return the note this run must leave: only where a copy can come and no result would tell it."""
        # The outcome of a retry is not told by its date where that of the run it retries was stored as well.
        tells = _tells(run.task, run.request) and not _is_ahead(run)
        if tells or not _may_have_copies(run):
            return None
        request = run.request
        follows = bool(request.callbacks or request.errbacks or request.chain or request.chord)
        is_sent = not ignores_result(run.task, request) and not stores_nothing(run.task.backend)
        ttl = visibility_timeout(run.task.app) + MARK_MARGIN
        return cls(DoneMark(run.message, ttl), follows or is_sent)


def record_may_follow(run: "Run") -> bool:
    """Whether a run of this message may live that has given its lock back and records its outcome next."""
    note = DoneNote.needed(run)
    return note.is_late if note is not None else _may_have_copies(run) and _tells(run.task, run.request)


def outcome_recorded(task: Any, request: Any, header: Header | None) -> bool:
    """Whether an earlier copy of this very message has its outcome in the result backend.

    An outcome from before the message was published belongs to an earlier job
    of the same id; the hard limit's failure, where the message goes back for
    it, is none. A backend that cannot be asked says nothing: the task runs
    (at least once).
    """
    if not _tells(task, request):
        return False
    meta = _meta(task, request.id)
    if meta is None or meta.get("status") not in states.READY_STATES:
        return False
    if isinstance(meta.get("result"), TimeLimitExceeded) and timeout_requeues(task):
        return False
    return header is None or _is_since(meta, header.published_at)


def timeout_requeues(task: Any) -> bool:
    """Whether Celery leaves a message whose run met its hard limit to be delivered again.

    It records that run's failure all the same, and first (5.5.0 to 5.7.0, ``Request.on_timeout``).
    """
    acks = getattr(task, "acks_on_timeout", None)  # since 5.7 beside the older one
    acks = task.acks_on_failure_or_timeout if acks is None else acks
    return bool(task.acks_late) and not acks


def outcome_of(task: Any, task_id: str, *, since: float) -> Outcome | None:
    """Return what another task id of the same work came to, if it can be taken over.

    Args:
        task: whose result backend is asked.
        task_id: the holder's.
        since: seconds since the epoch: when the duplicate was published. The holder was on its way or at work
            later than that, so an outcome from before belongs to an earlier job of its id.
    """
    if not is_readable(task.backend):
        return None
    meta = _meta(task, task_id)
    if meta is None or not _is_since(meta, since):
        return None
    if meta.get("status") == states.SUCCESS:
        return Outcome(meta.get("result"), succeeded=True)
    error = meta.get("result")
    if meta.get("status") == states.FAILURE and isinstance(error, BaseException):
        return None if isinstance(error, _KILLED) else Outcome(error, succeeded=False)
    return None


def may_still_come(task: Any, task_id: str, *, since: float) -> bool:
    """Whether a holder that has given its lock back may yet record its outcome; arguments as above."""
    if task.ignore_result or not is_readable(task.backend):
        return False
    meta = _meta(task, task_id)
    return meta is not None and (meta.get("status") not in states.READY_STATES or not _is_since(meta, since))


def is_revoked(task: Any, task_id: str, *, since: float) -> bool:
    """Whether a task id was revoked since then, and not skipped as a duplicate, which is the same state."""
    meta = _meta(task, task_id) if is_readable(task.backend) else None
    if meta is None or meta.get("status") != states.REVOKED or not _is_since(meta, since):
        return False
    return not str(meta.get("result")).startswith(DUPLICATE_OF)


def state_of(task: Any, task_id: str) -> str | None:
    """Return the state recorded for a task id, PENDING for an unknown one; ``None``: it cannot be asked."""
    meta = _meta(task, task_id)
    return None if meta is None else str(meta.get("status"))


def is_identified(run: "Run") -> bool:
    """Whether a message can be told from another of its task id, which is a new job.

    By its header; without one by coming again. Put off since, such a message has a header with its task id.
    """
    return run.message != run.work.task_id or run.is_redelivered


def is_same_message(run: "Run", hold: Hold) -> bool:
    """Whether a hold of a message's own task id, or a window, is that of this very message."""
    return is_identified(run) and hold.about.get("message", hold.owner) == run.message


def is_overdue(run: "Run") -> bool:
    """Whether a message is so old that it may have waited for its ETA in more workers than one."""
    published_at = run.header.published_at if run.header is not None else 0.0
    return 0 < published_at < time.time() - visibility_timeout(run.task.app)


def _may_have_copies(run: "Run") -> bool:
    if run.task.acks_late or run.may_have_run or is_overdue(run):
        return True
    return is_broadcast(run.task.app, run.raw)  # every worker has one


def _meta(task: Any, task_id: str) -> dict[str, Any] | None:
    try:
        meta: dict[str, Any] = task.backend.get_task_meta(task_id, cache=False)
    except Exception:  # noqa: BLE001  every backend has errors of its own, and each means: unknown
        return None
    if meta.get("status") == states.REVOKED and str(meta.get("result")).endswith(UNPUBLISHED):
        # Of a call that used the id of another: a job of that id may be on its way all the same.
        return {**meta, "status": states.PENDING}
    return meta


def _is_since(meta: dict[str, Any], when: float) -> bool:
    ended = _timestamp(meta.get("date_done"))
    return ended is None or ended >= when - CLOCK_TOLERANCE


def _is_ahead(run: "Run") -> bool:
    """Whether a message is dated so late that an outcome recorded now would not count as its own."""
    return run.header is not None and time.time() < run.header.published_at - CLOCK_TOLERANCE


def _tells(task: Any, request: Any) -> bool:
    return not ignores_result(task, request) and is_readable(task.backend)


def _timestamp(date: Any) -> float | None:
    if isinstance(date, str):
        try:
            date = maybe_iso8601(date)
        except ValueError:
            return None
    if not isinstance(date, datetime):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()

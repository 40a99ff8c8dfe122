"""How a run enters its lock: claim to lease, or a fresh one, or why it must not run now."""

import logging

from celery_redislock.conflict import put_off_delay
from celery_redislock.copies import (
    Outcome,
    is_identified,
    is_overdue,
    is_same_message,
    may_still_come,
    outcome_of,
    outcome_recorded,
    record_may_follow,
)
from celery_redislock.duplicates import late_copy, resolve
from celery_redislock.guard import Started
from celery_redislock.header import Header, HolderSeen
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.store import Hold, Recorded, Refusal
from celery_redislock.outage import ask_patiently
from celery_redislock.redeliver import put_off
from celery_redislock.revoked import make_way
from celery_redislock.run import Run
from celery_redislock.signals import lock_acquired
from celery_redislock.work import QUEUED

__all__ = ["enter", "holders_outcome"]

logger = logging.getLogger("celery_redislock")


def holders_outcome(run: Run) -> Outcome | None:
    """Return the outcome of the holder a workflow's duplicate was put off for, if it did the same work."""
    if run.header is None or run.header.waits_for is None or not run.header.waits_for.is_same_work:
        return None
    if run.request.is_eager:
        return None  # Celery warns whoever reads stored results in eager mode
    seen = run.header.waits_for
    outcome = outcome_of(run.task, seen.task_id, since=run.header.published_at)
    if outcome is not None:
        if run.may_have_run and outcome_recorded(run.task, run.request, run.header):
            raise late_copy(run)
        run.request.redislock_skipped = True
        logger.info("%s takes the outcome of %s, which did the same work", run.work, seen.task_id)
    return outcome


def enter(run: Run) -> Outcome | None:
    """Turn the claim into a lease, or acquire; raises what ends the message where neither is possible.

    Returns:
        ``None``: the body is to run. Otherwise the holder's outcome, recorded since it was looked for, and
        the lock has been given back.
    """
    _wait_for_outcome(run)
    with run.guard.owing(run.work.key, run.token, ttl=run.options.lock_ttl, undo=True):
        answer = _ask(run)
        if isinstance(answer, Started):
            run.lease = answer.lease
    if answer is None:
        run.guard.give_back_later(run.work.key, run.token, ttl=run.options.lock_ttl)
    match answer:
        case Started(lease, from_claim):
            return _begin(run, lease, from_claim=from_claim)
        case Recorded():
            raise late_copy(run)
        case Refusal(hold):
            resolve(run, hold)
    return None


def _wait_for_outcome(run: Run) -> None:
    """Put a run off once more where the holder it waited for may be between its release and its record.

    Timeline: the holder releases; this message is delivered, finds no outcome and a free lock; the
    holder's result is stored. Without another look the same work would be done twice. The holder is the
    first copy of this very message, or that of a workflow's duplicate. The lock is not taken for that
    look: another duplicate, refused meanwhile, would wait for an outcome that this one does not have.
    """
    if run.header is None or run.request.is_eager or not _may_be_recorded_next(run, run.header):
        return  # in place nobody would deliver it again
    hold = ask_patiently(run, lambda: run.guard.store.inspect(run.work.key, to_decide=True))
    if hold is None and run.header.is_copy and outcome_recorded(run.task, run.request, run.header):
        raise late_copy(run)
    if hold is None:
        raise _look_again(run, run.header)
    if hold.owner != run.work.task_id:
        resolve(run, hold)


def _may_be_recorded_next(run: Run, header: Header) -> bool:
    if _has_looked(header):
        return False
    if header.is_copy:
        return record_may_follow(run)
    seen = header.waits_for
    if seen is None or not seen.is_same_work:
        return False
    return may_still_come(run.task, seen.task_id, since=header.published_at)


def _has_looked(header: Header) -> bool:
    return header.waits_for is not None and header.waits_for.is_gone


def _look_again(run: Run, header: Header) -> Exception:
    logger.info(
        "%s looks again: %r is free, but an outcome that it has to know may be on its way",
        run.work,
        run.work.key,
    )
    seen = header.waits_for or HolderSeen(run.work.task_id, is_same_work=False)
    again = header.put_off_for(seen._replace(is_gone=True))
    return put_off(run, put_off_delay(0, longest=run.options.lock_retry_delay), header=again)


def _ask(run: Run) -> Started | Refusal | Recorded | None:
    claim = run.header.token if run.header is not None else None
    answer = ask_patiently(run, lambda: _start(run, claim))
    if not isinstance(answer, Refusal):
        return answer
    hold = answer.hold
    if _is_own_claim(run, hold):
        return ask_patiently(run, lambda: _start(run, hold.token))
    if _is_own_window(run, hold):
        return ask_patiently(run, lambda: _start(run, claim, is_accepted=True))
    if make_way(run.guard, run.task, hold, ttl=run.options.lock_queue_ttl):
        # With an ETA its claim is renewed by the worker that has it, and dropped when that has come.
        return ask_patiently(run, lambda: _start(run, claim))
    return answer


def _start(run: Run, claim: str | None, *, is_accepted: bool = False) -> Started | Refusal | Recorded:
    return run.guard.start(
        run.work,
        run.token,
        ttl=run.options.lock_ttl,
        message=run.message if is_identified(run) else None,
        claim=claim,
        max_hold=_max_hold(run),
        period=None if is_accepted or run.has_claim else run.options.lock_period,
        on_lost=run.announce_loss,
    )


def _is_own_claim(run: Run, hold: Hold) -> bool:
    """Whether a message without a header meets a claim of its own id.

    Its publisher's, or the one its timed out run left for it.
    """
    is_bare = run.message == run.work.task_id
    return is_bare and hold.about.get("state") == QUEUED and hold.owner == run.work.task_id


def _is_own_window(run: Run, hold: Hold) -> bool:
    """Whether this very message, or the one it is a retry of, was accepted when that window began."""
    is_own = hold.is_window and hold.owner == run.work.task_id
    return is_own and (bool(run.request.retries) or is_same_message(run, hold))


def _begin(run: Run, lease: Lease, *, from_claim: bool | None) -> Outcome | None:
    """The lock is ours. If it was free (or may have been) where a claim should have been, find out why."""
    may_be_copy = run.is_redelivered or is_overdue(run)
    if not from_claim and (run.has_claim or run.may_have_run or may_be_copy):
        if outcome_recorded(run.task, run.request, run.header):
            run.leave()
            raise late_copy(run)
        if may_be_copy and run.header is not None and not _has_looked(run.header) and record_may_follow(run):
            # Two workers that kept it for the same ETA start in the same instant; a short body then
            # leaves the second between the first one's release and its record.
            run.leave()
            raise _look_again(run, run.header)
        if run.has_claim and from_claim is False and not run.is_redelivered:
            logger.warning(
                "the claim of %s on %r was gone when it started: it had expired while queued "
                "(raise lock_queue_ttl), or was released by force",
                run.work,
                run.work.key,
            )
    # What was looked for before the lock was, may have been recorded since.
    outcome = holders_outcome(run)
    if outcome is not None:
        run.leave()
        return outcome
    lock_acquired.send(sender=run.task, key=run.work.key, task_id=run.work.task_id, lease=lease)
    return None


def _max_hold(run: Run) -> float | None:
    limit = (run.request.timelimit or (None, None))[0] or run.task.time_limit
    return run.options.max_hold(limit)

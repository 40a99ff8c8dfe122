"""The scopes that hold nothing while they run: what their worker decides before the body."""

from celery_redislock.duplicates import is_awaited, resolve
from celery_redislock.locks.store import Grant, Hold, Recorded, Refusal
from celery_redislock.outage import ask_patiently
from celery_redislock.revoked import make_way
from celery_redislock.run import Run
from celery_redislock.work import ACCEPTED, QUEUED

__all__ = ["accept", "leave_queue"]


def leave_queue(run: Run) -> None:
    """Scope ``until_executing``: give the claim back; a message that has none yields to a queued one.

    Not where it is part of a workflow, or was accepted before: these run.
    """
    header = run.header
    if run.has_claim:
        _give_claim_back(run)
        return
    if header is not None and (run.request.retries or is_awaited(run)):
        return
    hold = _queued_before(run)
    if hold is not None and make_way(run.guard, run.task, hold, ttl=run.options.lock_queue_ttl):
        hold = _queued_before(run)
    if hold is None:
        return
    # A claim of its own token: its publisher was never told of it.
    is_own = hold.is_window or header is None or hold.token == header.token
    if hold.owner == run.work.task_id and is_own:
        run.guard.give_back(run.work.key, hold.token, ttl=run.options.lock_queue_ttl)
    else:
        resolve(run, hold)


def _give_claim_back(run: Run) -> None:
    token, ttl = run.message, run.options.lock_queue_ttl
    with run.guard.owing(run.work.key, token, ttl=ttl):
        run.guard.give_back(run.work.key, token, ttl=ttl)


def _queued_before(run: Run) -> Hold | None:
    """Return what stands in the way; where nothing does and there is a window to begin, begin it."""
    hold = ask_patiently(run, lambda: run.guard.store.inspect(run.work.key, to_decide=True))
    if hold is not None or run.options.lock_period is None:
        return hold
    ttl = run.options.lock_ttl
    with run.guard.owing(run.work.key, run.token, ttl=ttl):
        answer = _accept(run, ttl=ttl, period=run.options.lock_period, state=QUEUED)
        if isinstance(answer, Refusal):
            return answer.hold
        run.guard.give_back(run.work.key, run.token, ttl=ttl)
    return None


def accept(run: Run) -> None:
    """Scope ``until_expired``: what was accepted at publish runs, the rest is decided here."""
    if run.header is not None and run.header.has_passing_claim:
        _give_claim_back(run)  # of another scope, which the task had when its message was published
    elif run.has_claim or run.request.retries:
        return
    answer = _accept(run, ttl=run.options.lock_period or 0.0, period=None, state=ACCEPTED)
    if isinstance(answer, Refusal) and answer.hold.owner != run.work.task_id:
        resolve(run, answer.hold)


def _accept(run: Run, *, ttl: float, period: float | None, state: str) -> Grant | Refusal | Recorded | None:
    """Claim what the publisher did not; ``None`` without an answer, and then it is given back later."""
    with run.guard.owing(run.work.key, run.token, ttl=ttl, undo=True):
        answer = ask_patiently(
            run, lambda: run.guard.claim(run.work, run.token, ttl=ttl, period=period, state=state)
        )
    if answer is None:
        run.guard.give_back_later(run.work.key, run.token, ttl=ttl, undo=True)
    return answer

"""The scopes that hold nothing while they run: what their worker decides before the body."""

from celery_redislock.duplicates import resolve
from celery_redislock.locks.store import Refusal
from celery_redislock.outage import ask_patiently
from celery_redislock.run import Run
from celery_redislock.work import ACCEPTED

__all__ = ["accept", "leave_queue"]


def leave_queue(run: Run) -> None:
    """Scope ``until_executing``: give the claim back; a message without a header yields to a queued one."""
    if run.header is not None:
        if run.has_claim:
            run.guard.give_back(run.work.key, run.header.token, ttl=run.options.lock_queue_ttl)
        return
    hold = ask_patiently(run, lambda: run.guard.store.inspect(run.work.key))
    if hold is None:
        return
    if hold.owner == run.work.task_id:
        run.guard.give_back(run.work.key, hold.token, ttl=run.options.lock_queue_ttl)
    else:
        resolve(run, hold)


def accept(run: Run) -> None:
    """Scope ``until_expired``: what was accepted at publish runs, the rest is decided here."""
    if run.has_claim or run.request.retries:
        return
    period = run.options.lock_period or 0.0
    with run.guard.owing(run.work.key, run.token, ttl=period, undo=True):
        answer = ask_patiently(run, lambda: run.guard.claim(run.work, run.token, ttl=period, state=ACCEPTED))
    if answer is None:
        run.guard.give_back_later(run.work.key, run.token, ttl=period, undo=True)
    if isinstance(answer, Refusal) and answer.hold.owner != run.work.task_id:
        resolve(run, answer.hold)

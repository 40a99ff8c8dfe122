"""What the worker does with a run that was refused its lock: a function per strategy."""

import time
from collections.abc import Callable, Mapping
from math import inf

from celery.exceptions import Ignore

from celery_redislock.declaring.scopes import WAITING, Skip
from celery_redislock.exceptions import LockBusy
from celery_redislock.log import logger
from celery_redislock.publishing.conflict import (
    announce,
    choose,
    conflict_of,
    duplicate_error,
    explain,
    log_skip,
)
from celery_redislock.publishing.results import DUPLICATE_OF
from celery_redislock.running.life import GIVE_UP
from celery_redislock.running.redelivery import wait_for
from celery_redislock.running.run import Run
from celery_redislock.store.store import ACCEPTED, QUEUED, RATED, Hold, owner_of

#: Seconds within which the publish that a claim stands for may still fail, its retries included.
PUBLISHING = 60.0


class Skipped(Ignore):  # type: ignore[misc]  # celery-types has it untyped
    """Ends a run that is a duplicate."""


class Answered(Skipped):
    """Ends one as a success, with this result."""

    def __init__(self, why: str, result: object) -> None:
        super().__init__(why)
        self.result = result


def at_start(run: Run, hold: Hold) -> Exception:
    """Return what ends a run that was refused: skipped, put into the line, or failed.

    A second copy of a message whose first run lives is no duplicate: it waits under every strategy. So
    does everything that was accepted, retried, or is part of a workflow: only a fresh publish may be
    dropped or failed, and only where somebody stands for it. A claim alone does not, as long as its own
    publish may fail. And nothing is dropped for an operator.
    """
    waited = run.waited_in_vain
    # A rate that a retry has used up by its own start keeps it out as any other would.
    is_own = hold.owner == run.lock.owner and (waited is None or hold.state != RATED)
    if is_own and not run.request.is_eager:
        # Another message of the same id is a new job, not a copy, and runs when the first one has ended.
        return wait_for(run, hold)
    task = run.task
    lock = run.lock
    request = run.request
    if waited is not None:
        run.state = GIVE_UP[run.state]
        return LockBusy(lock.key, hold.owner, hold.expires_in, waited)
    may_wait = run.must_wait or hold.is_operators or may_not_be_published(hold)
    if may_wait and not run.request.is_eager:
        announce(task, lock, hold, "server", what_happens="wait")
        return wait_for(run, hold)
    choice = "raise" if hold.is_operators else run.options.server or "skip"
    chosen = choose(choice, task, lock, hold, request.args, request.kwargs, "server")
    strategy = "skip" if isinstance(chosen, Skip) else chosen
    if run.request.is_eager and strategy != "skip":
        # Nobody would deliver it again, and waiting would block the caller on its own thread.
        strategy = "raise"
    announce(task, lock, hold, "server", what_happens=strategy)
    if isinstance(chosen, Skip) and not run.is_in_workflow:  # in place, where nothing can wait
        return _answered(run, hold, chosen.result)
    return STRATEGIES[strategy](run, hold)


def may_not_be_published(hold: Hold) -> bool:
    """Whether a hold is a publisher's claim, and so young that its publish may fail."""
    is_claim = hold.state in {QUEUED, ACCEPTED} and not hold.is_period
    if not is_claim or "published" in hold.facts or hold.message != hold.token:
        return False  # a worker's, which has the message, or has seen it published
    # Another program's does not say since when.
    age = inf if hold.since is None else time.time() - hold.since
    return age < (PUBLISHING if hold.state == QUEUED else min(PUBLISHING, (age + hold.expires_in) / 2))


def skip(run: Run, hold: Hold) -> Exception:
    """End the run with ``lock_skip_result``, or without one in a ready state that names the holder."""
    request = run.request
    result = run.options.lock_skip_result
    if result is not None and not run.is_in_workflow:
        try:
            if callable(result):
                task = run.task
                result = result(conflict_of(task, run.lock, hold, request.args, request.kwargs, "server"))
        except Exception as error:  # noqa: BLE001  a task's own; the call is a duplicate all the same
            logger.warning(
                "%s: its lock_skip_result raised %r, so it is skipped without a result: mend that callable",
                run.lock,
                error,
            )
        else:
            return _answered(run, hold, result)
    log_skip(run.lock, hold, side="server")
    return _end_unrun(run, hold.owner)


def yield_to(run: Run, newer: str) -> Exception:
    """End a run because this message's call was made later, and has started or will."""
    owner = owner_of(newer)
    line = "skipped %s at start: %s was called later, and its arguments count: %s"
    logger.info(line, run.lock, owner, explain(run.lock.key))
    return _end_unrun(run, owner)


def _end_unrun(run: Run, owner: str) -> Exception:
    request = run.request
    why = f"{DUPLICATE_OF} {owner}"
    request.redislock_skipped = True
    if not request.is_eager:
        run.task.backend.mark_as_revoked(
            str(request.id), why, request=request, store_result=not run.lock.is_ignored
        )
    return Skipped(why)


def _answered(run: Run, hold: Hold, result: object) -> Exception:
    log_skip(run.lock, hold, side="server")
    return Answered(f"{DUPLICATE_OF} {hold.owner}", result)


#: What each conflict strategy does on the worker.
STRATEGIES: Mapping[str, Callable[[Run, Hold], Exception]] = {
    "skip": skip,
    "raise": lambda run, hold: duplicate_error(run.lock, hold),
    **dict.fromkeys(WAITING, wait_for),
}

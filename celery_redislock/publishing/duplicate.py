"""Decide about a call whose key is held when it is published: a function per strategy."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from celery_redislock.declaring.scopes import NO_TURN, WAITING
from celery_redislock.exceptions import LockOptionError
from celery_redislock.log import logger
from celery_redislock.publishing.call import Call, runs_in_this_thread
from celery_redislock.publishing.conflict import announce, choose, duplicate_error, log_merge, log_skip
from celery_redislock.publishing.results import DUPLICATE_OF, RUN_AS, LockEagerResult, LockResult, end_unrun
from celery_redislock.store.store import Hold


def at_publish(call: Call, hold: Hold) -> Any:
    """Skip the call, publish it without a claim, or raise, as the strategy says.

    Returns Celery's result; for a skipped duplicate the holder's, or, in eager mode and where another program
    holds the lock, one that is revoked, under the holder's id.
    """
    task = call.task
    lock = call.lock
    if hold.is_operators and call.lock_options.client not in WAITING:
        if call.is_eager:
            announce(task, lock, hold, "client", what_happens="raise")
            refuse(call, hold)
        # Nothing is dropped for an operator, also where the hold has ended before a worker has the message.
        call.must_run = True
    if call.must_run:
        if not call.is_eager:  # there the run follows at once, and announces it
            announce(task, lock, hold, "client", what_happens="wait")
        return call.noted(call.send(claimed=False))
    strategy: Any = choose(
        call.lock_options.client or "skip", task, lock, hold, call.args, call.kwargs, "client"
    )
    if strategy in WAITING:
        if not call.scope.may_wait:
            problem = (
                f"the on_conflict callable returned 'wait' at publish, {NO_TURN.format(call.scope.name)}"
            )
            raise LockOptionError(task.name, [problem])
        strategy = "raise" if call.is_eager else strategy  # nothing could run it later
    announce(task, lock, hold, "client", what_happens=strategy)
    return STRATEGIES[strategy](call, hold)


def skip(call: Call, hold: Hold) -> Any:
    """Publish nothing; return the holder's result."""
    task = call.task
    lock = call.lock
    owner = hold.owner
    log_skip(lock, hold, side="client")
    if any(run.in_body and run.lock.owner == owner for run in runs_in_this_thread()):
        logger.warning(
            "%s published itself from inside its own run %s and was skipped as a duplicate of it; "
            "to queue another run from inside the task, declare it with lock='until_executing' (one may be "
            "queued), or 'while_executing' (any number): docs/troubleshooting.md",
            lock.task,
            owner,
        )
    # Nobody waits for the id of a tick.
    if (
        call.has_fixed_id
        and not call.is_tick
        and call.task_id != owner
        and not call.is_eager
        and not call.lock.is_ignored
    ):
        end_unrun(call.task, call.task_id, f"{DUPLICATE_OF} {owner}, and so not published")
    if call.is_eager or not (b'"task":"' in hold.text or hold.facts.get("task")):
        # There is no result of the holder's to wait for: it ran in place, or is no task (a Lock of this
        # package's, another program's lock).
        return LockEagerResult.duplicate(owner, lock.task, f"{DUPLICATE_OF} {owner}")
    # Where results are ignored, get() returns at once instead of waiting for what nobody stores. The holder
    # may do so although this call does not: by its own call, or as another task with the same key.
    return LockResult.of_holder(
        hold, owner, task, ignored=call.lock.is_ignored or b'"ignored":true' in hold.text
    )


def refuse(call: Call, hold: Hold) -> NoReturn:
    """Raise ``DuplicateTask``."""
    raise duplicate_error(call.lock, hold)


#: What each conflict strategy does at publish. Published without a claim, a run waits for the lock, or the
#: worker decides about it. "wait" comes here from callables, and where the broker is another server than that
#: of the locks: elsewhere the message was parked with its refusal (:meth:`Claim.push`).
STRATEGIES: Mapping[str, Callable[[Call, Hold], Any]] = {
    "skip": skip,
    "raise": refuse,
    **dict.fromkeys(WAITING, lambda call, _hold: call.noted(call.send(claimed=False))),
}


def merge(call: Call, waiting: Hold, merged: int) -> LockResult:
    """Return the result of a call whose arguments have taken the place of those of this one, which waits.

    ``merged``: how many calls have taken that place since it began to wait.
    """
    owner = waiting.owner
    announce(call.task, call.lock, waiting, "client", what_happens="coalesce")
    log_merge(call.lock, owner, merged)
    call.forget_result()
    if call.has_fixed_id and not call.is_tick and call.task_id != owner and not call.lock.is_ignored:
        end_unrun(call.task, call.task_id, f"{RUN_AS} {owner}")
    is_ignored = call.lock.is_ignored or b'"ignored":true' in waiting.text
    return LockResult.of_holder(waiting, owner, call.task, ignored=is_ignored)

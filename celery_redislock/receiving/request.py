"""One delivery in the worker's main process: its run's token, its renewal, what becomes of a dead child.

All of this runs in the main process, in its event loop's thread (or, on the threads, gevent and solo
pools, in the one process there is); every call to the lock server is bounded by two socket timeouts.
"""

import logging
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache
from math import inf
from typing import Any, Literal

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import Task
from celery.worker.request import Request
from kombu.serialization import registry

from celery_redislock.declaring.call_options import from_header
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.options import LockOptions
from celery_redislock.exceptions import RedisLockError
from celery_redislock.locks.clock import boottime
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.process import name_of
from celery_redislock.locks.store import Grant, Term, new_token
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.locks.thread import tell
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER, Message, identity_of, is_result_ignored, release_unrun
from celery_redislock.publishing.results import Skipped
from celery_redislock.receiving.line import LINE, PAUSE
from celery_redislock.running.redelivery import PutOff
from celery_redislock.running.run import FROM_MAIN_PROCESS, can_come_again, was_delivered

__all__ = ["LockRequest"]

logger = logging.getLogger("celery_redislock")

#: Seconds a lease is left after a hard time limit: the child gets SIGTERM, and SIGKILL 0.1 s later
#: (billiard 4.3.2, pool.py), and is reaped within a few seconds.
DYING_TTL = 5.0

#: Since 5.7 Request.on_failure takes a child that exited by itself for lost. Before, it acknowledges the
#: message of such a child as it does a failed one.
_EXIT_IS_LOSS = hasattr(Request, "_worker_lost_info")


class LockRequest(Request):
    """One delivery of a message of a unique task.

    Celery makes one per delivery, on receipt, before prefetching, ETAs and rate limits; a redelivery gets
    another. So the run's token is minted here: the main process knows it although it never sees the
    child's lease.
    """

    #: What the header says, once it has been read; once somebody has asked, what is locked: for the message,
    #: by its run (see ``Run.running_lock``), and how.
    _header: "Message | Literal[False] | None" = False
    _locked: "tuple[TaskLock, TaskLock, LockOptions] | None" = None
    _renewal: "HoldInHand | None" = None
    #: It has ended, or will not run; another process runs it.
    _is_over = _is_elsewhere = False

    def __init__(self, message: Any, **kwargs: Any) -> None:
        """Receive a message; called by the worker's strategy."""
        super().__init__(message, **kwargs)
        self._task_id = str(self.id)  # a number runs, as with plain Celery
        self._run_token, self._received_at = new_token(self._task_id), time.time()
        serializer = registry.type_to_name.get(getattr(message, "content_type", None))
        delivery = (self._run_token, self._received_at, serializer, name_of(os.getpid()))
        # A copy, and not in request_dict itself: what is there leaks into the headers of a retry's message.
        request_dict = self._request_dict
        request_dict["properties"] = {**request_dict["properties"], FROM_MAIN_PROCESS: delivery}
        header = request_dict.get(HEADER)
        self._wait: Callable[[Any], None] = LINE.add
        if _is_short(self._task) or (header.__class__ is str and '"o":' in header):
            self._wait = type(self).leave_line  # at once: its ttl may be shorter than others stand there
        self._wait(self)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A child has taken the task: if it lasts, its lease is renewed from here as well."""
        super().on_accepted(pid, time_accepted)
        self._is_elsewhere = _is_another_process(pid)
        self._stop_renewing()
        if self._is_elsewhere:
            self._wait(self)

    def leave_line(self) -> None:
        """It has lasted: renew what it holds. Called in the line's thread, whatever the others do."""
        if self.time_start is None:
            self._renew_claim()
        elif self._is_elsewhere and not self._result_is_in:
            self._renew_lease()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """A time limit has passed; at the hard one the child is about to be killed."""
        if not soft:
            self._let_die()
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """The run failed, or its child is gone: a dead child's hold is settled first."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, TimeLimitExceeded):
            self._let_die()
        elif isinstance(error, WorkerLostError | Terminated | SystemExit | KeyboardInterrupt):
            self._settle_for_dead_child(error)
        answer = super().on_failure(exc_info, send_failed_event, return_ok)
        # For an Ignore Celery sends no event: whoever watches would see the task started for ever.
        if isinstance(error, Skipped):
            self.send_event("task-revoked", terminated=False, signum=None, expired=False)
        elif isinstance(error, PutOff):
            self.send_event("task-retried", exception=str(error), traceback=None)
        return answer

    def reject(self, requeue: bool = False) -> None:
        """Refuse the message; one that no pool was given does not run: its ETA is no time (celery 5.7.0)."""
        if not requeue and self.time_start is None and self._apply_result is None:
            self._drop()
        super().reject(requeue)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if not terminated:
            # Revoked or expired before it ran. A terminated one's body may go on: on_failure will come.
            self._drop()
        super()._announce_revoked(reason, terminated, signum, expired)

    def _drop(self) -> None:
        release_unrun(self.task.app, self._request_dict, self.delivery_info, is_received=True)
        self._end()

    def _settle_for_dead_child(self, error: BaseException) -> None:
        if self._is_over or (locked := self._what_is_locked()) is None:
            return
        lock, running, options = locked
        again = self._comes_again(error)
        if again is not None and running is lock:
            token, delay = again
            answer = lock.convert(self._run_token, token, ttl=options.lock_queue_ttl + delay)
            if answer is not None and answer.released and self._lock_message is not None:
                # The message that Celery is about to publish for this id carries this claim.
                first = Message.accepted_as(self._lock_message, options, self._run_token)
                text = self._lock_message._replace(token=token, claimed=True, first=first).dumps()
                for headers in (self._request_dict, self._context.headers or {}):
                    headers[HEADER] = text
        else:
            answer = running.release(self._run_token)
            if again is None:
                self._release_claim(lock, options, had_started=answer is not None and answer.released)
        self._end()

    def _comes_again(self, error: BaseException) -> tuple[str, float] | None:
        """Return the token and countdown of the message that runs this task id again, ``None`` if none does.

        Repeats decisions of ``Request.on_failure`` (celery 5.5.0 to 5.7.0), because a dead child's hold is
        settled before the outcome is stored, or the message published again.
        """
        is_exit = isinstance(error, SystemExit | KeyboardInterrupt)
        was_ended_by_worker = self._already_cancelled or self._already_revoked
        is_exit_a_loss = is_exit and _EXIT_IS_LOSS and not was_ended_by_worker
        is_loss = isinstance(error, WorkerLostError) or is_exit_a_loss
        # Where Celery does not know the name, a task that sets it fails; it does since 5.7.
        may_be_retried = is_loss and hasattr(Task, "retry_on_worker_lost") and self.task.retry_on_worker_lost
        most, message = self.task.max_retries, self._lock_message
        if may_be_retried and (most is None or self._request_dict.get("retries", 0) < most):
            again = new_token(self._task_id), float(self.task.default_retry_delay)
        elif not self.task.acks_late or self.acknowledged or (is_exit and not _EXIT_IS_LOSS):
            return None
        elif may_be_retried or not (self.task.reject_on_worker_lost if is_loss else self._already_cancelled):
            return None  # after its last retry it is not requeued either
        else:
            again = (new_token(self._task_id) if message is None else message.token), 0.0
        # Since 5.7 Celery acknowledges a lost run where SUCCESS is stored for its id, maybe another run's: of
        # a body that went on after retry(throw=False), or of an earlier job with this id.
        return None if is_loss and _EXIT_IS_LOSS and self._success_was_stored() else again

    def _let_die(self) -> None:
        """Shorten the lease of a body that met its hard time limit: its child dies within seconds."""
        if self._is_over or (locked := self._what_is_locked()) is None:
            return
        lock, running, options = locked
        self._end()
        had_started = False
        try:
            had_started = lock.store.renew([Term(running.key, self._run_token, DYING_TTL)]).renewed[0] is True
        except RedisLockError as error:
            what = (
                "could not shorten the lease on %r after a hard time limit; it expires %g s after its last "
                "renewal: %s"
            )
            logger.warning(what, running.key, lock.ttl, error)
        # Whether Celery requeues it (5.5.0 to 5.7.0, on_timeout): since 5.7 by a name beside the older one.
        acks = getattr(self.task, "acks_on_timeout", None)
        if not self.task.acks_late or (self.task.acks_on_failure_or_timeout if acks is None else acks):
            self._release_claim(lock, options, had_started=had_started)

    def _release_claim(self, lock: TaskLock, options: LockOptions, *, had_started: bool) -> None:
        """Release what the message of a dead child has left: its claim, killed in before_start; its period.

        A copy, which may find its message done, ends no period, unless it ``had_started``.
        """
        message, period_of = self._lock_message, None
        if had_started or not was_delivered(message, self.delivery_info):
            period_of = Message.accepted_as(message, options, self._run_token)
        token = period_of
        if message is not None and message.claimed and not message.stands_for_period:
            token = message.token
        if token is not None:
            lock.release(token, period_of=period_of)

    @property
    def _lock_message(self) -> Message | None:
        if self._header is False:
            self._header = Message.of(self._request_dict, self._task_id)
        return self._header

    def _renew_claim(self) -> None:
        """Renew the claim while the message waits here: prefetched, for its ETA, or for a rate limit."""
        message = self._lock_message
        if self._is_over or message is None or not message.claimed or message.stands_for_period:
            return
        if (locked := self._what_is_locked()) is not None:
            lock, _, options = locked
            now = datetime.now(timezone.utc)
            # Not less than until the ETA and as long again: its claim was made for that.
            until_eta = (self.eta - now).total_seconds() if self.eta else 0.0
            ttl = options.lock_queue_ttl + max(0.0, until_eta)
            # Celery looks at its expiry when it gives it to the pool, and not again.
            may_expire = self.expires and self._apply_result is None
            until_expiry = (self.expires - now).total_seconds() if may_expire else inf
            # Soon: the message may have waited in its queue until little of its claim is left.
            soon = min(2 * PAUSE, options.lock_queue_ttl / 12, max(0.0, until_expiry) / 12)
            if until_expiry >= ttl:
                self._renew(lock, message.token, ttl, first=soon, max_hold=until_expiry)
            elif until_expiry > PAUSE:
                # Once: from its expiry on it cannot run, although it may wait here for much longer.
                self._renew(lock, message.token, until_expiry, first=soon, max_hold=2 * soon)

    def _renew_lease(self) -> None:
        if (locked := self._what_is_locked()) is None:
            return
        lock, running, options = locked
        has_copies = was_delivered(self._lock_message, self.delivery_info)
        if running is lock or has_copies or can_come_again(self.task, self.eta, self._received_at):
            limit = self.time_limits[0] or self.task.time_limit
            self._renew(running, self._run_token, lock.ttl, max_hold=options.max_hold(limit))

    def _renew(self, lock: TaskLock, token: str, ttl: float, **when: Any) -> None:
        self._renewal = renewal = HoldInHand(lock, Term(lock.key, token, ttl), self)
        renewal.watchdog.watch(renewal, **when)

    def _stop_renewing(self) -> None:
        if (renewal := self._renewal) is not None:
            renewal.end()
            renewal.watchdog.unwatch(renewal)
            self._renewal = None

    def _end(self) -> None:
        self._is_over = True
        self._stop_renewing()

    @property
    def _result_is_in(self) -> bool:
        """Whether the pool has this run's result: it has ended, whatever was announced before."""
        if self._is_over or self.time_start is None or self._apply_result is None:
            # Not accepted yet, it may wait in the pool. A result that is gone says nothing then: the thread
            # pool refers to none of its own (celery 5.7.0, concurrency/thread.py).
            return self._is_over
        result = self._apply_result()
        return result is None or result.ready()

    def _what_is_locked(self) -> tuple[TaskLock, TaskLock, LockOptions] | None:
        """Return what this message locks; ``None`` for nothing, or if only the child can tell."""
        message = self._lock_message
        if self._locked is not None or (message is not None and message.key is None):
            return self._locked
        try:
            declaration = declaration_of(self.task)
            options = declaration.options
            if message is not None and message.options:
                options = from_header(options, message.options)
            if not declaration.settings.enabled or options.scope is None:
                return None
            # With a key the message says it all: its body need not be decoded here.
            lock = declaration.task_lock(
                self.args,
                self.kwargs,
                self._task_id,
                options=options,
                key=message.key if message is not None else None,
                is_ignored=is_result_ignored(self.task, self.ignore_result),
            )
        except Exception as error:  # noqa: BLE001  from users' templates, models and settings; Celery goes on
            tell(logger.debug, "the main process cannot tell the lock of %s: %s", self, error)
            return None
        running = lock
        if not options.scope.holds_while_running:
            properties = self._request_dict["properties"]
            identity = identity_of(self._task_id, properties) if message is None else message.token
            running = lock.of_message(identity or self._task_id)
        self._locked = lock, running, options
        return self._locked


class HoldInHand(Lease):
    """A hold of a message this process has in hand, renewed beside whoever holds it.

    So a child that keeps the interpreter in C code for minutes keeps its lock. This process does not
    decide about losses: its request may be sent before the child has started, or after it has ended.
    """

    def __init__(self, lock: TaskLock, term: Term, request: LockRequest) -> None:
        """Renew from now on what a request's run holds, or its message, while it waits for that."""
        now = boottime()
        super().__init__(lock.store, term, Grant(0, False, now, now))
        self.watchdog = watchdog_of(lock.store)
        self._request, self._is_run = weakref.ref(request), term.token == request._run_token

    @property
    def held(self) -> bool:
        """The message is still in hand, or its run has not ended; whoever began it may have been too late.

        Not longer than it may be held: the run itself announces that.
        """
        request = self._request()
        if self.ended or request is None or self._is_run == (request.time_start is None):
            return False
        return not request._result_is_in and boottime() < self.since + self.max_hold

    def lose(self, reason: str) -> None:
        """Go on asking: what is missing may still come, or come back, and a child may wait for the server."""

    def warn_of_end(self, held_for: float, max_hold: float) -> None:
        """Log nothing: the run itself does."""


@lru_cache(maxsize=1024)
def _is_short(task: Any) -> bool:
    """Whether a hold of this task must be renewed sooner than who stands in line leaves it."""
    with suppress(Exception):  # a wrong declaration is the child's to report
        options = declaration_of(task).options
        return min(options.lock_ttl, options.lock_queue_ttl) < 24 * PAUSE
    return False


def _is_another_process(pid: int) -> bool:
    """Whether a child has accepted a task: on gevent a greenlet does, and gives its identity."""
    greenlet = sys.modules.get("greenlet")
    return pid != os.getpid() and (greenlet is None or pid != id(greenlet.getcurrent()))

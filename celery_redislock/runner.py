"""The running side of a unique task: start, run the body under a lease, finish before anybody sees the end.

``Task.__call__`` is the one place in a pool child from which the end of a
body is seen before its follow-ups are published and its result is stored
(celery 5.7.0, ``app/trace.py``): a lock given back in ``on_success``,
``after_return`` or ``task_postrun`` is still held when the caller's ``get()``
returns and when the next link of a chain is published.

All of this runs in the process and thread that runs the body.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery._state import _task_stack
from celery.exceptions import Ignore, Reject, Retry

from celery_redislock.conflict import jittered
from celery_redislock.copies import DoneNote, outcome_of, outcome_recorded
from celery_redislock.declaration import Declaration, declaration_of
from celery_redislock.duplicates import resolve
from celery_redislock.exceptions import LockUnavailable, RedisLockError
from celery_redislock.guard import QUEUED, Guard, Started, Work
from celery_redislock.header import HEADER, Header
from celery_redislock.interrupt import interruptible
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.patience import keep_trying
from celery_redislock.locks.store import Hold, Recorded, Refusal, new_token
from celery_redislock.options import LockOptions, from_header
from celery_redislock.redeliver import RAW, redeliver
from celery_redislock.signals import lock_acquired, lock_lost, lock_released

__all__ = ["Run", "active_run", "run_of", "run_unique"]

logger = logging.getLogger("celery_redislock")

FollowUp = Callable[..., Any]


def run_unique(task: Any, body: Callable[[], Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run the body of a task's current request under its lock, where it has one.

    Args:
        task: the bound task, its request pushed by Celery's tracer.
        body: runs the task.
        args: of the body.
        kwargs: of the body.

    Returns:
        What the body returned; for a workflow's duplicate the holder's outcome.

    Raises:
        Ignore: the message is done with, or was published again to run later.
        DuplicateTask: strategy ``raise``.
        LockUnavailable: the lock server stayed away, and the broker as well.
        Exception: what the body raised.
    """
    request = task.request
    declaration = declaration_of(task)
    header = Header.loads((request.headers or {}).get(HEADER))
    is_off = header is not None and header.key is None
    if is_off or not declaration.settings.enabled or (request.is_eager and not declaration.settings.eager):
        return body()
    options = from_header(declaration.options, header.options) if header else declaration.options
    if options.lock is None:
        return body()
    run = Run(task, request, declaration, options, header, args, kwargs)
    request.redislock_run = run
    return run.execute(body)


def run_of(request: Any) -> "Run | None":
    """Return the run a request is for, once it has entered its lock."""
    run: Run | None = getattr(request, "redislock_run", None)
    return run


def active_run(task_id: str) -> "Run | None":
    """Return the run of this task id whose body is on in this thread (or greenlet), if there is one."""
    for task in reversed(_task_stack.stack):
        run = run_of(task.request_stack.top)
        if run is not None and run.in_body and run.work.task_id == task_id:
            return run
    return None


class Run:
    """One run of one message.

    Attributes:
        task: the bound task.
        request: Celery's request for this run.
        options: of the message's task and call.
        header: as it came with the message; ``None`` for ``send_task``, an unimported beat entry and
            other languages.
        work: what is locked.
        lease: while a lock is held, and after.
        in_body: the body is on.
    """

    def __init__(
        self,
        task: Any,
        request: Any,
        declaration: Declaration,
        options: LockOptions,
        header: Header | None,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        """Prepare a run; sends nothing.

        Raises:
            LockKeyError: the message came without a key, and none can be made of its arguments.
        """
        self.task = task
        self.request = request
        self.options = options
        self.header = header
        self.args, self.kwargs = args, kwargs
        self.settings = declaration.settings
        self.guard: Guard = declaration.guard
        self.work: Work = declaration.work(args, kwargs, request.id, key=header.key if header else None)
        self.lease: Lease | None = None
        self.in_body = False
        self.raw: dict[str, Any] = (request.properties or {}).get(RAW) or {}
        self.token: str = self.raw.get("token") or new_token(request.id)
        self.done_note: DoneNote | None = None
        self._follow_up: tuple[FollowUp, float] | None = None
        self._finished = False
        self._interrupt: Callable[[], None] = _nothing

    @property
    def message(self) -> str:
        """The message's identity: its token, or the task id where it came without one."""
        return self.header.token if self.header is not None else self.work.task_id

    @property
    def is_redelivered(self) -> bool:
        """There was a copy of this message before: the broker says so, or the worker that put it off did."""
        if self.header is not None and self.header.is_copy:
            return True
        return bool((self.request.delivery_info or {}).get("redelivered"))

    def holds(self, key: str) -> bool:
        """Whether this run has a lease on this key, lost or not."""
        return self.lease is not None and self.lease.key == key

    def execute(self, body: Callable[[], Any]) -> Any:
        """Take the lock as the scope says, run the body, give the lock back."""
        if self.options.lock == "until_executing":
            self._start_executing()
            return body()
        if self.options.lock == "until_expired":
            self._accept()
            return body()
        settled = self._take_outcome()
        if settled is not None:
            return settled.value()
        self._take()
        return self._run(body)

    def hold_back(self, follow_up: FollowUp, *, ttl: float) -> None:
        """Publish this run's own continuation (retry, replace) only when its body has unwound.

        Published from inside the body, the message could start, here or in
        another worker, while this body is still in its ``finally``: with the
        lock handed on before, two bodies of one id overlap; handed on after,
        the key is free in between (both measured).

        Args:
            follow_up: publishes: ``follow_up(token, claimed=…, is_workflow_member=…)``.
            ttl: of the claim the lease becomes, seconds.
        """
        self._follow_up = (follow_up, ttl)

    def settle(self) -> None:
        """Do what is left when everything of this run is over (``task_postrun``); idempotent."""
        self._finish(None)
        if self.done_note is not None and self.done_note.is_late:
            note, self.done_note = self.done_note, None
            try:
                self.guard.store.mark_done(self.work.key, note.mark)
            except RedisLockError as error:
                logger.warning("no done mark for %s[%s]: %s", self.work.task, self.work.task_id, error)

    def put_off(self, delay: float, *, header: Header | None = None, is_copy: bool = False) -> Ignore:
        """Publish the message again for later; return what to raise.

        ``Ignore`` and never ``Retry``, which would write a state for an id that may be running.

        Args:
            delay: seconds; at most the broker's visibility timeout, after which Redis would deliver
                what a worker holds for its ETA a second time.
            header: for the next delivery, where it differs from this one's.
            is_copy: the first copy lives, so the next delivery must look for its outcome.
        """
        # Without a header its identity is the task id, and stays so.
        again = header or self.header or Header(self.work.key, self.work.task_id, published_at=time.time())
        if is_copy or self.is_redelivered:
            again = again.as_copy()
        redeliver(self.task.app, self.raw, again, delay=min(delay, self._visibility_timeout()))
        return Ignore(f"put off for {delay:.1f} s: {self.work.key!r} is held")

    def _start_executing(self) -> None:
        """Scope ``until_executing``: give the claim back; a message without one yields to a queued one."""
        if self.header is not None:
            if self.header.claimed:
                self.guard.give_back(self.work.key, self.header.token, ttl=self.options.lock_queue_ttl)
            return
        answer = self._patiently(self._inspect)
        if answer is not None:
            resolve(self, answer)

    def _inspect(self) -> Refusal | None:
        hold = self.guard.store.inspect(self.work.key)
        if hold is None:
            return None
        if hold.owner == self.work.task_id:
            self.guard.give_back(self.work.key, hold.token, ttl=self.options.lock_queue_ttl)
            return None
        return Refusal(hold)

    def _accept(self) -> None:
        """Scope ``until_expired``: what was accepted at publish runs, the rest is decided here."""
        if (self.header is not None and self.header.claimed) or self.request.retries:
            return
        period = self.options.lock_period or 0.0
        answer = self._patiently(lambda: self.guard.claim(self.work, self.token, ttl=period))
        if isinstance(answer, Refusal) and answer.hold.owner != self.work.task_id:
            resolve(self, answer)

    def _take(self) -> None:
        """Turn the claim into a lease, or acquire; without one this raises what ends the message."""
        claim = self.header.token if self.header is not None else None
        answer = self._patiently(lambda: self._start(claim))
        if isinstance(answer, Refusal) and self._is_own_claim(answer.hold):
            own_claim = answer.hold.token
            answer = self._patiently(lambda: self._start(own_claim))
        match answer:
            case Started(lease, from_claim):
                self._begin(lease, from_claim=from_claim)
            case Recorded():
                raise self._as_late_copy()
            case Refusal():
                resolve(self, answer)

    def _is_own_claim(self, hold: Hold) -> bool:
        """Whether a message without a header (task protocol 1 has none) meets its publisher's claim."""
        is_queued = hold.about.get("state") == QUEUED
        return self.header is None and is_queued and hold.owner == self.work.task_id

    def _start(self, claim: str | None) -> Started | Refusal | Recorded:
        is_accepted = self.header is not None and self.header.claimed
        return self.guard.start(
            self.work,
            self.token,
            ttl=self.options.lock_ttl,
            message=self.message,
            claim=claim,
            max_hold=self._max_hold(),
            period=None if is_accepted else self.options.lock_period,
            on_lost=self._announce_loss,
        )

    def _begin(self, lease: Lease, *, from_claim: bool) -> None:
        self.lease = lease
        had_claim = self.header is not None and self.header.claimed
        if not from_claim and (had_claim or self.is_redelivered):
            if outcome_recorded(self.task, self.request, self.header):
                self._finish(None)
                raise self._as_late_copy()
            if had_claim and not self.is_redelivered:
                logger.warning(
                    "the claim of %s[%s] on %r was gone when it started: it had expired while queued "
                    "(raise lock_queue_ttl), or was released by force",
                    self.work.task,
                    self.work.task_id,
                    self.work.key,
                )
        lock_acquired.send(sender=self.task, key=self.work.key, task_id=self.work.task_id, lease=lease)

    def _run(self, body: Callable[[], Any]) -> Any:
        self.in_body = True
        try:
            if self.lease is not None and self.options.on_lock_lost == "terminate":
                with interruptible(self.lease) as interrupt:
                    self._interrupt = interrupt
                    value = body()
            else:
                value = body()
        except BaseException as error:
            self.in_body = False
            self._finish(error)
            raise
        self.in_body = False
        self._finish(None)
        return value

    def _finish(self, error: BaseException | None) -> None:
        """Give the lock back, or hand it on; only the first call does anything."""
        lease = self.lease
        if lease is None or self._finished:
            if self._follow_up is not None and not self._finished:
                self._publish_follow_up(error, claimed=False)
            return
        self._finished = True
        if self._follow_up is not None:
            self._hand_on(lease, error)
        elif isinstance(error, Reject) and error.requeue and self.task.acks_late:
            # The message goes back to its queue: its next delivery finds its claim again.
            self.guard.hand_on(lease, self.work, self._claim_token(), ttl=self.options.lock_queue_ttl)
        else:
            self._release(lease, error)

    def _release(self, lease: Lease, error: BaseException | None) -> None:
        if not isinstance(error, Retry):
            self.done_note = DoneNote.needed(self)
        note = self.done_note
        mark = note.mark if note is not None and not note.is_late else None
        try:
            was_ours = self.guard.finish(lease, done=mark)
        except RedisLockError as problem:
            logger.warning("could not release %r of %s: %s", lease.key, self.work.task_id, problem)
            return
        if not was_ours and not lease.lost:
            logger.warning("%r was no longer held by %s when it ended", lease.key, self.work.task_id)
        lock_released.send(sender=self.task, key=lease.key, task_id=self.work.task_id, lease=lease)

    def _hand_on(self, lease: Lease, error: BaseException | None) -> None:
        assert self._follow_up is not None  # noqa: S101  the caller looked
        token = new_token(self.work.task_id)
        claimed = self.guard.hand_on(lease, self.work, token, ttl=self._follow_up[1])
        self._publish_follow_up(error, claimed=claimed, token=token)

    def _publish_follow_up(
        self, error: BaseException | None, *, claimed: bool, token: str | None = None
    ) -> None:
        assert self._follow_up is not None  # noqa: S101  the caller looked
        (follow_up, ttl), self._follow_up = self._follow_up, None
        is_member = self.header is not None and self.header.is_workflow_member
        try:
            follow_up(token or new_token(self.work.task_id), claimed=claimed, is_workflow_member=is_member)
        except Exception as problem:
            if token is not None:
                self.guard.give_back(self.work.key, token, ttl=ttl)
            if isinstance(error, Retry):
                # What Task.retry does when its publish fails (celery 5.7.0, app/task.py).
                raise Reject(problem, requeue=False) from problem
            raise

    def _as_late_copy(self) -> Ignore:
        logger.info(
            "%s[%s] was delivered again after its outcome was recorded: nothing to do",
            self.work.task,
            self.work.task_id,
        )
        return Ignore("a copy of this message has run already")

    def _take_outcome(self) -> Any:
        seen = self.header.waits_for if self.header is not None else None
        if seen is None or not seen.is_same_work:
            return None
        outcome = outcome_of(self.task, seen.task_id)
        if outcome is not None:
            self.request.redislock_skipped = True
            logger.info(
                "%s[%s] takes the outcome of %s, which did the same work",
                self.work.task,
                self.work.task_id,
                seen.task_id,
            )
        return outcome

    def _patiently(self, attempt: Callable[[], Any]) -> Any:
        """Ask until the lock server answers; ``None``: run without a lock, as ``on_lock_error`` says."""
        if self.options.on_lock_error == "run":
            try:
                return attempt()
            except LockUnavailable as error:
                logger.warning(
                    "running %s[%s] WITHOUT its lock: %s", self.work.task, self.work.task_id, error
                )
                return None
        try:
            return keep_trying(attempt, for_seconds=self.settings.start_timeout)
        except LockUnavailable as error:
            raise self._give_up(error) from error

    def _give_up(self, error: LockUnavailable) -> Exception:
        if self.request.is_eager:
            return error
        try:
            ignored: Exception = self.put_off(jittered(self.options.lock_retry_delay))
        except Exception as problem:  # noqa: BLE001  whatever keeps the broker from taking it, it must not be lost
            logger.warning("could not put off %s[%s]: %r", self.work.task, self.work.task_id, problem)
            return Reject(error, requeue=True) if self.task.acks_late else error
        logger.warning("put off %s[%s]: %s", self.work.task, self.work.task_id, error)
        return ignored

    def _announce_loss(self, lease: Lease) -> None:
        logger.warning(
            "%s[%s] lost its lock on %r while running: %s",
            self.work.task,
            self.work.task_id,
            lease.key,
            lease.lost_because,
        )
        lock_lost.send(sender=self.task, key=lease.key, task_id=self.work.task_id, lease=lease)
        action = self.options.on_lock_lost
        if callable(action):
            action(lease)
        elif action == "terminate":
            self._interrupt()

    def _claim_token(self) -> str:
        return self.header.token if self.header is not None else new_token(self.work.task_id)

    def _max_hold(self) -> float | None:
        if self.options.lock_max_hold is not None:
            return self.options.lock_max_hold
        limit = (self.request.timelimit or (None, None))[0] or self.task.time_limit
        # Ten seconds for the worker to kill the body and see that it is dead.
        return None if not limit else max(float(limit) + 10.0, 2 * self.options.lock_ttl)

    def _visibility_timeout(self) -> float:
        options = self.task.app.conf.broker_transport_options or {}
        return float(options.get("visibility_timeout") or 3600.0)


def _nothing() -> None:
    """Interrupt no body: none is on."""

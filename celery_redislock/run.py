"""One run of one message: who it is, what it holds, and how its end settles that.

Lives in the process and thread that runs the body.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_redislock.backends import ignores_result
from celery_redislock.copies import CLOCK_TOLERANCE, DoneNote
from celery_redislock.declaring.declaration import Declaration
from celery_redislock.declaring.options import LockOptions
from celery_redislock.exceptions import RedisLockError
from celery_redislock.exits import goes_back, settled_by_main_process
from celery_redislock.guard import Guard
from celery_redislock.header import Header
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.store import DoneMark, new_token
from celery_redislock.redeliver import RAW
from celery_redislock.signals import lock_lost, lock_released
from celery_redislock.work import Work

__all__ = ["Run", "run_of"]

logger = logging.getLogger("celery_redislock")

_GONE = (
    "it had expired, or was released by force; another one may have run beside it. If nobody released it, "
    "lock_ttl is shorter than what this process, or the lock server, stands still"
)

#: Seconds after a body's end within which its outcome is stored, and two hosts' clocks may differ.
OUTCOME_FOLLOWS = CLOCK_TOLERANCE + 5.0

#: Publishes a run's continuation: ``follow_up(token, claimed=…, is_workflow_member=…, published_at=…)``.
FollowUp = Callable[..., Any]


def run_of(request: Any) -> "Run | None":
    """Return the run a request is for, once it has entered its lock."""
    run: Run | None = getattr(request, "redislock_run", None)
    return run


class Run:
    """One run of one message.

    Attributes:
        task: the bound task.
        request: Celery's request for this run.
        options: of the message's task and call.
        settings: of the app.
        header: as it came with the message; ``None`` for ``send_task``, an unimported beat entry and
            other languages.
        args: of the body.
        kwargs: of the body.
        guard: takes and gives back its lock.
        work: what is locked.
        raw: the message as it was received, where there is a main process that saw it.
        token: this run's term, minted by the main process where there is one.
        lease: while a lock is held, and after.
        in_body: the body is on.
        has_passed_claim_on: without a lease, it published its own id again, with its message's claim.
        interrupt: raises ``LockLost`` inside the body, where it can be interrupted.
    """

    def __init__(
        self,
        task: Any,
        declaration: Declaration,
        options: LockOptions,
        header: Header | None,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        """Prepare a run of the task's current request; sends nothing.

        Raises:
            LockKeyError: the message came without a key, and none can be made of its arguments.
        """
        self.task = task
        self.request = request = task.request
        self.options = options
        self.settings = declaration.settings
        self.header = header
        self.args, self.kwargs = args, kwargs
        self.guard: Guard = declaration.guard
        self.work: Work = declaration.work(
            args,
            kwargs,
            request.id,
            key=header.key if header else None,
            fingerprint=header.fingerprint if header else None,
        )
        if ignores_result(task, request):
            self.work = self.work._replace(is_ignored=True)
        self.lease: Lease | None = None
        self.in_body = self.has_passed_claim_on = False
        self.interrupt: Callable[[], None] = lambda: None
        self.raw: dict[str, Any] = (request.properties or {}).get(RAW) or {}
        self.token: str = self.raw.get("token") or new_token(request.id)
        self._late_mark: DoneMark | None = None
        self._follow_ups: list[tuple[FollowUp, float]] = []
        self._is_finished = False

    @property
    def message(self) -> str:
        """The message's identity: its token, or the task id where it came without one."""
        return self.header.token if self.header is not None else self.work.task_id

    @property
    def has_claim(self) -> bool:
        """The publisher took a claim for this message, so its acceptance was decided then."""
        return self.header is not None and self.header.claimed

    @property
    def may_have_claim(self) -> bool:
        """A hold may be there under its token: its publisher's, or that of a run that went back."""
        return self.has_claim or (self.header is not None and self.is_redelivered)

    @property
    def is_redelivered(self) -> bool:
        """There was a copy of this message before: the broker says so, or the worker that put it off did."""
        if self.header is not None and self.header.is_copy:
            return True
        return bool((self.request.delivery_info or {}).get("redelivered"))

    @property
    def may_have_run(self) -> bool:
        """There was another delivery of this message, and it may have run by now.

        Timeline without redelivery flag or claim: a first delivery is put off (published again); its worker
        dies before it acknowledged; it is delivered again, and runs; then comes what was published again.
        """
        return self.is_redelivered or (self.header is not None and self.header.put_off > 0)

    def holds(self, key: str) -> bool:
        """Whether this run has a lease on this key, lost or not."""
        return self.lease is not None and self.lease.key == key

    def hold_back(self, follow_up: FollowUp, *, ttl: float) -> None:
        """Publish this run's own continuation (retry, replace) only when its body has unwound.

        Published from inside the body, the message could start, here or in
        another worker, while this body is still in its ``finally``: with the
        lock handed on before, two bodies of one id overlap; handed on after,
        the key is free in between (both measured).

        Args:
            follow_up: publishes: see ``FollowUp``.
            ttl: of the claim the lease becomes, seconds.
        """
        self._follow_ups.append((follow_up, ttl))

    def finish(self, error: BaseException | None) -> None:
        """Give the lock back, or hand it on; only the first call does anything.

        Args:
            error: what ended the body, ``None`` if it returned.

        Raises:
            Reject: the retry's message could not be published, as Celery's own ``retry`` has it.
            Exception: a replacement's message could not be published.
        """
        self._conclude(lambda lease: self._end(lease, error))

    def leave(self) -> None:
        """Give the lock back unannounced, with its window: the body will not be entered."""
        self._conclude(lambda lease: self._give_back(lease, undo=True))

    def settle(self) -> None:
        """Do what is left when everything of this run is over (``task_postrun``); idempotent."""
        # Its body was never entered, or its end was interrupted: there is no outcome to note or publish.
        self._follow_ups = []
        self.finish(_Unentered())
        mark, self._late_mark = self._late_mark, None
        if mark is None:
            return
        try:
            self.guard.store.mark_done(self.work.key, mark)
        except RedisLockError as error:
            logger.warning("no done mark for %s; delivered again, it would run again: %s", self.work, error)

    def announce_loss(self, lease: Lease) -> None:
        """Say that the lease is lost, and do what ``on_lock_lost`` asks; in the thread that learns of it."""
        facts = self.work, lease.key, lease.lost_because
        logger.warning(
            "%s lost its lock on %r while running: %s; another one may run beside it, and on_lock_lost says "
            "what becomes of this one",
            *facts,
        )
        lock_lost.send(sender=self.task, key=lease.key, task_id=self.work.task_id, lease=lease)
        action = self.options.on_lock_lost
        if callable(action):
            action(lease)
        elif action == "terminate":
            self.interrupt()

    def _conclude(self, end: Callable[[Lease], object]) -> None:
        if self.lease is None or self._is_finished:
            return
        self._is_finished = True
        try:
            end(self.lease)
        except BaseException:  # a signal's handler may raise in there: nobody else would end the lease
            self.guard.abandon(self.lease)
            raise

    def _end(self, lease: Lease, error: BaseException | None) -> None:
        if self._follow_ups:
            self._hand_on(lease, error)
            # What goes on has another identity: a copy of this message would do it all again.
            self._late_mark = note.mark if (note := DoneNote.needed(self)) else None
        elif goes_back(self.task, error):
            # The message goes back to its queue: its next delivery finds its claim again.
            token = self.message if self.header is not None else new_token(self.work.task_id)
            self.guard.hand_on(lease, self.work, token, ttl=self.options.lock_queue_ttl)
        elif settled_by_main_process(self, error):
            self.guard.let_go(lease)
        else:
            self._release(lease, error)

    def _release(self, lease: Lease, error: BaseException | None) -> None:
        # A retry is not over, and where a signal ended the body no outcome is recorded.
        is_over = error is None or (isinstance(error, Exception) and not isinstance(error, Retry))
        note = DoneNote.needed(self) if is_over else None
        if note is not None and note.is_late:
            self._late_mark, note = note.mark, None
        if self._give_back(lease, note.mark if note is not None else None):
            lock_released.send(sender=self.task, key=lease.key, task_id=self.work.task_id, lease=lease)

    def _give_back(self, lease: Lease, mark: DoneMark | None = None, *, undo: bool = False) -> bool:
        try:
            was_ours = self.guard.finish(lease, done=mark, undo=undo)
        except RedisLockError as problem:  # the body's outcome counts; its lock expires
            logger.warning("could not release %r at the end of %s: %s", lease.key, self.work, problem)
            return False
        # Where somebody else ended it nothing was given back, and a loss has been announced as such.
        if not was_ours and not lease.lost:
            logger.warning("%s no longer held %r when it ended: %s", self.work, lease.key, _GONE)
        return was_ours

    def _hand_on(self, lease: Lease, error: BaseException | None) -> None:
        """Turn the lease into a claim for the first continuation, and publish them all."""
        token = new_token(self.work.task_id)
        ttl = self._follow_ups[0][1]
        # What goes on after its retry (throw=False) has an outcome too, stored when the retry is on its way:
        # to the retry it is no outcome of another copy of itself.
        is_over = not isinstance(error, Retry | Ignore)
        published_at = time.time() + OUTCOME_FOLLOWS if is_over else None
        is_member = self.header is not None and self.header.is_workflow_member
        claimed = True  # until it is told otherwise: it may be interrupted when it is done
        try:
            claimed = self.guard.hand_on(lease, self.work, token, ttl=ttl)
            for follow_up, _ in self._follow_ups:
                follow_up(token, claimed=claimed, is_workflow_member=is_member, published_at=published_at)
                token, claimed = new_token(self.work.task_id), False
        except BaseException as problem:
            if claimed:
                self.guard.give_back(self.work.key, token, ttl=ttl)
            if isinstance(error, Retry) and isinstance(problem, Exception):
                # What Task.retry does when its publish fails (celery 5.7.0, app/task.py).
                raise Reject(problem, requeue=False) from problem
            raise


class _Unentered(BaseException):
    """Stands for what ended a run between its lock and its body."""

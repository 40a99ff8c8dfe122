"""One run of one message: its delivery, and what happens while it runs.

Lives in the process and thread that runs the body.
"""

from collections.abc import Callable, Sequence
from typing import Any

from celery_redislock.locks.lease import Lease, call_back
from celery_redislock.log import logger
from celery_redislock.publishing.conflict import explain
from celery_redislock.publishing.signals import lock_lost, lock_released
from celery_redislock.running.delivery import Delivery
from celery_redislock.running.leavings import mark_ttl, release_dropped
from celery_redislock.running.life import BEGUN, DONE, NOT_BEGUN, State
from celery_redislock.store.store import Mark


class Run(Delivery):
    """A delivery that is run here.

    Attributes:
        lease: while a lock is held, and after; on the key, or, in a scope that holds none while it runs,
            on the message itself.
        state: where it is in its life; changed by the transitions of ``running/life.py`` alone.
        followed_by: tokens of the messages of its own id that the body published, or had requeued, each with
            what tells the seconds its claim lives; ``None`` for one that leaves the lock to others until it
            is due.
        failed_period: token under which the period was opened that ends with this run, if one does.
        interrupt: raises ``LockLost`` inside the body, where it can be interrupted.
    """

    lease: Lease | None = None
    state: State = NOT_BEGUN
    followed_by: Sequence[tuple[str, Callable[[], float] | None]] = ()
    failed_period: str | None = None
    interrupt: Callable[[], None] | None = None

    @classmethod
    def begin(cls, task: Any, request: Any) -> "Run | None":
        """Return the run of a task's current request, ``None`` if it takes no lock; sends nothing.

        The claim of a message that will not enter its lock is released: locking was switched off
        meanwhile, or its arguments do not fit. Raises as :meth:`Delivery.of`.
        """
        request.redislock_skipped = False
        run = None
        try:
            if request.id:  # one made by hand, as test helpers do, has none
                run = cls.of(task, request)
        finally:
            request.redislock_run = run
            if run is None:
                release_dropped(task.app, request.headers, task_id=str(request.id))
        return run

    @property
    def in_body(self) -> bool:
        """Its body is running."""
        return self.state is BEGUN

    def holds(self, key: str) -> bool:
        """Whether this run has a lease on this key, lost or not."""
        return self.lease is not None and self.lease.key == key

    def note_follow_up(self, token: str, claim_ttl: Callable[[], float] | None) -> None:
        """Note that the body has published its own task id again; called by the publish, in this thread.

        The lease becomes the first such message's claim when the body has unwound; ``claim_ttl`` tells then
        for how many seconds.
        """
        self.followed_by = (*self.followed_by, (token, claim_ttl))

    @property
    def done_ttl(self) -> float:
        """As of its delivery. A message that was sent more than once may come again as late as any.

        In a scope without a lease nobody tells whether it was, if it has waited.
        """
        if self.lease is not None and (
            self.lease.sent_again or (self.parked_as is not None and self.locks.running is None)
        ):
            return mark_ttl(self.task.app)
        return super().done_ttl

    def mark(self) -> Mark | None:
        """Return what the end of this run leaves for the copies of its message."""
        if self.identity is None or not self.again or self.state not in DONE:
            return None
        return Mark(self.identity, self.locks.copies.ttl)

    def release(self, lease: Lease) -> None:
        """Release the lock: the body has ended. Never raises an ``Exception``."""
        mark = self.mark() if self.again else None
        was_held = self.locks.copies.finish(lease, opened_by=self.failed_period, mark=mark)
        if not was_held:
            self.warn_of_loss(lease)
        elif lock_released.receivers:
            self._announce_release(lease)

    def release_with_result(self, lease: Lease, key: str, result: str, seconds: int) -> bool:
        """Release the lock and store the result in one step; tell whether it is stored.

        As :meth:`release`, and as :meth:`LockStore.release_and_store` for the result.
        """
        mark = self.mark() if self.again else None
        was_held, is_stored = self.locks.copies.finish_with_result(
            lease, key, result, seconds, opened_by=self.failed_period, mark=mark
        )
        if not was_held:
            self.warn_of_loss(lease)
        elif lock_released.receivers:
            self._announce_release(lease)
        return is_stored

    def _announce_release(self, lease: Lease) -> None:
        if self.locks.running is not None:
            lock_released.send(sender=self.task, key=lease.key, task_id=self.lock.owner, lease=lease)

    def warn_of_loss(self, lease: Lease) -> None:
        """Log that a lease was gone when its run ended; one whose loss was noticed has been announced."""
        if not lease.lost:
            why = self.lock.count_loss() or (
                "it had expired, as this process, or the lock server, stood still for longer: raise lock_ttl"
            )
            what = "%s no longer held %r when it ended: %s. Another run may have held it meanwhile"
            logger.warning(what, self.lock, lease.key, why)

    def announce_loss(self, lease: Lease) -> None:
        """Log that the lease is lost, and do what ``on_lock_lost`` asks; in the thread that learns of it.

        In a scope that holds no lock while it runs only copies of this message are kept out: that is logged.
        """
        why = self.lock.count_loss() or lease.lost_because
        what = "%s lost its lock on %r while running: %s; another run may hold it now: %s"
        logger.warning(what, self.lock, lease.key, why, explain(self.lock.key))
        if self.locks.running is None:
            return
        lock_lost.send(sender=self.task, key=lease.key, task_id=self.lock.owner, lease=lease)
        action = self.options.on_lock_lost
        if callable(action):
            call_back(action, lease)
        elif action == "terminate" and self.interrupt is not None:
            self.interrupt()

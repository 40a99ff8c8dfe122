"""An exclusive lock for anybody: one owner's hold on one name, without Celery."""

import time
from collections.abc import Callable
from types import TracebackType

from celery_redislock.exceptions import LockBusy, LockKeyError, LockLost, RedisLockError
from celery_redislock.locks.clock import Clock, boottime
from celery_redislock.locks.holding import Holding, check_terms, default_owner, hostname, introduce
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.naming import lock_name
from celery_redislock.locks.patience import keep_trying, outwait
from celery_redislock.locks.store import Grant, Hold, LockStore, Refusal, Term, new_token
from celery_redislock.locks.watchdog import watchdog_of

__all__ = ["Lock"]


class Lock:
    """Exclusive access to one name, for as long as its process lives and renews it.

    ::

        store = connect("redis://localhost:6379/0")
        with Lock(store, "nightly-import") as lock:
            lock.check()                       # raises LockLost
            write(..., fence=lock.fence)

    One object may be shared by threads: each thread holds for itself, and the
    thread that holds may acquire again (it releases as often); two objects of
    one name wait for each other, in one thread too. Who waits is not served in
    order. What is acquired without ``with`` and never released is renewed until
    the process ends, whatever becomes of the thread or the object.

    Not for coroutines, which would hold it together; a second one of the same
    thread is refused. Let each hold it in a thread (``asyncio.to_thread``).
    """

    def __init__(
        self,
        store: LockStore,
        name: str,
        *,
        ttl: float = 30.0,
        timeout: float | None = 10.0,
        owner: str | None = None,
        auto_renew: bool = True,
        on_lost: Callable[["Lock"], None] | None = None,
        clock: Clock = boottime,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Name a lock; nothing is sent yet.

        Args:
            store: where it is kept, from :func:`celery_redislock.locks.connect`.
            name: of the resource. Locks of the same name and prefix exclude each other, and exclude tasks
                whose ``lock_key`` is that text; where it has fields, or a ``%``, give
                ``task.lock_for(...).key``.
            ttl: seconds the hold outlives its holder's last renewal, from 0.001 to ten years; several socket
                timeouts, or one lost reply costs the lock.
            timeout: seconds ``with lock:`` waits before it raises :class:`LockBusy`; ``None`` for ever.
            owner: who holds, shown to those who are refused; host, process and thread by default.
            auto_renew: renew in the background every third of ``ttl``; otherwise :meth:`renew` does.
            on_lost: called once with this lock when the hold is found gone, in the thread that learns of
                it: the watchdog's, which holds nothing itself, or that of :meth:`check` or :meth:`renew`.
            clock: injected by tests, as ``sleep`` is.
            sleep: see there.

        Raises:
            LockOptionError: the name is no text or empty, or a time is not a number of seconds in range.
        """
        check_terms(name, ttl=ttl, timeout=timeout)
        self.name = name
        self._store = store
        self._key = lock_name(name)
        self._ttl = ttl
        self._timeout = timeout
        self._owner = owner
        self._auto_renew = auto_renew
        self._on_lost = on_lost
        self._clock = clock
        self._sleep = sleep
        self._mine = Holding()

    def acquire(self, timeout: float | None = None) -> bool:
        """Take the lock, waiting for it if need be; at once if this thread holds it already.

        Args:
            timeout: seconds to wait, plus one bounded request; ``None``: no limit; ``0``, or less: one try.

        Returns:
            Whether this thread holds the lock now.

        Raises:
            LockUnavailable: the server cannot be reached. As with anything else it raises, a lock that
                was taken all the same is given back in the background.
            LockKeyError: the key on the server is not a lock.
            LockOptionError: the timeout is no number of seconds.
            RuntimeError: another coroutine of this thread holds it.
            LockLost: this thread holds it already, but that hold was lost; :meth:`release` it first.
        """
        check_terms(self.name, timeout=timeout)
        before = self._mine.depth
        try:
            return self._wait_for(timeout) is None
        except BaseException:
            self._undo_acquire(before)
            raise

    def release(self) -> bool:
        """Give the lock back; atomic, and only if this very hold still has it.

        Cut short by a signal's handler, it is done in the background, or not begun: :attr:`held` tells.

        Returns:
            Whether it was still ours. ``False``: it had been lost, and nothing was touched.

        Raises:
            RuntimeError: this thread does not hold the lock.
            LockUnavailable: the server cannot be reached; it is given back in the background.
            LockKeyError: the key on the server is not a lock any more.
        """
        lease = self._mine.required(self.name)
        depth = self._mine.depth - 1
        try:
            if depth:
                return lease.held
            trusted = lease.trusted
            lease.end()
            watchdog_of(self._store).forget(lease)
            answer = self._store.release(self._key, lease.token)
            return lease.gave_back(answer, trusted=trusted)
        except BaseException as error:
            if not depth:
                lease.end()
                self._settle_later(lease.term, error)
            raise
        finally:
            self._mine.depth = depth

    def renew(self, ttl: float | None = None) -> bool:
        """Set the remaining time back to the ttl; atomic. Needed only without ``auto_renew``.

        Args:
            ttl: another time to live from now on, seconds.

        Returns:
            Whether the lock was still ours.

        Raises:
            RuntimeError: this thread does not hold the lock.
            LockOptionError: the ttl is not a number of seconds in range.
            LockUnavailable: the server cannot be reached; the earlier of the old and the new end counts.
            LockKeyError: the key on the server is not a lock any more.
        """
        lease = self._mine.required(self.name)
        if lease.lost:
            return False
        if ttl is not None:
            check_terms(self.name, ttl=ttl)
            lease.term = Term(lease.key, lease.token, ttl)
            # Should no answer come, the server may have shortened it all the same.
            lease.trust_for(ttl)
        term = lease.term
        try:
            answer = self._store.renew([term])
            lease.learn(answer.renewed[0], answer.sent_at, answer.answered_at, ttl=term.ttl)
        finally:
            if ttl is not None and self._auto_renew and lease.held:
                # Its next renewal was due by the old ttl.
                watchdog_of(self._store).watch(lease)
        return lease.held

    def check(self) -> None:
        """Raise if the lock was lost; free of cost while it can be trusted (see :meth:`Lease.check`).

        Raises:
            RuntimeError: this thread does not hold the lock.
            LockLost: it is gone; another holder may be at work.
        """
        self._mine.required(self.name).check()

    def holder(self) -> Hold | None:
        """Return who holds the lock now, ``None`` if nobody does; one request.

        Raises:
            LockUnavailable: the server cannot be reached.
            LockKeyError: the key on the server is not a lock.
        """
        return self._store.inspect(self._key)

    @property
    def fence(self) -> int | None:
        """This hold's fencing token, larger than every earlier one of this lock; ``None`` if not held."""
        return self._mine.lease.fence if self._mine.lease is not None else None

    @property
    def held(self) -> bool:
        """Whether this thread holds the lock and has not learnt that it is lost."""
        return self._mine.lease is not None and self._mine.lease.held

    def __enter__(self) -> "Lock":
        before = self._mine.depth
        try:
            if (refused := self._wait_for(self._timeout)) is None:
                return self
        except BaseException:
            self._undo_acquire(before)
            raise
        raise LockBusy(self.name, refused.owner, refused.expires_in)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mine.is_the_parents:
            return  # a child leaving a block its parent entered
        if error is not None and self._mine.lease is None:
            return  # the body has given it back itself, and its own error matters more
        lease = self._mine.required(self.name)
        try:
            released = self.release()
        except RedisLockError:
            if error is None:
                raise
            return  # the body's own error matters more; the hold is given back in the background, or expires
        if not released and error is None:
            # The body believes it was alone all the time; it was not.
            why = lease.lost_because or "it was gone when it should be released"
            raise LockLost(self.name, why, lease.fence)

    def _wait_for(self, timeout: float | None) -> Hold | None:
        """Acquire within the timeout: ``None`` when held, else who holds."""
        if self._mine.lease is not None:
            self._mine.check_coroutine(self.name)
            # A lost hold is not replaced by a new one: the outer block would go on as if nothing were wrong.
            self._mine.lease.check()
            self._mine.depth += 1
            return None
        return outwait(self._attempt, timeout=timeout, clock=self._clock, sleep=self._sleep)

    def _attempt(self) -> Hold | None:
        owner = self._owner or default_owner()
        term = Term(self._key, new_token(owner), self._ttl)
        try:
            answer = self._store.acquire(term.name, term.token, term.ttl, about=introduce(owner))
            if isinstance(answer, Refusal):
                return answer.hold
            # No message was named, so no done mark can have answered.
            assert isinstance(answer, Grant)  # noqa: S101
            lease = Lease(self._store, term, answer, on_lost=self._announce_loss, clock=self._clock)
            self._mine.start(lease)
        except BaseException as error:
            self._settle_later(term, error)
            raise
        if self._auto_renew:
            watchdog_of(self._store).watch(lease)
        return None

    def _undo_acquire(self, before: int) -> None:
        """Hold what was held before: a signal handler's exception may come when all is done."""
        lease = self._mine.lease
        if lease is not None and not before:
            lease.end()
            self._settle_later(lease.term)
        self._mine.depth = before

    def _settle_later(self, term: Term, error: BaseException | None = None) -> None:
        """Give back in the background what an unanswered, or interrupted, request may have left held."""
        if not isinstance(error, LockKeyError):  # that is an answer: nothing was taken
            watchdog_of(self._store).release_later(
                lambda: self._store.release(term.name, term.token), within=term.ttl, what=repr(self.name)
            )

    def _announce_loss(self, _lease: Lease) -> None:
        if self._on_lost is not None:
            self._on_lost(self)

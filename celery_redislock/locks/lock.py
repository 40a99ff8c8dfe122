"""An exclusive lock for anybody: one thread's hold on one name, without Celery."""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from celery_redislock.locks.attempt import Attempt, coroutine, drive, settle_anyway
from celery_redislock.locks.block import INTERRUPTED, Block
from celery_redislock.locks.holding import Held, Holding
from celery_redislock.locks.lease import DRIFT, LockLease
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.store.store import Grant, Hold, LockStore, Term
from celery_redislock.wire.clock import Clock, boottime


class Lock(Holding[Held]):
    """Exclusive access to one name, for as long as its process lives and renews it.

    ::

        store = connect("redis://localhost:6379/0")
        with Lock(store, "nightly-import") as lock:
            lock.check()                       # raises LockLost
            write(..., fence=lock.fence)

    One object may be shared by threads: each holds for itself, and may acquire
    again while it holds (it releases as often). Two objects of one name wait for
    each other, in one thread too. Who waits is served in order: tasks and Locks of
    one name share one line; messages of RabbitMQ, which have priorities
    of their own, wait behind Locks. On a quorum of servers there is no line: who
    waits asks again after random pauses, in no order. A lock that is acquired without ``with`` and never
    released is renewed as long as somebody refers to this object, and expires then.

    Not for coroutines, which would hold it together, and stand still while one waits; a second one of the
    same thread is refused. For them there is ``celery_redislock.locks.aio``.
    """

    _kind = "thread"
    _stores = ("keeps_lines", "connect")
    _store: LockStore

    def __init__(
        self,
        store: LockStore,
        name: str | list[str] | tuple[str, ...],
        *,
        ttl: float = 30.0,
        wait: float | None = 10.0,
        owner: str | None = None,
        token: str | None = None,
        auto_renew: bool = True,
        reentrant: bool = True,
        on_lost: Callable[["Lock"], None] | None = None,
        on_state: Callable[["Lock", str], None] | None = None,
        margin: float = DRIFT,
        lock_delay: float = 0.0,
        clock: Clock = boottime,
        **others: NoReturn,
    ) -> None:
        """Name a lock; nothing is sent yet.

        Args:
            store: where it is kept, from :func:`celery_redislock.locks.connect`.
            name: of the resource. Locks of the same name and prefix exclude each other, and exclude tasks
                whose ``lock_key`` is that text; where it has fields, or a ``%``, give
                ``task.lock_for(...).key``. A list of names: all of them or none, in one step, whatever their
                order; who waits for several holds none of them meanwhile. On one server only.
            ttl: seconds the hold outlives its holder's last renewal, from 0.001 to ten years; several socket
                timeouts, or one lost reply costs the lock.
            wait: seconds ``with lock:`` waits before it raises :class:`LockBusy`; ``None`` for ever.
            owner: who holds, shown to those who are refused; host, process and thread by default.
            token: the :attr:`token` of a hold that another thread or process has acquired: :meth:`acquire`
                continues it, in two requests, and the other methods are for it without that. Whoever had it
                goes on renewing it, and learns of its end as of a loss, unless it is in this process.
            auto_renew: renew in the background every third of ``ttl``; otherwise :meth:`renew` does.
            reentrant: a thread that holds it may acquire it again; otherwise that is a RuntimeError.
            on_lost: called once with this lock when a hold that it has acquired, or continued by its
                ``token``, is found gone, in the thread that learns of it: the watchdog's, which renews no
                lock meanwhile, so let it be short; or that of :meth:`check` or :meth:`renew`.
            on_state: called with this lock and ``"unsure"`` when a renewal got no answer, or the deadline of
                the hold is near; with ``"held"`` when the server has confirmed it again; or with ``"lost"``.
                Each once, in order, in the thread that learns of it, which renews nothing meanwhile.
            margin: part of the ttl, from 0.01 to 0.5, for which the hold is not trusted any more although the
                server keeps it: for clocks that run at different rates. From 0.25 on it is renewed every
                quarter of the ttl.
            lock_delay: seconds for which the server keeps the lock beyond its ttl where its holder is gone,
                so that what that has sent may arrive. The holder itself does not trust it then. A release
                ends both.
            clock: injected by tests.
            others: none. The names that other libraries have for these raise, and are told apart.

        Raises:
            LockOptionError: the name is empty, it or the owner is no text, a number is out of its range,
                or the store or the token is none; or another library's word was used.
        """
        self._set_terms(
            store, name, others, ttl=ttl, wait=wait, owner=owner, token=token, auto_renew=auto_renew,
            reentrant=reentrant, on_lost=on_lost, on_state=on_state, margin=margin, lock_delay=lock_delay,
            clock=clock,
        )  # fmt: skip
        # By the class, which gevent may replace: one for all locks, because each costs more than a trip does.
        self._thread: Any = _threads(threading.local)

    def acquire(self, timeout: float | None = None) -> bool:
        """Take the lock, waiting for it if need be; at once if this thread holds it already.

        Args:
            timeout: seconds to wait, plus some bounded requests; ``None``: no limit; ``0`` or less: one try.

        Returns:
            Whether this thread holds the lock now.

        Raises:
            LockUnavailable: the server cannot be reached: at the first request, or when the time is up of one
                that waits in line. A lock that the server has granted is released in the background, as after
                any other error.
            LockKeyError: the key on the server is not a lock.
            LockOptionError: the timeout is no number of seconds; or the ``token`` is that of a reader, of a
                permit, or of a lock of other names.
            RuntimeError: another coroutine of this thread holds it; or this thread does, and ``reentrant`` is
                off.
            LockLost: this thread holds it already, but that hold was lost; :meth:`release` it first. Or
                nobody holds it under the ``token``.
        """
        try:
            depth = self._depth
            return drive(self._store, self._acquiring(timeout)) is None
        except BaseException as interrupted:
            self._undo(locals().get("depth"), interrupted)
            raise

    def release(self) -> bool:
        """Release the lock; atomic, and only if this very hold still has it.

        Returns:
            Whether it was still ours. It is ``False`` if it had been lost; nothing was touched then.

        Raises:
            LockNotHeld: this thread does not hold the lock.
            LockUnavailable: the server cannot be reached; the lock is released in the background.
            LockKeyError: the key on the server is not a lock any more.
        """
        return drive(self._store, self._releasing())

    def renew(self, ttl: float | None = None) -> bool:
        """Set the remaining time back to the ttl; atomic. Needed only without ``auto_renew``.

        Args:
            ttl: another time to live from now on, seconds.

        Returns:
            Whether the lock was still ours.

        Raises:
            LockNotHeld: this thread does not hold the lock.
            LockOptionError: the ttl is not a number of seconds in range.
            LockUnavailable: the server cannot be reached; the earlier of the old and the new end counts.
            LockKeyError: the key on the server is not a lock any more.
        """
        return drive(self._store, self._renewing(ttl))

    def check(self) -> None:
        """Raise if the lock was lost; free of cost while it can be trusted (see :meth:`Lease.check`).

        Raises:
            LockNotHeld: this thread does not hold the lock.
            LockLost: it is gone; another holder may be running.
        """
        self._required().lease.check()

    def holder(self) -> Hold | None:
        """Return who holds the lock now, ``None`` if nobody does; one request.

        Raises:
            LockUnavailable: the server cannot be reached.
            LockKeyError: the key on the server is not a lock.
        """
        return self._store.inspect(self._key)

    def locked(self) -> bool:
        """Whether anybody holds the lock now, this thread included; one request. Raises as :meth:`holder`."""
        return self.holder() is not None

    def __enter__(self) -> "Lock":
        block = Block.entered()
        if (held := self._held) is not None and held.block is not None and held.block.is_over(block):
            self._leave_anyway(1, INTERRUPTED)
        try:
            depth = self._depth
            drive(self._store, self._entering())
            if not depth and (held := self._held) is not None:
                held.block = block
        except BaseException as interrupted:
            self._undo(locals().get("depth"), interrupted)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            held = self._held
            depth = self._depth
            drive(self._store, self._leaving(error))
            if depth > 1 and held is not None and held.block is not None:
                # Held on, by an acquire() in the block: whose frame leaves a block may have left this one.
                held.block = None if held.block.frame is sys._getframe(1) else held.block
        except BaseException as interrupted:
            # A signal's, wherever it came; where it was not even read how deep this is, nothing was done.
            self._leave_anyway(locals().get("depth"), interrupted)
            if (ended := locals().get("held")) is not None and ended.lease.ended:
                settle_anyway(self._store, ended.lease, interrupted)
            raise

    def _undo(self, depth: int | None, error: BaseException) -> None:
        """Enter less often by one than an acquire did that was interrupted: it may be released already."""
        if depth is not None:
            self._leave_anyway(depth + 1, error)

    def _joined(self, store: LockStore) -> LockStore:
        from celery_redislock.store.joined import joined  # noqa: PLC0415  imports redis

        return joined(store)

    def _beside_of(self, store: LockStore) -> LockStore:
        return store

    def _who(self) -> object:
        return self._thread.marker

    def _insist(self, held: Held) -> None:
        if held.coroutine is not coroutine():
            raise RuntimeError(
                f"another coroutine of this thread holds the lock {self.name!r}; a thread holds it as a "
                "whole: use celery_redislock.locks.aio, or let each coroutine hold it in a thread of its "
                "own (asyncio.to_thread)"
            )

    def _elsewhere(self, token: str) -> Held:
        known = watchdog_of(self._store).watched(token)
        if isinstance(known, LockLease) and known.key == self._key:
            return Held(known)
        return super()._elsewhere(token)

    def _attempt(self, who: object) -> Attempt:
        keep = functools.partial(self._keep, who)
        return Attempt(
            self._store, self._key, self._kept_for, self._owner, keep, self._clock, None, self._says
        )

    def _new_held(self, who: object, term: Term, grant: Grant, on_lost: Any) -> Held:
        lease = LockLease(self._store, term, grant, on_lost=on_lost, clock=self._clock)
        return Held(lease, who, coroutine())


@functools.cache
def _threads(kind: type[threading.local]) -> Any:
    """Return the object that has another ``marker`` for each thread, which no later thread gets."""

    def mark(thread: Any) -> None:
        thread.marker = object()

    return type("Threads", (kind,), {"__init__": mark})()

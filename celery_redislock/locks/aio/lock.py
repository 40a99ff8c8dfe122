"""An exclusive lock for tasks of asyncio."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from celery_redislock.locks.aio.held import Held, check_on_lost, current_task
from celery_redislock.locks.aio.store import Store
from celery_redislock.locks.attempt import PAUSE, Attempt
from celery_redislock.locks.clock import boottime
from celery_redislock.locks.errors import LockNotHeld
from celery_redislock.locks.lock import NOT_CONTINUED, busy, elsewhere, while_alive
from celery_redislock.locks.naming import joint_name, names_of
from celery_redislock.locks.process import hostname
from celery_redislock.locks.store import Grant, Hold, Term
from celery_redislock.locks.terms import check_store, check_terms, check_token, refuse_others

__all__ = ["Lock", "TaskAttempt"]

#: Looks a second of all tasks of a loop that wait.
LOOKS = 500


@dataclass(eq=False, slots=True)
class TaskAttempt(Attempt):
    """A task's attempt to hold a lock: it holds up nobody while it waits.

    Attributes:
        waiting: how many tasks of the loop wait.
    """

    waiting: Callable[[], int] = field(kw_only=True)

    def _begin_to_wait(self) -> None:
        pass

    def _pause(self) -> float:
        # However many wait, their loop and their server have no more looks to make.
        return max(min(PAUSE, self.store.patience / 2), self.waiting() / LOOKS)


class Lock:
    """Exclusive access to one name, for as long as its process lives and renews it.

    ::

        store = aio.connect("redis://localhost:6379/0")
        async with Lock(store, "nightly-import") as lock:
            await lock.check()                       # raises LockLost
            await write(..., fence=lock.fence)

    The twin of :class:`celery_redislock.locks.Lock`: the same lock, the same line, the same lease. It is held
    by a *task* of asyncio. One object may be shared by tasks: each holds for itself, and may acquire again
    while it holds (it releases as often). A task that a holder starts does not hold. All methods are for the
    loop of the store.

    A task that is cancelled while it waits leaves the line. Where it is cancelled while a request is on its
    way, the hold that it may have left is released in the background.
    """

    def __init__(
        self,
        store: Store,
        name: str | list[str] | tuple[str, ...],
        *,
        ttl: float = 30.0,
        wait: float | None = 10.0,
        owner: str | None = None,
        token: str | None = None,
        auto_renew: bool = True,
        reentrant: bool = True,
        on_lost: Callable[["Lock"], object] | Literal["cancel"] | None = None,
        **others: NoReturn,
    ) -> None:
        """Name a lock; nothing is sent yet.

        Args:
            store: where it is kept, from :func:`celery_redislock.locks.aio.connect`.
            name: of the resource, or a list of names, as for a :class:`celery_redislock.locks.Lock`.
            ttl: seconds the hold outlives its holder's last renewal, from 0.001 to ten years.
            wait: seconds ``async with lock:`` waits before it raises :class:`LockBusy`; ``None`` for ever.
            owner: who holds, shown to those who are refused; host, process and task by default.
            token: of a hold that another task, thread or process has acquired, as for a
                :class:`celery_redislock.locks.Lock`.
            auto_renew: renew in the background every third of ``ttl``; otherwise :meth:`renew` does.
            reentrant: a task that holds it may acquire it again; otherwise that is a RuntimeError.
            on_lost: called once in the loop, with this lock, when the hold is found gone. ``"cancel"``
                cancels the task that holds; ``async with`` raises :class:`LockLost` then.
            others: none, as for a :class:`celery_redislock.locks.Lock`.

        Raises:
            LockOptionError: the name is empty, it or the owner is no text, or a time is not a number
                of seconds in range; or another library's word was used.
        """
        refuse_others(name, others)
        check_store(name, store, "verbs", "aio.connect")
        if token is not None:
            check_token(name, token)
        check_on_lost(name, on_lost)
        names = names_of(name)
        for each in names:
            check_terms(each, ttl=ttl, wait=wait, owner=owner)
        self.name = ", ".join(names)
        self._key = joint_name(names)
        self._store = store.joined if " " in self._key else store
        self._ttl = ttl
        self._wait = wait
        self._token = token
        self._owner = owner
        self._auto_renew = auto_renew
        self._reentrant = reentrant
        self._on_lost = while_alive(self, on_lost) if callable(on_lost) else on_lost
        self._holds: dict[asyncio.Task[Any], Held] = {}

    def __del__(self) -> None:
        """Renew no more what nobody is left to release."""
        for held in vars(self).get("_holds", {}).values():
            self._store.watchdog.unwatch(held.lease)

    async def acquire(self, timeout: float | None = None) -> bool:
        """Take the lock, waiting for it if need be; at once if this task holds it already.

        Args:
            timeout: seconds to wait, plus some bounded requests; ``None``: no limit; ``0`` or less: one try.

        Returns:
            Whether this task holds the lock now.

        Raises:
            LockUnavailable: the server cannot be reached. A lock that the server has granted is
                released in the background, as after any other error.
            LockKeyError: the key on the server is not a lock.
            LockOptionError: the timeout is no number of seconds.
            LockLoopError: the store belongs to another loop.
            RuntimeError: this task holds it, and ``reentrant`` is off.
            LockLost: this task holds it already, but that hold was lost; :meth:`release` it first. Or nobody
                holds it under the ``token``.
        """
        check_terms(self.name, timeout=timeout)
        return await self._wait_for(timeout) is None

    async def release(self) -> bool:
        """Release the lock; atomic, and only if this very hold still has it.

        It is carried out although the task is cancelled meanwhile.

        Returns:
            Whether it was still ours. It is ``False`` if it had been lost; nothing was touched then.

        Raises:
            LockNotHeld: this task does not hold the lock.
            LockUnavailable: the server cannot be reached; the lock is released in the background.
            LockKeyError: the key on the server is not a lock any more.
        """
        held = self._required()
        held.depth -= 1
        if held.depth:
            return held.lease.held
        self._holds.pop(held.task, None)
        return await held.end()

    async def renew(self, ttl: float | None = None) -> bool:
        """Set the remaining time back to the ttl, or to another one; atomic.

        Returns and raises as :meth:`celery_redislock.locks.Lock.renew`.
        """
        held = self._required()
        lease = held.lease
        if lease.lost:
            return False
        if ttl is not None:
            check_terms(self.name, ttl=ttl)
            lease.term = Term(lease.key, lease.token, ttl)
            # The server may shorten it, although no answer comes.
            lease.trust_for(ttl)
        term = lease.term
        try:
            answer = await self._store.ask(lambda verbs: verbs.renew([term]))
            lease.learn(answer.renewed[0], answer.sent_at, answer.answered_at, ttl=term.ttl)
        finally:
            if ttl is not None and self._auto_renew and lease.held:
                # Its next renewal was due by the old ttl.
                self._store.watchdog.watch(lease)
        return lease.held

    async def check(self) -> None:
        """Raise if the lock was lost; without a request while it can be trusted (see :meth:`Lease.check`).

        Raises:
            LockNotHeld: this task does not hold the lock.
            LockLost: it is gone; another holder may be running.
        """
        await self._required().check()

    def wait_lost(self) -> Coroutine[Any, Any, bool]:
        """Wait until this task's hold is lost; a task that it is handed to may wait as well.

        Returns:
            ``True`` when it is lost, ``False`` when it is released.

        Raises:
            LockNotHeld: this task does not hold the lock.
        """
        return self._required().await_loss()

    async def holder(self) -> Hold | None:
        """Return who holds the lock now, ``None`` if nobody does; one request.

        Raises as :meth:`celery_redislock.locks.Lock.holder`.
        """
        return await self._store.ask(lambda verbs: verbs.inspect(self._key))

    async def locked(self) -> bool:
        """Whether anybody holds the lock now, this task included; one request. Raises as :meth:`holder`."""
        return await self.holder() is not None

    @property
    def token(self) -> str | None:
        """What the server knows this hold by, to be handed to another ``Lock``; ``None`` if not held."""
        return None if (held := self._held) is None else held.lease.token

    @property
    def fence(self) -> int | None:
        """This hold's fencing token, larger than every earlier one of this lock; ``None`` if not held."""
        return None if (held := self._held) is None else held.lease.fence

    @property
    def held(self) -> bool:
        """Whether this task holds the lock and has not learnt that it is lost."""
        return (held := self._held) is not None and held.lease.held

    async def __aenter__(self) -> "Lock":
        refused = await self._wait_for(self._wait)
        if refused is not None:
            raise busy(self.name, refused)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (held := self._held) is None and error is not None:
            return  # its own error matters more
        held = self._required()
        await held.leave(self.release(), error)

    @property
    def _held(self) -> Held | None:
        """This task's hold, lost or not."""
        return self._holds.get(current_task())

    def _required(self) -> Held:
        if (held := self._held) is not None:
            return held
        if self._token is None:
            raise LockNotHeld(self.name, "task")
        return self._held_elsewhere(self._token)

    def _held_elsewhere(self, token: str) -> Held:
        """Return the hold of another task, thread or process, which is not trusted before it is renewed."""
        term = Term(self._key, token, self._ttl)
        return Held(self._store, term, elsewhere(term, boottime), on_lost=None, is_renewed=False)

    async def _wait_for(self, timeout: float | None) -> Hold | None:
        """Acquire within the timeout: ``None`` when held, else who held the lock at the last attempt."""
        if (held := self._held) is not None:
            if not self._reentrant:
                raise RuntimeError(f"this task holds the lock {self.name!r} already (reentrant=False)")
            # A lost hold is not replaced by a new one: the outer block would not learn of the loss.
            await held.check()
            held.depth += 1
            return None
        self._store.check_loop()
        if self._token is None:
            return await self._store.attempt(self._attempt().steps(timeout))
        lease = self._held_elsewhere(self._token).lease
        answer = await self._store.ask(lambda verbs: verbs.renew([lease.term]))
        if not answer.renewed[0]:
            raise lease.loss(NOT_CONTINUED)
        self._keep(lease.term, Grant(None, False, answer.sent_at, answer.answered_at))
        return None

    def _attempt(self) -> Attempt:
        """Return an attempt of this task to hold it."""
        return TaskAttempt(
            self._store.beside,
            self._key,
            self._ttl,
            self._owner or task_name(),
            self._keep,
            boottime,
            waiting=self._store.waiting,
        )

    def _keep(self, term: Term, grant: Grant) -> None:
        """Note a hold of this task, and have it renewed."""
        held = Held(self._store, term, grant, on_lost=self._on_lost, is_renewed=self._auto_renew)
        self._holds[held.task] = held


def task_name() -> str:
    """Return this task's name as an owner."""
    return f"{hostname()}:{os.getpid()}:{current_task().get_name()}"

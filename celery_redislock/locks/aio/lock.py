"""An exclusive lock for tasks of asyncio."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NoReturn

from celery_redislock.locks.aio.held import TaskHeld, current_task, entered_by
from celery_redislock.locks.aio.store import Store
from celery_redislock.locks.attempt import PAUSE, Attempt, Steps
from celery_redislock.locks.errors import LockNotHeld
from celery_redislock.locks.holding import Holding, checking
from celery_redislock.locks.lease import DRIFT
from celery_redislock.locks.process import hostname
from celery_redislock.store.store import Grant, Hold, LockStore, Term
from celery_redislock.wire.clock import boottime

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


class Lock(Holding[TaskHeld]):
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

    _kind = "task"
    _stores = ("verbs", "aio.connect")
    _store: Store
    _who = staticmethod(current_task)

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
        on_state: Callable[["Lock", str], object] | None = None,
        margin: float = DRIFT,
        lock_delay: float = 0.0,
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
            on_lost: called once in the loop, with this lock, when a hold that it has acquired, or continued
                by its ``token``, is found gone. ``"cancel"`` cancels the task that holds; ``async with``
                raises :class:`LockLost` then.
            on_state: called in the loop, with this lock and ``"unsure"`` when a renewal got no answer, or the
                deadline of the hold is near; with ``"held"`` when the server has confirmed it again; or with
                ``"lost"``. Each once, in order, until it is released.
            margin: part of the ttl, from 0.01 to 0.5, for which the hold is not trusted any more although the
                server keeps it, as for a :class:`celery_redislock.locks.Lock`.
            lock_delay: seconds, from 0 to ten years, for which the server keeps the lock beyond its ttl where
                its holder is gone, likewise. A release ends both.
            others: none, as for a :class:`celery_redislock.locks.Lock`.

        Raises:
            LockOptionError: the name is empty, it or the owner is no text, a number is out of its range,
                or the store or the token is none; or another library's word was used.
        """
        self._set_terms(
            store, name, others, ttl=ttl, wait=wait, owner=owner, token=token, auto_renew=auto_renew,
            reentrant=reentrant, on_lost=None if on_lost == "cancel" else on_lost, on_state=on_state,
            margin=margin, lock_delay=lock_delay,
        )  # fmt: skip
        if on_lost == "cancel":
            self._on_lost = on_lost
        #: How many blocks each task has entered and not left.
        self._blocks: dict[asyncio.Task[Any], int] = {}

    def acquire(self, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Take the lock, waiting for it if need be; at once if this task holds it already.

        The task that calls this holds it, also where another one awaits it, as in ``asyncio.wait_for()``
        before Python 3.12.

        Args:
            timeout: seconds to wait, plus some bounded requests; ``None``: no limit; ``0`` or less: one try.

        Returns:
            Whether this task holds the lock now.

        Raises:
            LockUnavailable: the server cannot be reached: at the first request, or when the time is up of one
                that waits in line. A lock that the server has granted is released in the background, as after
                any other error.
            LockKeyError: the key on the server is not a lock.
            LockOptionError: the timeout is no number of seconds; or the ``token`` is that of a reader, of a
                permit, or of a lock of other names.
            LockLoopError: the store belongs to another loop.
            RuntimeError: this task holds it, and ``reentrant`` is off.
            LockLost: this task holds it already, but that hold was lost; :meth:`release` it first. Or nobody
                holds it under the ``token``.
        """
        return self._acquired(self._acquiring(timeout))

    async def _acquired(self, steps: Steps[Hold | None]) -> bool:
        return await self._store.drive(steps) is None

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
        return await self._store.drive(self._releasing())

    async def renew(self, ttl: float | None = None) -> bool:
        """Set the remaining time back to the ttl, or to another one; atomic.

        Returns and raises as :meth:`celery_redislock.locks.Lock.renew`.
        """
        return await self._store.drive(self._renewing(ttl))

    async def check(self) -> None:
        """Raise if the lock was lost; without a request while it can be trusted (see :meth:`Lease.check`).

        Raises:
            LockNotHeld: this task does not hold the lock.
            LockLost: it is gone; another holder may be running.
        """
        await self._store.drive(checking(self._required().lease))

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

    async def __aenter__(self) -> "Lock":
        await self._store.drive(self._entering())
        task = current_task()
        self._blocks[task] = self._blocks.get(task, 0) + 1
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        task = current_task()
        if (entered := entered_by(task, self._blocks)) is None:
            raise LockNotHeld(self.name, self._kind)
        self._blocks[entered] -= 1
        if not self._blocks[entered]:
            del self._blocks[entered]
        if entered is not task and not self._hands_over(entered, task):
            return
        await self._store.drive(self._leaving(error))

    def _hands_over(self, entered: Any, task: Any) -> bool:
        """Let a task end what another one has entered; false where that one still has a block of it."""
        if (held := self._holds.pop(entered, None)) is None:
            return True
        is_left = held.depth == 1
        held.depth -= not is_left
        held.who = task if is_left else entered
        self._holds[held.who] = held
        return is_left

    def _joined(self, store: Store) -> Store:
        return store.joined

    def _beside_of(self, store: Store) -> LockStore:
        return store.beside

    def _attempt(self, who: Any) -> Attempt:
        return TaskAttempt(
            self._beside, self._key, self._kept_for, self._owner or owner_of(who), partial(self._keep, who),
            boottime, None, self._says, waiting=self._store.waiting,
        )  # fmt: skip

    def _new_held(self, who: Any, term: Term, grant: Grant, on_lost: Any) -> TaskHeld:
        held = TaskHeld(self._store, who, term, grant, on_lost=on_lost)
        held.lease.task = who
        return held


def owner_of(task: "asyncio.Task[Any]") -> str:
    """Return a task's name as an owner."""
    return f"{hostname()}:{os.getpid()}:{task.get_name()}"

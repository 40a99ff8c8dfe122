"""One hold, as the task of asyncio sees it that has it."""

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, Literal, TypeAlias

from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.locks.aio.store import Store
from celery_redislock.locks.lease import LockLease
from celery_redislock.locks.store import Grant, Term

__all__ = ["Held", "OnLost", "check_on_lost", "current_task"]

#: What is done about a loss: a callable is called in the loop; ``cancel`` cancels the task that holds.
OnLost: TypeAlias = Callable[[], object] | Literal["cancel"] | None

#: A task counts the requests to cancel it, since Python 3.11.
_COUNTS = hasattr(asyncio.Task, "uncancel")


class Held:
    """One task's hold: its lease, and what is done about its loss.

    Attributes:
        lease: of the hold.
        task: that has it.
        depth: how often the task has entered it.
        over: it has been released, or lost.
    """

    def __init__(self, store: Store, term: Term, grant: Grant, *, on_lost: OnLost, is_renewed: bool) -> None:
        """Note a hold of this task, and have it renewed."""
        task: Any = current_task()
        self.task = task
        self.depth = 1
        self.over = asyncio.Event()
        self._store = store
        self._on_lost = on_lost
        #: Of several counts of one hold, that which its lease tells of a loss.
        self._first = self
        self._is_cancelled = False
        #: Requests to cancel the task that others had made before.
        self._cancelling = task.cancelling() if _COUNTS else 0
        self.lease = LockLease(store.verbs, term, grant, on_lost=lambda _: store.tell(self._announce))
        if is_renewed:
            store.watchdog.watch(self.lease)

    def shared(self) -> "Held":
        """Return the same hold for another count of how often its task has entered it."""
        held = copy(self)
        held.depth = 1
        return held

    async def check(self) -> None:
        """As :meth:`Lease.check`, which sends a request only where the deadline has passed."""
        if not self.lease.trusted:
            await self._store.ask(lambda _: self.lease.check())

    async def await_loss(self) -> bool:
        """Wait until it is lost, or over: then the answer is ``False``."""
        await self.over.wait()
        return self.lease.lost

    def end(self) -> Awaitable[bool]:
        """Release it, as :meth:`Store.end`."""
        self.over.set()
        return self._store.end(self.lease)

    async def leave(self, release: Awaitable[bool], error: BaseException | None) -> None:
        """End a block that held: raise :class:`LockLost` where the block was not alone, and does not know."""
        try:
            released = await release
        except RedisLockError:
            if error is None:
                raise
            released = True  # in the background, or it expires; the body's own error matters more
        is_cancelled = self._takes_back()
        if (is_cancelled and isinstance(error, asyncio.CancelledError)) or (error is None and not released):
            raise self.lease.missed() from error

    def _announce(self) -> None:
        self.over.set()
        if self.lease.ended:
            return  # its task has released it meanwhile
        if self._on_lost == "cancel":
            self._is_cancelled = True
            self.task.cancel(f"the lease on {self.lease.key!r} was lost")
        elif self._on_lost is not None:
            self._on_lost()

    def _takes_back(self) -> bool:
        """Whether the task was cancelled because of this loss, and by nobody else: that is over then."""
        if not self._first._is_cancelled:
            return False
        self._first._is_cancelled = False
        return not _COUNTS or self.task.uncancel() <= self._cancelling


def check_on_lost(name: object, on_lost: object) -> None:
    """Raise :class:`LockOptionError` where nobody could do this about a loss."""
    if on_lost is not None and on_lost != "cancel" and not callable(on_lost):
        problem = f"on_lost={on_lost!r} is neither a callable nor 'cancel'"
        raise LockOptionError(repr(name), [problem])


def current_task() -> "asyncio.Task[Any]":
    """Return the task that runs; raises RuntimeError where none does."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a lock of celery_redislock.locks.aio is held by a task: use it in a coroutine")
    return task

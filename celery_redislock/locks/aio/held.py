"""One hold, as the task of asyncio sees it that has it."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal, TypeAlias

from celery_redislock.locks.aio.store import Store
from celery_redislock.locks.holding import Held
from celery_redislock.locks.lease import LockLease
from celery_redislock.store.store import Grant, Term

#: What is done about a loss: a callable is called in the loop; ``cancel`` cancels the task that holds.
OnLost: TypeAlias = Callable[[], object] | Literal["cancel"] | None

#: A task counts the requests to cancel it, since Python 3.11.
_COUNTS = hasattr(asyncio.Task, "uncancel")


class TaskLease(LockLease):
    """The lease of a task, or of a Permit.

    Attributes:
        task: only this one can release it; ``None``: any task of its loop.
        loop: of the store.
    """

    task: "asyncio.Task[Any] | None" = None
    loop: asyncio.AbstractEventLoop

    @property
    def orphaned(self) -> str:
        """As of a :class:`Lease`."""
        if self.loop.is_closed():
            return "its event loop is closed"
        if self.task and self.task.done():
            return f"its task {self.task.get_name()} is done"
        return super().orphaned


class TaskHeld(Held):
    """One task's hold: its lease, and what is done about its loss.

    Attributes:
        over: it has been released, or lost.
    """

    who: Any
    lease: TaskLease

    def __init__(self, store: Store, task: Any, term: Term, grant: Grant, *, on_lost: OnLost) -> None:
        """Note a hold of a task."""
        self.over = asyncio.Event()
        self._store = store
        self._on_lost = on_lost
        #: Has an item where the task has been cancelled; one for all counts of a hold, which are copies.
        self._cancelled: list[None] = []
        #: Requests to cancel the task that others had made before.
        self._cancelling = task.cancelling() if _COUNTS else 0
        lease = TaskLease(store.verbs, term, grant, on_lost=lambda _: store.tell(self._announce))
        lease.loop = store.loop
        super().__init__(lease, task)

    async def await_loss(self) -> bool:
        """Wait until it is lost, or over: then the answer is ``False``."""
        await self.over.wait()
        return self.lease.lost

    def told(self, on_state: Callable[[str], None] | None) -> Callable[[str], None] | None:
        """Return what tells a state in the loop, whichever thread learns of it."""
        return on_state and (lambda state: self._store.tell(partial(self._tell, on_state, state)))

    def _tell(self, on_state: Callable[[str], None], state: str) -> None:
        if not self.lease.ended:
            on_state(state)

    def ends(self) -> None:
        """Note that it is about to be released, and tell who waits for its end."""
        self.over.set()

    def _announce(self) -> None:
        self.over.set()
        if self.lease.ended:
            return  # its task has released it meanwhile
        if self._on_lost == "cancel":
            if self.who.cancel(f"the lease on {self.lease.key!r} was lost"):  # it is not done
                self._cancelled.append(None)
        elif self._on_lost is not None:
            self._on_lost()

    def takes_back(self, error: BaseException | None) -> bool:
        """Take back the request to cancel the task, and tell whether nothing else has ended its block."""
        if not self._cancelled:
            return False
        self._cancelled.clear()
        is_its_own = not _COUNTS or self.who.uncancel() <= self._cancelling
        return is_its_own and isinstance(error, asyncio.CancelledError)


def entered_by(
    task: "asyncio.Task[Any]", tasks: Collection["asyncio.Task[Any]"]
) -> "asyncio.Task[Any] | None":
    """Return which of these tasks has entered the block that a task ends: normally itself.

    Generators that were left, and exit stacks, may be closed in another task: then it is one that is done, or
    the only one. ``None`` where it may be any of several.
    """
    if task in tasks:
        return task
    done = [each for each in tasks if each.done()]
    return next(iter(done or tasks), None) if done or len(tasks) == 1 else None


def current_task() -> "asyncio.Task[Any]":
    """Return the task that runs; raises RuntimeError where none does."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a lock of celery_redislock.locks.aio is held by a task: use it in a coroutine")
    return task

"""A read-write lock for tasks of asyncio."""

from collections.abc import Callable
from typing import Any, Literal, NoReturn

from celery_redislock.locks.aio.held import TaskHeld
from celery_redislock.locks.aio.lock import Lock
from celery_redislock.locks.aio.store import Store
from celery_redislock.locks.readwrite import Reading, Writing
from celery_redislock.locks.terms import refuse_others


class ReadWriteLock:
    """Many readers of one name, or one writer; each for as long as its process lives and renews it.

    ::

        book = ReadWriteLock(store, "price-list")
        async with book.read:
            await look_up(...)
        async with book.write as lock:
            await write(..., fence=lock.fence)
            await lock.downgrade()          # others may read from now on
            await report(...)

    The twin of :class:`celery_redislock.locks.ReadWriteLock`, with the same rules for a task as that has for
    a thread. Its sides are Locks of this package.

    Attributes:
        read: the side of those that read.
        write: the side of the one that writes.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        ttl: float = 30.0,
        wait: float | None = 10.0,
        owner: str | None = None,
        auto_renew: bool = True,
        on_lost: Callable[[Lock], object] | Literal["cancel"] | None = None,
        **others: NoReturn,
    ) -> None:
        """Name a lock; nothing is sent yet. The arguments are those of a Lock, for both sides."""
        refuse_others(repr(name), others)
        side: Any = {"ttl": ttl, "wait": wait, "owner": owner, "auto_renew": auto_renew}
        self.read = Reader(store, name, on_lost=on_lost, **side)
        self.write = Writer(store, name, on_lost=on_lost, **side)
        self.read.writer = self.write
        self.write.reader = self.read


class Reader(Reading[TaskHeld], Lock):
    """The side of those that read."""

    def _hands_over(self, entered: Any, task: Any) -> bool:
        held = self._holds.get(entered)
        writes = self.writer._holds.get(entered)
        if held is None or writes is None or writes.lease is not held.lease:
            return super()._hands_over(entered, task)
        held.depth -= 1
        if not held.depth:
            del self._holds[entered]
        return False  # the block of its write goes on


class Writer(Writing[TaskHeld], Lock):
    """The side of the one that writes: a Lock that can be downgraded."""

    reader: "Reader"

    def _hands_over(self, entered: Any, task: Any) -> bool:
        is_left = super()._hands_over(entered, task)
        return self.reader._hands_over(entered, task) if is_left and task not in self._holds else is_left

    async def downgrade(self) -> bool:
        """Read on under the same token, and let others read: ``read`` is held from now on, and not ``write``.

        Atomic, and carried out although the task is cancelled. Those who wait to read start if they are first
        in line.

        Returns:
            Whether it was still ours.

        Raises:
            RuntimeError: this task does not hold the write, or has entered it more than once.
            LockUnavailable: the server cannot be reached: it is repeated in the background, so others may
                read from now on, or soon.
            LockKeyError: the key on the server is not a lock any more.
        """
        return await self._store.drive(self._downgrading())

    async def __aenter__(self) -> "Writer":
        await super().__aenter__()
        return self

"""A read-write lock for tasks of asyncio."""

import asyncio
import os
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from celery_redislock.exceptions import LockUpgradeError
from celery_redislock.locks.aio.lock import Lock
from celery_redislock.locks.aio.store import Store
from celery_redislock.locks.attempt import Attempt
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.readwrite import READERS
from celery_redislock.locks.store import Hold
from celery_redislock.locks.terms import refuse_others

__all__ = ["ReadWriteLock"]


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
        refuse_others(name, others)
        side: Any = {"ttl": ttl, "wait": wait, "owner": owner, "auto_renew": auto_renew}
        self.read = Reader(store, name, on_lost=on_lost, **side)
        self.write = Writer(store, name, on_lost=on_lost, **side)
        self.read.writer = self.write
        self.write.reader = self.read


class Reader(Lock):
    """The side of those that read."""

    writer: "Writer"

    @property
    def fence(self) -> None:
        """Nothing orders those that read: they change nothing."""
        return

    async def release(self) -> bool:
        reads = self._required()
        writes = self.writer._held
        if writes is None or writes.lease is not reads.lease:
            return await super().release()
        reads.depth -= 1
        if not reads.depth:
            del self._holds[reads.task]
        return reads.lease.held

    async def _wait_for(self, timeout: float | None) -> Hold | None:
        writes = self.writer._held
        if writes is None or self._held is not None:
            return await super()._wait_for(timeout)
        await writes.check()
        self._holds[writes.task] = writes.shared()
        return None

    def _attempt(self) -> Attempt:
        attempt = super()._attempt()
        attempt.limit = READERS
        attempt.says = f',"mode":"read","limit":{READERS}'
        return attempt


class Writer(Lock):
    """The side of the one that writes: a Lock that can be downgraded."""

    reader: Reader

    async def downgrade(self) -> bool:
        """Read on under the same token, and let others read: ``read`` is held from now on, and not ``write``.

        Atomic, and carried out although the task is cancelled. Those who wait to read start if they are first
        in line.

        Returns:
            Whether it was still ours.

        Raises:
            RuntimeError: this task does not hold the write, or has entered it more than once.
            LockUnavailable: the server cannot be reached: from now on others may read, or not.
            LockKeyError: the key on the server is not a lock any more.
        """
        writes = self._required()
        if writes.depth > 1:
            raise RuntimeError(
                f"this task has entered the write lock {self.name!r} {writes.depth} times; "
                "release the inner ones first"
            )
        lease = writes.lease
        # First: the server may let others read, although no answer comes.
        del self._holds[writes.task]
        self.reader._holds.setdefault(writes.task, writes)
        facts = self.reader._attempt().facts(os.getpid())
        return await asyncio.shield(self._downgraded(lease, facts))

    async def _downgraded(self, lease: Lease, facts: str) -> bool:
        trusted = lease.trusted
        answer = await self._store.ask(lambda verbs: verbs.downgrade(*lease.term, facts=facts))
        if not answer.gave_back(trusted=trusted):
            lease.lose("it was gone when it should be downgraded")
        return lease.held

    async def release(self) -> bool:
        writes = self._required()
        reads = self.reader._held
        if writes.depth == 1 and reads is not None and reads.lease is writes.lease:
            return await self.downgrade()
        return await super().release()

    async def __aenter__(self) -> "Writer":
        await super().__aenter__()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._held is None and self.reader._held is not None:
            await self.reader.__aexit__(kind, error, trace)  # it was downgraded in its block
        else:
            await super().__aexit__(kind, error, trace)

    async def _wait_for(self, timeout: float | None) -> Hold | None:
        if self._held is None and self.reader._held is not None:
            raise LockUpgradeError(self.name)
        return await super()._wait_for(timeout)

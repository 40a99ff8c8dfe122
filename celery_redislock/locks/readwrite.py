"""A read-write lock for anybody: many that read, or one that writes, without Celery."""

import os
from collections.abc import Callable
from typing import Any, NoReturn

from celery_redislock.exceptions import LockUpgradeError
from celery_redislock.locks.attempt import Attempt
from celery_redislock.locks.clock import Clock, boottime
from celery_redislock.locks.lock import Entry, Lock
from celery_redislock.locks.store import Hold, LockStore
from celery_redislock.locks.terms import check_lines, check_store, refuse_others

__all__ = ["ReadWriteLock"]

#: More than will ever read at once.
READERS = 1_000_000_000


class ReadWriteLock:
    """Many readers of one name, or one writer; each for as long as its process lives and renews it.

    ::

        book = ReadWriteLock(store, "price-list")
        with book.read:
            look_up(...)
        with book.write as lock:
            write(..., fence=lock.fence)
            lock.downgrade()          # others may read from now on
            report(...)

    Its sides, ``read`` and ``write``, are Locks: each has the whole interface of
    :class:`~celery_redislock.locks.Lock`. They share one line, in order: those who come to read behind a
    writer that waits, wait behind it; so nobody starves. ``Lock(store, name)`` is a writer, too.

    A thread may enter a side again, also to read while another writer waits, and may read while it writes:
    that asks nobody. When it has released the write and reads on, others may read beside it. It may not come
    from reading to writing: two that do so would wait for each other. Only ``write`` has a fence.

    Attributes:
        read: the side of those that read.
        write: the side of the one that writes.
    """

    def __init__(
        self,
        store: LockStore,
        name: str,
        *,
        ttl: float = 30.0,
        wait: float | None = 10.0,
        owner: str | None = None,
        auto_renew: bool = True,
        on_lost: Callable[[Lock], None] | None = None,
        clock: Clock = boottime,
        **others: NoReturn,
    ) -> None:
        """Name a lock; nothing is sent yet. These arguments are those of a Lock, for both sides.

        Raises:
            LockOptionError: as a Lock; and the store is a quorum of servers.
        """
        refuse_others(name, others)
        check_store(name, store, "least_ttl", "connect")
        check_lines(name, store)
        side: Any = {"ttl": ttl, "wait": wait, "owner": owner, "auto_renew": auto_renew}
        side |= {"on_lost": on_lost, "clock": clock}
        self.read = Reader(store, name, **side)
        self.write = Writer(store, name, **side)
        self.read.writer = self.write
        self.write.reader = self.read


class Reader(Lock):
    """The side of those that read."""

    writer: "Writer"

    @property
    def fence(self) -> None:
        """Nothing orders those that read: they change nothing."""
        return

    def release(self) -> bool:
        entry = self._required()
        writes = self.writer._entry
        if writes is None or writes.lease is not entry.lease:
            return super().release()
        entry.depth -= 1
        if not entry.depth:
            del self._holds[self._thread.marker]
        return entry.lease.held

    def _wait_for(self, timeout: float | None) -> Hold | None:
        writes = self.writer._entry
        if writes is None or self._entry is not None:
            return super()._wait_for(timeout)
        self.writer._wait_for(timeout)  # it is held, so that nothing is sent
        writes.depth -= 1
        self._holds[self._thread.marker] = Entry(writes.lease, writes.coroutine, writes.pid)
        return None

    def _attempt(self) -> Attempt:
        attempt = super()._attempt()
        attempt.limit = READERS
        attempt.says = f',"mode":"read","limit":{READERS}'
        return attempt


class Writer(Lock):
    """The side of the one that writes: a :class:`~celery_redislock.locks.Lock` that can be downgraded."""

    reader: Reader

    def downgrade(self) -> bool:
        """Read on under the same token, and let others read: ``read`` is held from now on, and not ``write``.

        Atomic. Those who wait to read start if they are first in line.

        Returns:
            Whether it was still ours.

        Raises:
            LockNotHeld: this thread does not hold the write.
            RuntimeError: it has entered it more than once.
            LockUnavailable: the server cannot be reached: from now on others may read, or not.
            LockKeyError: the key on the server is not a lock any more.
        """
        entry = self._required()
        if entry.depth > 1:
            raise RuntimeError(
                f"this thread has entered the write lock {self.name!r} {entry.depth} times; "
                "release the inner ones first"
            )
        lease = entry.lease
        term = lease.term
        # First: the server may let others read, although no answer comes.
        thread = self._thread.marker
        del self._holds[thread]
        self.reader._holds.setdefault(thread, Entry(lease, entry.coroutine, entry.pid))
        trusted = lease.trusted
        facts = self.reader._attempt().facts(os.getpid())
        answer = self._store.downgrade(term.name, term.token, term.ttl, facts=facts)
        if not answer.gave_back(trusted=trusted):
            lease.lose("it was gone when it should be downgraded")
        return lease.held

    def release(self) -> bool:
        entry = self._required()
        reads = self.reader._entry
        if entry.depth == 1 and reads is not None and reads.lease is entry.lease:
            return self.downgrade()
        return super().release()

    def __enter__(self) -> "Writer":
        super().__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._entry is None and self.reader._entry is not None:
            self.reader.__exit__(kind, error, trace)  # it was downgraded in its block
        else:
            super().__exit__(kind, error, trace)

    def _wait_for(self, timeout: float | None) -> Hold | None:
        if self._entry is None and self.reader._entry is not None:
            raise LockUpgradeError(self.name)
        return super()._wait_for(timeout)

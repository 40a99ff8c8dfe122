"""A read-write lock for anybody: many that read, or one that writes, without Celery."""

import os
from collections.abc import Callable
from copy import copy
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NoReturn

from celery_redislock.exceptions import LockUpgradeError
from celery_redislock.locks.attempt import Attempt, Steps, drive, owe, settled
from celery_redislock.locks.holding import H, Held, Holding, checking
from celery_redislock.locks.lease import LockLease
from celery_redislock.locks.lock import Lock
from celery_redislock.locks.terms import check_lines, check_store, refuse_others
from celery_redislock.store.store import Hold, LockStore
from celery_redislock.wire.clock import Clock, boottime

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
        refuse_others(repr(name), others)
        check_store(name, store, "keeps_lines", "connect")
        check_lines(name, store)
        side: Any = {"ttl": ttl, "wait": wait, "owner": owner, "auto_renew": auto_renew}
        side |= {"on_lost": on_lost, "clock": clock}
        self.read = Reader(store, name, **side)
        self.write = Writer(store, name, **side)
        self.read.writer = self.write
        self.write.reader = self.read


class Reading(Holding[H]):
    """What those that read do otherwise, step by step."""

    writer: "Writing[H]"

    @property
    def fence(self) -> None:
        """Nothing orders those that read: they change nothing."""
        return

    def _releasing(self) -> "Steps[bool]":
        held = self._required()
        if held.depth > 1 or not self._is_shared(held.lease):
            return super()._releasing()
        del self._holds[held.who]
        return settled(held.lease.held)

    def _acquiring(self, timeout: float | None) -> "Steps[Hold | None]":
        writes = self.writer._held
        if writes is None or self._held is not None:
            return super()._acquiring(timeout)
        return self._reading_what_is_written(writes)

    def _reading_what_is_written(self, writes: H) -> "Steps[None]":
        self._insist(writes)
        yield from checking(writes.lease)
        self._holds[writes.who] = reads = copy(writes)
        reads.depth = 1
        reads.block = None

    def _is_shared(self, lease: LockLease) -> bool:
        return (writes := self.writer._held) is not None and writes.lease is lease

    def _attempt(self, who: Any) -> Attempt:
        attempt = super()._attempt(who)
        attempt.limit = READERS
        attempt.says = f',"mode":"read","limit":{READERS}'
        return attempt


class Writing(Holding[H]):
    """What the one that writes does otherwise, step by step."""

    reader: Reading[H]

    def _downgrading(self) -> "Steps[bool]":
        held = self._required()
        if held.depth > 1:
            raise RuntimeError(
                f"this {self._kind} has entered the write lock {self.name!r} {held.depth} times; "
                "release the inner ones first"
            )
        lease = held.lease
        term = lease.term
        # First: the server may let others read, although no answer comes. One side or the other has what is
        # renewed, wherever this is interrupted.
        self.reader._holds.setdefault(held.who, held)
        del self._holds[held.who]
        trusted = lease.trusted
        facts = self.reader._attempt(held.who).facts(os.getpid())
        downgrade = methodcaller("downgrade", *term, facts=facts)
        try:
            answer = yield downgrade
        except BaseException as error:
            owe(self._beside, term, error, downgrade)
            raise
        if not answer.gave_back(trusted=trusted):
            lease.lose("it was gone when it should be downgraded")
        return lease.held

    def _releasing(self) -> "Steps[bool]":
        held = self._required()
        if self.reader._held is held:
            # Its downgrade was interrupted: nobody has entered the read.
            del self.reader._holds[held.who]
        is_last = held.depth == 1 and self._is_shared(held.lease)
        return self._downgrading() if is_last else super()._releasing()

    def _leaving(self, error: BaseException | None) -> "Steps[None]":
        yield from self.reader._leaving(error) if self._depth < 0 else super()._leaving(error)

    @property
    def _depth(self) -> int:
        """As of a Lock; below zero: how often it has entered the read to which this was downgraded."""
        return super()._depth or -self.reader._depth

    def _leave_anyway(self, depth: int | None, error: BaseException) -> None:
        if (self._depth if depth is None else depth) < 0:
            self.reader._leave_anyway(depth and -depth, error)
        else:
            super()._leave_anyway(depth, error)

    def _is_shared(self, lease: LockLease) -> bool:
        return (reads := self.reader._held) is not None and reads.lease is lease

    def _acquiring(self, timeout: float | None) -> "Steps[Hold | None]":
        if self._held is None and self.reader._held is not None:
            raise LockUpgradeError(self.name)
        return super()._acquiring(timeout)


class Reader(Reading[Held], Lock):
    """The side of those that read."""


class Writer(Writing[Held], Lock):
    """The side of the one that writes: a :class:`~celery_redislock.locks.Lock` that can be downgraded."""

    def downgrade(self) -> bool:
        """Read on under the same token, and let others read: ``read`` is held from now on, and not ``write``.

        Atomic. Those who wait to read start if they are first in line.

        Returns:
            Whether it was still ours.

        Raises:
            LockNotHeld: this thread does not hold the write.
            RuntimeError: it has entered it more than once.
            LockUnavailable: the server cannot be reached: it is repeated in the background, so others may
                read from now on, or soon.
            LockKeyError: the key on the server is not a lock any more.
        """
        return drive(self._store, self._downgrading())

    if TYPE_CHECKING:  # it is a Lock's, which looks at the frame that calls it

        def __enter__(self) -> "Writer":
            """As of a Lock."""

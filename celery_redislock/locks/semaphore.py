"""A counting semaphore for anybody: so many holds of one name at once, without Celery."""

import os
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn
from weakref import ref

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.attempt import Attempt, Steps, drive, ending, settle_anyway
from celery_redislock.locks.block import INTERRUPTED, Block
from celery_redislock.locks.holding import Held, leaving
from celery_redislock.locks.lease import Lease, LockLease, call_back
from celery_redislock.locks.limits import A_YEAR, replace_limit
from celery_redislock.locks.naming import lock_name
from celery_redislock.locks.terms import check_lines, check_store, check_terms, check_token, refuse_others
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.store.store import Grant, Hold, Limit, LockStore, Term
from celery_redislock.wire.clock import Clock, boottime


class Permit:
    """One hold of a :class:`Semaphore`: one of its places, or several, with a lease of its own.

    Any thread may use it, and release it; so may another process, by its token
    (:meth:`Semaphore.release`). It is renewed until it is released, or lost, or nobody refers to it any more.

    Attributes:
        name: of the semaphore.
        permits: the places that it takes.
        lease: its lease (:class:`~celery_redislock.locks.Lease`).
    """

    def __init__(self, semaphore: "Semaphore", permits: int, lease: LockLease) -> None:
        """Made by :meth:`Semaphore.acquire`."""
        self.name = semaphore.name
        self.permits = permits
        self.lease = lease
        self._semaphore = semaphore
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Permit {self.token} of {self.name!r}, {self.permits} of its places>"

    @property
    def token(self) -> str:
        """The term of holding, as ``holders()`` tells it."""
        return self.lease.token

    @property
    def held(self) -> bool:
        """Neither released by this object nor known to be lost; a fork holds nothing of its parent's."""
        return self._pid == os.getpid() and self.lease.held

    def check(self) -> None:
        """Raise :class:`LockLost` if it is lost or was released; as :meth:`Lease.check`.

        Raises:
            RuntimeError: this process is a fork of the one that holds it.
        """
        self._insist_on_process()
        self.lease.check()

    def release(self) -> bool:
        """Release its places; atomic, and only if it still has them. A second release changes nothing.

        Returns:
            Whether it still had them.

        Raises:
            LockUnavailable: the server cannot be reached; they are released in the background.
            LockKeyError: the key on the server is not a lock any more.
            RuntimeError: this process is a fork of the one that holds it.
        """
        self._insist_on_process()
        return drive(self._semaphore._store, self._releasing())

    def _releasing(self) -> "Steps[bool]":
        return self._semaphore._ending(self.lease)

    def _insist_on_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                f"{self!r} is held by process {self._pid}, of which this one is a fork: release it there, or "
                "by its token, Semaphore.release(token)"
            )

    def __enter__(self) -> "Permit":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if self._pid != os.getpid():
                return  # a fork, whose parent entered the block
            drive(self._semaphore._store, leaving(Held(self.lease), self._releasing(), error))
        except BaseException as interrupted:
            self._end_anyway(interrupted)
            raise

    def _end_anyway(self, error: BaseException) -> None:
        settle_anyway(self._semaphore._beside, self.lease, error)


class Permits:
    """What a semaphore does, step by step: for threads, and for tasks of asyncio."""

    # What threads and tasks have each in its own way.
    _attempt: Callable[[Callable[[Term, Grant], object]], Attempt]
    _permit: Callable[[int, Term, Grant], Any]

    def _set_terms(
        self, store: Any, beside: LockStore, name: str, limit: int, others: Mapping[str, object], *,
        ttl: float, wait: float | None, owner: str | None, auto_renew: bool,
        on_lost: Callable[[Any], object] | None,
    ) -> None:  # fmt: skip
        refuse_others(repr(name), others)
        check_lines(name, beside)
        check_terms(
            name, ttl=ttl, wait=wait, owner=owner, on_lost=on_lost, limit=limit
        )  # fmt: skip
        self.name = name
        self.limit = limit
        self._key = lock_name(name)
        self._store = store
        self._beside = beside
        self._ttl = ttl
        self._wait = wait
        self._owner = owner
        self._auto_renew = auto_renew
        self._on_lost: Any = on_lost

    def _acquiring(self, permits: int, timeout: float | None, kept: list[Any]) -> "Steps[Any]":
        """Acquire within the timeout: the hold, or else who held it at the last request.

        ``kept`` gets the hold first.
        """
        check_terms(self.name, timeout=timeout, permits=permits)
        attempt = self._attempt(lambda term, grant: kept.append(self._permit(permits, term, grant)))
        attempt.limit = self.limit
        attempt.says = f',"limit":{self.limit}'
        if permits > 1:
            attempt.says += f',"permits":{permits}'
            attempt.may_wait = partial(self._check_limit, permits)
            yield attempt.may_wait
        refused = yield from attempt.steps(timeout)
        return kept[-1] if refused is None else refused

    def _entering(self, kept: list[Any]) -> "Steps[Any]":
        found = yield from self._acquiring(1, self._wait, kept)
        if isinstance(found, Hold):
            from celery_redislock.locks.errors import LockBusy  # noqa: PLC0415  imports redis

            raise LockBusy(self.name, found.owner, found.expires_in)
        return found

    def _ending(self, lease: Lease) -> "Steps[bool]":
        """Release a hold of this process, once; tell whether it was still ours."""
        return False if lease.ended else (yield from ending(self._beside, lease))

    def _releasing(self, token: str) -> "Steps[bool]":
        check_token(self.name, token)
        lease = watchdog_of(self._beside).watched(token)
        if lease is not None and lease.key == self._key:
            return (yield from self._ending(lease))
        return bool((yield lambda store: store.release(self._key, token)).released)

    def _holders(self, store: LockStore) -> tuple[Hold, ...]:
        return tuple(hold for hold in store.holders(self._key) if not hold.is_period)

    def _available(self, store: LockStore) -> int:
        told = store.limit(self._key)
        holders = self._holders(store)
        limits = [self.limit, *(int(hold.facts.get("limit", 1)) for hold in holders)]
        taken = sum(int(hold.facts.get("permits", 1)) for hold in holders)
        return max(0, (min(limits) if told is None else told.value) - taken)

    def _waiting(self, store: LockStore) -> tuple[Hold, ...]:
        return tuple(waiter.hold for waiter in store.waiting(self._key)[1])

    def _setting(
        self, limit: int | None, for_: float | timedelta, by: str | None
    ) -> Callable[[LockStore], Limit | None]:
        seconds = for_.total_seconds() if isinstance(for_, timedelta) else for_
        check_terms(self.name, for_=seconds, by=by, limit=1 if limit is None else limit)
        return lambda store: replace_limit(store, [self._key], limit, seconds, by=by)

    def _check_limit(self, permits: int, store: LockStore) -> None:
        """Raise :class:`LockOptionError` where so many places will never be free."""
        told = store.limit(self._key)
        limit = self.limit if told is None else told.value
        if permits > limit:
            problem = f"permits={permits} is more than its limit, {limit}; ask for fewer, or raise the limit"
            raise LockOptionError(repr(self.name), [problem])


class Semaphore(Permits):
    """At most ``limit`` holds of one name at once, each for as long as its process lives and renews it.

    ::

        store = connect("redis://localhost:6379/0")
        seats = Semaphore(store, "licence", 3)
        with seats.acquire(timeout=10.0) or fail():   # or: with seats:
            ...

    Strictly first come, first served: who asks for many places is not overtaken by those that ask for one.
    Each ``acquire`` is a hold of its own, also of one thread, with a lease by the server's clock: that of a
    killed process returns one ``ttl`` after its last renewal, while the others go on. Semaphores, Locks and
    tasks with a ``lock_limit`` of one name share holders and line; a Lock is alone. While they disagree about
    the limit, the least among the holders counts. There is no fence: it orders those that come one by one.

    One object may be shared by threads. Not for coroutines that wait, which would hold up their loop;
    ``celery_redislock.locks.aio`` is for them.
    """

    def __init__(
        self,
        store: LockStore,
        name: str,
        limit: int,
        *,
        ttl: float = 30.0,
        wait: float | None = 10.0,
        owner: str | None = None,
        auto_renew: bool = True,
        on_lost: Callable[[Permit], None] | None = None,
        clock: Clock = boottime,
        **others: NoReturn,
    ) -> None:
        """Name a semaphore; nothing is sent yet.

        Args:
            store: where it is kept, from :func:`celery_redislock.locks.connect`.
            name: of the resource, as for a :class:`~celery_redislock.locks.Lock`.
            limit: so many places, from 1 to 10,000. :meth:`set_limit` replaces it for all processes.
            ttl: seconds a hold outlives its last renewal, as for a Lock.
            wait: seconds ``with semaphore:`` waits before it raises :class:`LockBusy`; ``None`` for ever.
            owner: who holds, shown to those who are refused; host, process and thread by default.
            auto_renew: renew each hold in the background every third of ``ttl``; else it ends with that.
            on_lost: called once with a hold that is found gone, in the thread that learns of it, normally
                the watchdog's.
            clock: injected by tests.
            others: none, as for a Lock.

        Raises:
            LockOptionError: the name is no text or empty, the limit no whole number in range, or a time is
                not a number of seconds in range.
        """
        check_store(name, store, "keeps_lines", "connect")
        self._set_terms(
            store, store, name, limit, others, ttl=ttl, wait=wait, owner=owner, auto_renew=auto_renew,
            on_lost=on_lost,
        )  # fmt: skip
        self._clock = clock
        self._entered: Any = threading.local()

    def acquire(self, permits: int = 1, *, timeout: float | None = None) -> Permit | None:
        """Take so many places, all or none, waiting for them if need be.

        Args:
            permits: places, from 1 to the limit.
            timeout: seconds to wait, plus some bounded requests; ``None``: no limit; ``0`` or less: one try.

        Returns:
            The hold, or ``None`` where it could not be had in time.

        Raises:
            LockOptionError: more places than there are, or than :meth:`set_limit` has left while it waited;
                or a time is no number of seconds.
            LockUnavailable: the server cannot be reached, as for a Lock; what it has granted is released in
                the background.
            LockKeyError: the key on the server is not a lock.
        """
        kept = drive(self._store, self._acquiring(permits, timeout, []))
        return kept if isinstance(kept, Permit) else None

    def release(self, token: str) -> bool:
        """Release the places of a hold, wherever it was acquired; tell whether it still had them.

        Its process learns of that as of a loss, unless it is this one. Raises as :meth:`Permit.release`.
        """
        return drive(self._store, self._releasing(token))

    def holders(self) -> tuple[Hold, ...]:
        """Return who holds places now, the one whose hold ends first before the others; one request.

        The fact ``permits`` of a hold says how many places it takes, where they are several.

        Raises:
            LockUnavailable: the server cannot be reached.
            LockKeyError: the key on the server is not a lock.
        """
        return self._holders(self._store)

    def available(self) -> int:
        """Return how many places are free now, also if somebody waits for them; two requests."""
        return self._available(self._store)

    def waiting(self) -> tuple[Hold, ...]:
        """Return who waits in line, in order, as they will hold it; one request for 100."""
        return self._waiting(self._store)

    def set_limit(
        self, limit: int | None, *, for_: float | timedelta = A_YEAR, by: str | None = None
    ) -> Limit | None:
        """Replace the limit, at once and in all processes; ``None`` takes that back. One request.

        Raised, it lets those start who wait. Lowered, it ends no hold. It is what ``celery redislock limit``
        sets and ``explain`` tells; tasks with a ``lock_limit`` of this name obey it, too.

        Args:
            limit: so many places, from 1 to 10,000.
            for_: seconds, or a ``timedelta``, after which the processes' own limits count again; a year.
            by: who sets it, as ``explain`` tells it.

        Returns:
            What is set now.

        Raises:
            LockOptionError: a value is out of range, or ``by`` no text.
            LockUnavailable: the server cannot be reached.
        """
        return self._setting(limit, for_, by)(self._store)

    def __enter__(self) -> Permit:
        block = Block.entered()
        blocks = self._entered.__dict__.setdefault("blocks", [])
        for former, permit in blocks:
            if former.is_over(block):
                permit._end_anyway(INTERRUPTED)
        kept: list[Permit] = []
        try:
            blocks.append((block, drive(self._store, self._entering(kept))))
        except BaseException as interrupted:
            for each in kept:
                each._end_anyway(interrupted)
            raise
        return kept[-1]

    def __exit__(self, *error: Any) -> None:
        try:
            permit = self._permit_of(sys._getframe(1))
            permit.__exit__(*error)
        except BaseException as interrupted:
            # A signal's, wherever it came.
            permit = locals().get("permit") or self._permit_of(sys._getframe(1))
            permit._end_anyway(interrupted)
            raise
        finally:
            blocks = self._entered.blocks
            blocks[:] = [each for each in blocks if not each[1].lease.ended]

    def _permit_of(self, frame: object) -> Permit:
        """Return what is held by the block of this thread that a frame leaves: its own last, or the last."""
        blocks = [each for each in self._entered.blocks if not each[1].lease.ended]
        found: Permit = next((each for each in reversed(blocks) if each[0].frame is frame), blocks[-1])[1]
        return found

    def _attempt(self, keep: Callable[[Term, Grant], object]) -> Attempt:
        return Attempt(self._store, self._key, self._ttl, self._owner, keep, self._clock)

    def _permit(self, permits: int, term: Term, grant: Grant) -> Permit:
        def announce(_lease: Lease) -> None:
            if self._on_lost is not None and (permit := known()) is not None:
                call_back(self._on_lost, permit)

        lease = LockLease(self._store, term, grant, on_lost=announce, clock=self._clock)
        permit = Permit(self, permits, lease)
        lease.keeper = known = ref(permit)  # its lease, which the watchdog has, must not keep it
        if self._auto_renew:
            watchdog_of(self._store).watch(lease)
        return permit

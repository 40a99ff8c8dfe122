"""A counting semaphore for tasks of asyncio."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NoReturn
from weakref import ref

from celery_redislock.locks.aio.held import OnLost, TaskHeld, current_task, entered_by
from celery_redislock.locks.aio.lock import TaskAttempt, owner_of
from celery_redislock.locks.aio.store import Store
from celery_redislock.locks.attempt import Attempt, Steps
from celery_redislock.locks.errors import LockNotHeld
from celery_redislock.locks.holding import leaving
from celery_redislock.locks.lease import call_back
from celery_redislock.locks.limits import A_YEAR
from celery_redislock.locks.semaphore import Permits
from celery_redislock.locks.terms import check_store
from celery_redislock.store.store import Grant, Hold, Limit, Term
from celery_redislock.wire.clock import boottime


class Permit:
    """One hold of a :class:`Semaphore`: one of its places, or several, with a lease of its own.

    Any task of the loop may use it, and release it. It is renewed until it is released, or lost, or nobody
    refers to it any more.

    Attributes:
        name: of the semaphore.
        permits: the places that it takes.
    """

    def __init__(self, semaphore: "Semaphore", permits: int, held: TaskHeld) -> None:
        """Made by :meth:`Semaphore.acquire`."""
        self.name = semaphore.name
        self._semaphore = semaphore
        self.permits = permits
        self._held = held

    def __repr__(self) -> str:
        return f"<Permit {self.token} of {self.name!r}, {self.permits} of its places>"

    @property
    def token(self) -> str:
        """The term of holding, as ``holders()`` tells it."""
        return self._held.lease.token

    @property
    def held(self) -> bool:
        """Neither released by this object nor known to be lost."""
        return self._held.lease.held

    async def check(self) -> None:
        """Raise :class:`LockLost` if it is lost or was released; no request while it can be trusted."""
        lease = self._held.lease
        if not lease.trusted:
            await self._semaphore._store.ask(lambda _: lease.check())

    async def wait_lost(self) -> bool:
        """Wait until it is lost (``True``), or released by this object (``False``)."""
        return await self._held.await_loss()

    async def release(self) -> bool:
        """Release its places; atomic, and only if it still has them. A second release changes nothing.

        It is carried out although the task is cancelled meanwhile.

        Returns:
            Whether it still had them.

        Raises:
            LockUnavailable: the server cannot be reached; they are released in the background.
            LockKeyError: the key on the server is not a lock any more.
        """
        return await self._semaphore._store.drive(self._releasing())

    async def __aenter__(self) -> "Permit":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        steps = leaving(self._held, self._releasing(), error)
        await self._semaphore._store.drive(steps)

    def _releasing(self) -> "Steps[bool]":
        if self._held.lease.ended:
            return False
        self._held.ends()
        return (yield from self._semaphore._ending(self._held.lease))


class Semaphore(Permits):
    """At most ``limit`` holds of one name at once, each for as long as its process lives and renews it.

    ::

        seats = Semaphore(store, "licence", 3)
        async with seats:                            # or: async with await seats.acquire():
            ...

    The twin of :class:`celery_redislock.locks.Semaphore`: the same places, the same line. Each ``acquire`` is
    a hold of its own, also of one task. All methods are for the loop of the store.
    """

    _store: Store

    def __init__(
        self,
        store: Store,
        name: str,
        limit: int,
        *,
        ttl: float = 30.0,
        wait: float | None = 10.0,
        owner: str | None = None,
        auto_renew: bool = True,
        on_lost: Callable[[Permit], object] | Literal["cancel"] | None = None,
        **others: NoReturn,
    ) -> None:
        """Name a semaphore; nothing is sent yet.

        Args:
            store: where it is kept, from :func:`celery_redislock.locks.aio.connect`.
            name: of the resource, as for a :class:`celery_redislock.locks.Lock`.
            limit: so many places, from 1 to 10,000. :meth:`set_limit` replaces it for all processes.
            ttl: seconds a hold outlives its last renewal, as for a Lock.
            wait: seconds ``async with semaphore:`` waits, then raises :class:`LockBusy`; ``None`` for ever.
            owner: who holds, shown to those who are refused; host, process and task by default.
            auto_renew: renew each hold in the background every third of ``ttl``; else it ends with that.
            on_lost: called once in the loop, with a hold that is found gone. ``"cancel"`` cancels the task
                that has acquired it; ``async with`` raises :class:`LockLost` then.
            others: none, as for a Lock.

        Raises:
            LockOptionError: the name is no text or empty, the limit no whole number in range, or a time is
                not a number of seconds in range.
        """
        check_store(name, store, "verbs", "aio.connect")
        self._set_terms(
            store, store.beside, name, limit, others, ttl=ttl, wait=wait, owner=owner, auto_renew=auto_renew,
            on_lost=None if on_lost == "cancel" else on_lost,
        )  # fmt: skip
        self._cancels = on_lost == "cancel"
        self._entered: dict[asyncio.Task[Any], list[Permit]] = {}

    async def acquire(self, permits: int = 1, *, timeout: float | None = None) -> Permit | None:
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
            LockLoopError: the store belongs to another loop.
        """
        kept = await self._store.drive(self._acquiring(permits, timeout, []))
        return kept if isinstance(kept, Permit) else None

    async def release(self, token: str) -> bool:
        """Release the places of a hold, wherever it was acquired; tell whether it still had them.

        Its process learns of that as of a loss, unless it is this one. Raises as :meth:`Permit.release`.
        """
        return await self._store.drive(self._releasing(token))

    async def holders(self) -> tuple[Hold, ...]:
        """Return who holds places now; as :meth:`celery_redislock.locks.Semaphore.holders`."""
        return await self._store.ask(self._holders)

    async def available(self) -> int:
        """Return how many places are free now, also if somebody waits for them; two requests."""
        return await self._store.ask(self._available)

    async def waiting(self) -> tuple[Hold, ...]:
        """Return who waits in line, in order, as they will hold it; one request, as holders()."""
        return await self._store.ask(self._waiting)

    async def set_limit(
        self, limit: int | None, *, for_: float | timedelta = A_YEAR, by: str | None = None
    ) -> Limit | None:
        """Replace the limit, at once and in all processes; ``None`` takes that back.

        As :meth:`celery_redislock.locks.Semaphore.set_limit`.
        """
        return await self._store.ask(self._setting(limit, for_, by))

    async def __aenter__(self) -> Permit:
        kept: Permit = await self._store.drive(self._entering([]))
        kept._held.lease.task = task = current_task()  # nobody else has it
        self._entered.setdefault(task, []).append(kept)
        return kept

    async def __aexit__(self, *error: Any) -> None:
        if (task := entered_by(current_task(), self._entered)) is None:
            raise LockNotHeld(self.name, "task")
        permit = self._entered[task].pop()
        if not self._entered[task]:
            del self._entered[task]
        await permit.__aexit__(*error)

    def _attempt(self, keep: Callable[[Term, Grant], object]) -> Attempt:
        owner = self._owner or owner_of(current_task())
        waiting = self._store.waiting
        return TaskAttempt(self._beside, self._key, self._ttl, owner, keep, boottime, waiting=waiting)

    def _permit(self, permits: int, term: Term, grant: Grant) -> Permit:
        def announce() -> None:
            if self._on_lost is not None and (permit := known()) is not None:
                call_back(self._on_lost, permit)

        on_lost: OnLost = "cancel" if self._cancels else announce
        held = TaskHeld(self._store, current_task(), term, grant, on_lost=on_lost)
        permit = Permit(self, permits, held)
        held.lease.keeper = known = ref(permit)  # its lease, which the watchdog has, must not keep it
        if self._auto_renew:
            self._store.watchdog.watch(held.lease)
        return permit

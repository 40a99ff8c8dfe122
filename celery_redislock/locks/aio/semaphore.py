"""A counting semaphore for tasks of asyncio."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NoReturn

from celery_redislock.locks import semaphore
from celery_redislock.locks.aio.held import Held, check_on_lost, current_task
from celery_redislock.locks.aio.lock import TaskAttempt, task_name
from celery_redislock.locks.aio.store import Store
from celery_redislock.locks.clock import boottime
from celery_redislock.locks.limits import A_YEAR
from celery_redislock.locks.lock import busy
from celery_redislock.locks.store import Grant, Hold, Limit, Term
from celery_redislock.locks.terms import check_store, check_terms, check_token, refuse_others

__all__ = ["Permit", "Semaphore"]


class Permit:
    """One hold of a :class:`Semaphore`: one of its places, or several, with a lease of its own.

    Any task of the loop may use it, and release it. It is renewed until it is released, or lost.

    Attributes:
        name: of the semaphore.
        permits: the places that it takes.
    """

    def __init__(self, name: str, permits: int, held: Held) -> None:
        """Made by :meth:`Semaphore.acquire`."""
        self.name = name
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
        await self._held.check()

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
        return not self._held.lease.ended and await self._held.end()

    async def __aenter__(self) -> "Permit":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._held.leave(self.release(), error)


class Semaphore:
    """At most ``limit`` holds of one name at once, each for as long as its process lives and renews it.

    ::

        seats = Semaphore(store, "licence", 3)
        async with seats:                            # or: async with await seats.acquire():
            ...

    The twin of :class:`celery_redislock.locks.Semaphore`: the same places, the same line. Each ``acquire`` is
    a hold of its own, also of one task. All methods are for the loop of the store.
    """

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
            limit: so many places, from 1 on. :meth:`set_limit` replaces it for all processes.
            ttl: seconds a hold outlives its last renewal, as for a Lock.
            wait: seconds ``async with semaphore:`` waits, then raises :class:`LockBusy`; ``None`` for ever.
            owner: who holds, shown to those who are refused; host, process and task by default.
            auto_renew: renew each hold in the background every third of ``ttl``; else it ends with that.
            on_lost: called once in the loop, with a hold that is found gone. ``"cancel"`` cancels the task
                that has acquired it; ``async with`` raises :class:`LockLost` then.
            others: none, as for a Lock.

        Raises:
            LockOptionError: the name is no text or empty, the limit no whole number from 1 on, or a time is
                not a number of seconds in range.
        """
        refuse_others(name, others)
        check_store(name, store, "verbs", "aio.connect")
        check_on_lost(name, on_lost)
        #: Its twin, whose verbs are those of this one's store.
        self._plain = semaphore.Semaphore(store.verbs, name, limit, ttl=ttl, wait=wait, owner=owner)
        self.name = name
        self.limit = limit
        self._key = self._plain._key
        self._store = store
        self._ttl = ttl
        self._wait = wait
        self._owner = owner
        self._auto_renew = auto_renew
        self._on_lost = on_lost
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
            LockUnavailable: the server cannot be reached; what it has granted is released in the background.
            LockKeyError: the key on the server is not a lock.
            LockLoopError: the store belongs to another loop.
        """
        kept = await self._wait_for(permits, timeout)
        return kept if isinstance(kept, Permit) else None

    async def release(self, token: str) -> bool:
        """Release the places of a hold, wherever it was acquired; tell whether it still had them.

        Its process learns of that as of a loss, unless it is this one. Raises as :meth:`Permit.release`.
        """
        check_token(self.name, token)
        lease = self._store.watchdog.watched(token)
        if lease is not None and lease.key == self._key:
            return not lease.ended and await self._store.end(lease)
        return (await self._store.ask(lambda verbs: verbs.release(self._key, token))).released

    async def holders(self) -> tuple[Hold, ...]:
        """Return who holds places now; as :meth:`celery_redislock.locks.Semaphore.holders`."""
        return await self._store.ask(lambda _: self._plain.holders())

    async def available(self) -> int:
        """Return how many places are free now, also if somebody waits for them; two requests."""
        return await self._store.ask(lambda _: self._plain.available())

    async def waiting(self) -> tuple[Hold, ...]:
        """Return who waits in line, in order, as they will hold it; one request, as holders()."""
        return await self._store.ask(lambda _: self._plain.waiting())

    async def set_limit(
        self, limit: int | None, *, for_: float | timedelta = A_YEAR, by: str | None = None
    ) -> Limit | None:
        """Replace the limit, at once and in all processes; ``None`` takes that back.

        As :meth:`celery_redislock.locks.Semaphore.set_limit`.
        """
        return await self._store.ask(lambda _: self._plain.set_limit(limit, for_=for_, by=by))

    async def __aenter__(self) -> Permit:
        kept = await self._wait_for(1, self._wait)
        if isinstance(kept, Hold):
            raise busy(self.name, kept)
        self._entered.setdefault(current_task(), []).append(kept)
        return kept

    async def __aexit__(self, *error: Any) -> None:
        task = current_task()
        permit = self._entered[task].pop()
        if not self._entered[task]:
            del self._entered[task]
        await permit.__aexit__(*error)

    async def _wait_for(self, permits: int, timeout: float | None) -> Permit | Hold:
        """Acquire within the timeout: the hold, or else who held it at the last request."""
        check_terms(self.name, timeout=timeout, permits=permits)
        store = self._store
        store.check_loop()
        kept: list[Permit] = []

        def announce() -> None:
            if callable(self._on_lost):
                self._on_lost(kept[-1])

        def keep(term: Term, grant: Grant) -> None:
            on_lost = announce if callable(self._on_lost) else self._on_lost
            held = Held(store, term, grant, on_lost=on_lost, is_renewed=self._auto_renew)
            kept.append(Permit(self.name, permits, held))

        says, may_wait = self._plain._asks_for(permits)
        if may_wait is not None:
            await store.ask(may_wait)
        owner = self._owner or task_name()
        attempt = TaskAttempt(
            store.beside, self._key, self._ttl, owner, keep, boottime, self.limit, says, may_wait,
            waiting=store.waiting,
        )  # fmt: skip
        refused = await store.attempt(attempt.steps(timeout))
        return kept[-1] if refused is None else refused

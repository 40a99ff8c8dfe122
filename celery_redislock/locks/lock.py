"""An exclusive lock for anybody: one owner's hold on one name, without Celery."""

import functools
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.locks.attempt import Attempt, coroutine, end
from celery_redislock.locks.clock import Clock, boottime, is_seconds
from celery_redislock.locks.lease import DRIFT, LockLease
from celery_redislock.locks.naming import joint_name, names_of
from celery_redislock.locks.store import Grant, Hold, LockStore, Term
from celery_redislock.locks.terms import check_store, check_terms, check_token, refuse_others
from celery_redislock.locks.watchdog import watchdog_of

#: Why a hold cannot be continued.
NOT_CONTINUED = "nobody holds it under the token that was to be continued"


@dataclass(eq=False, slots=True)
class Entry:
    """One thread's hold: in which process and coroutine it began, and how often the thread entered."""

    lease: LockLease
    coroutine: object | None
    pid: int
    depth: int = 1


class Lock:
    """Exclusive access to one name, for as long as its process lives and renews it.

    ::

        store = connect("redis://localhost:6379/0")
        with Lock(store, "nightly-import") as lock:
            lock.check()                       # raises LockLost
            write(..., fence=lock.fence)

    One object may be shared by threads: each holds for itself, and may acquire
    again while it holds (it releases as often). Two objects of one name wait for
    each other, in one thread too. Who waits is served in order: tasks and Locks of
    one name share one line; messages of RabbitMQ, which have priorities
    of their own, wait behind Locks. On a quorum of servers there is no line: who
    waits asks again after random pauses, in no order. A lock that is acquired without ``with`` and never
    released is renewed as long as somebody refers to this object, and expires then.

    Not for coroutines, which would hold it together, and stand still while one waits; a second one of the
    same thread is refused. For them there is ``celery_redislock.locks.aio``.
    """

    def __init__(
        self,
        store: LockStore,
        name: str | list[str] | tuple[str, ...],
        *,
        ttl: float = 30.0,
        wait: float | None = 10.0,
        owner: str | None = None,
        token: str | None = None,
        auto_renew: bool = True,
        reentrant: bool = True,
        on_lost: Callable[["Lock"], None] | None = None,
        on_state: Callable[["Lock", str], None] | None = None,
        margin: float = DRIFT,
        lock_delay: float = 0.0,
        clock: Clock = boottime,
        **others: NoReturn,
    ) -> None:
        """Name a lock; nothing is sent yet.

        Args:
            store: where it is kept, from :func:`celery_redislock.locks.connect`.
            name: of the resource. Locks of the same name and prefix exclude each other, and exclude tasks
                whose ``lock_key`` is that text; where it has fields, or a ``%``, give
                ``task.lock_for(...).key``. A list of names: all of them or none, in one step, whatever their
                order; who waits for several holds none of them meanwhile. On one server only.
            ttl: seconds the hold outlives its holder's last renewal, from 0.001 to ten years; several socket
                timeouts, or one lost reply costs the lock.
            wait: seconds ``with lock:`` waits before it raises :class:`LockBusy`; ``None`` for ever.
            owner: who holds, shown to those who are refused; host, process and thread by default.
            token: the :attr:`token` of a hold that another thread or process has acquired: :meth:`acquire`
                continues it, in one request, and the other methods are for it without that. Whoever had it
                goes on renewing it, and learns of its end as of a loss, unless it is in this process.
            auto_renew: renew in the background every third of ``ttl``; otherwise :meth:`renew` does.
            reentrant: a thread that holds it may acquire it again; otherwise that is a RuntimeError.
            on_lost: called once with this lock when the hold is found gone, in the thread that learns of
                it: the watchdog's, which renews no lock meanwhile, so let it be short; or that of
                :meth:`check` or :meth:`renew`.
            on_state: called with this lock and ``"unsure"`` when a renewal got no answer, or the deadline of
                the hold is near; with ``"held"`` when the server has confirmed it again; or with ``"lost"``.
                Each once, in order, in the thread that learns of it, which renews nothing meanwhile.
            margin: part of the ttl, from 0.01 to 0.5, for which the hold is not trusted any more although the
                server keeps it: for clocks that run at different rates. From 0.25 on it is renewed every
                quarter of the ttl.
            lock_delay: seconds for which the server keeps the lock beyond its ttl where its holder is gone,
                so that what that has sent may arrive. The holder itself does not trust it then. A release
                ends both.
            clock: injected by tests.
            others: none. The names that other libraries have for these raise, and are told apart.

        Raises:
            LockOptionError: the name is empty, it or the owner is no text, a number is out of its range,
                or the store is none; or another library's word was used.
        """
        refuse_others(name, others)
        check_store(name, store, "least_ttl", "connect")
        if token is not None:
            check_token(name, token)
        names = names_of(name)
        for each in names:
            check_terms(
                each, ttl=ttl, wait=wait, owner=owner, margin=margin, lock_delay=lock_delay,
                on_lost=on_lost, on_state=on_state, least=store.least_ttl,
            )  # fmt: skip
        self.name = ", ".join(names)
        self._key = joint_name(names)
        if " " in self._key:
            from celery_redislock.locks.joined import joined  # noqa: PLC0415  imports redis

            store = joined(store)
        if lock_delay and not store.keeps_lines:
            problem = f"lock_delay={lock_delay:g} is not kept by a quorum of servers; leave it out"
            raise LockOptionError(repr(name), [problem])
        self._store = store
        self._ttl = ttl
        self._wait = wait
        self._token = token
        self._owner = owner
        self._auto_renew = auto_renew
        self._reentrant = reentrant
        self._on_lost = on_lost
        self._on_state = on_state
        self._margin = margin
        self._lock_delay = lock_delay
        self._clock = clock
        # By the class, which gevent may replace: one for all locks, because each costs more than a trip does.
        self._thread: Any = _threads(threading.local)
        self._holds: dict[object, Entry] = {}

    def __del__(self) -> None:
        """Renew no more what nobody is left to release."""
        for entry in vars(self).get("_holds", {}).values():
            watchdog_of(self._store).unwatch(entry.lease)

    def acquire(self, timeout: float | None = None) -> bool:
        """Take the lock, waiting for it if need be; at once if this thread holds it already.

        Args:
            timeout: seconds to wait, plus some bounded requests; ``None``: no limit; ``0`` or less: one try.

        Returns:
            Whether this thread holds the lock now.

        Raises:
            LockUnavailable: the server cannot be reached. A lock that the server has granted is
                released in the background, as after any other error.
            LockKeyError: the key on the server is not a lock.
            LockOptionError: the timeout is no number of seconds.
            RuntimeError: another coroutine of this thread holds it; or this thread does, and ``reentrant`` is
                off.
            LockLost: this thread holds it already, but that hold was lost; :meth:`release` it first. Or
                nobody holds it under the ``token``.
        """
        if timeout is not None and not is_seconds(timeout):
            check_terms(self.name, timeout=timeout)
        return self._wait_for(timeout) is None

    def release(self) -> bool:
        """Release the lock; atomic, and only if this very hold still has it.

        Returns:
            Whether it was still ours. It is ``False`` if it had been lost; nothing was touched then.

        Raises:
            LockNotHeld: this thread does not hold the lock.
            LockUnavailable: the server cannot be reached; the lock is released in the background.
            LockKeyError: the key on the server is not a lock any more.
        """
        entry = self._required()
        lease = entry.lease
        entry.depth -= 1
        if entry.depth:
            return lease.held
        trusted = lease.trusted
        # First: where this is interrupted, it is renewed no more.
        lease.end()
        self._holds.pop(self._thread.marker, None)
        return end(self._store, lease, trusted=trusted)

    def renew(self, ttl: float | None = None) -> bool:
        """Set the remaining time back to the ttl; atomic. Needed only without ``auto_renew``.

        Args:
            ttl: another time to live from now on, seconds.

        Returns:
            Whether the lock was still ours.

        Raises:
            LockNotHeld: this thread does not hold the lock.
            LockOptionError: the ttl is not a number of seconds in range.
            LockUnavailable: the server cannot be reached; the earlier of the old and the new end counts.
            LockKeyError: the key on the server is not a lock any more.
        """
        lease = self._required().lease
        if lease.lost:
            return False
        if ttl is not None:
            check_terms(self.name, ttl=ttl, least=self._store.least_ttl)
            lease.term = Term(lease.key, lease.token, ttl + self._lock_delay)
            # The server may shorten it, although no answer comes.
            lease.trust_for(lease.term.ttl)
        term = lease.term
        try:
            answer = self._store.renew([term])
            lease.learn(answer.renewed[0], answer.sent_at, answer.answered_at, ttl=term.ttl)
        finally:
            if ttl is not None and self._auto_renew and lease.held:
                # Its next renewal was due by the old ttl.
                watchdog_of(self._store).watch(lease)
        return lease.held

    def check(self) -> None:
        """Raise if the lock was lost; free of cost while it can be trusted (see :meth:`Lease.check`).

        Raises:
            LockNotHeld: this thread does not hold the lock.
            LockLost: it is gone; another holder may be running.
        """
        self._required().lease.check()

    def holder(self) -> Hold | None:
        """Return who holds the lock now, ``None`` if nobody does; one request.

        Raises:
            LockUnavailable: the server cannot be reached.
            LockKeyError: the key on the server is not a lock.
        """
        return self._store.inspect(self._key)

    def locked(self) -> bool:
        """Whether anybody holds the lock now, this thread included; one request. Raises as :meth:`holder`."""
        return self.holder() is not None

    @property
    def token(self) -> str | None:
        """What the server knows this hold by, to be handed to another ``Lock``; ``None`` if not held."""
        return None if (entry := self._entry) is None else entry.lease.token

    @property
    def fence(self) -> int | None:
        """This hold's fencing token, larger than every earlier one of this lock; ``None`` if not held.

        Of a hold that a ``token`` continues only the one that acquired it knows the fence.
        """
        return None if (entry := self._entry) is None else entry.lease.fence

    @property
    def held(self) -> bool:
        """Whether this thread holds the lock and has not learnt that it is lost."""
        return (entry := self._entry) is not None and entry.lease.held

    def __enter__(self) -> "Lock":
        refused = self._wait_for(self._wait)
        if refused is not None:
            raise busy(self.name, refused)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._entry is None and (error is not None or self._thread.marker in self._holds):
            return  # its own error matters more; or this is a fork, whose parent entered the block
        lease = self._required().lease
        try:
            released = self.release()
        except RedisLockError:
            if error is None:
                raise
            return  # the body's own error matters more; the lock is released in the background, or expires
        if not released and error is None:
            # The body believes it was alone all the time; it was not.
            raise lease.missed()

    @property
    def _entry(self) -> Entry | None:
        """This thread's hold, lost or not. A forked child inherits its parent's, and does not hold."""
        entry = self._holds.get(self._thread.marker)
        return None if entry is None or entry.pid != os.getpid() else entry

    def _required(self) -> Entry:
        if (entry := self._entry) is not None:
            return entry
        if self._token is None:
            from celery_redislock.locks.errors import LockNotHeld  # noqa: PLC0415  imports redis

            raise LockNotHeld(self.name, "thread")
        return Entry(self._lease_of(self._token), None, os.getpid())

    def _lease_of(self, token: str) -> LockLease:
        """Return the lease of a hold that was acquired elsewhere: in this process, or in another."""
        known = watchdog_of(self._store).watched(token)
        if isinstance(known, LockLease) and known.key == self._key:
            return known
        term = self._term(token)
        return LockLease(self._store, term, elsewhere(term, self._clock), clock=self._clock)

    def _term(self, token: str) -> Term:
        return Term(self._key, token, self._ttl + self._lock_delay)

    def _wait_for(self, timeout: float | None) -> Hold | None:
        """Acquire within the timeout: ``None`` when held, else who held the lock at the last attempt."""
        if (entry := self._entry) is not None:
            if entry.coroutine is not coroutine():
                raise RuntimeError(
                    f"another coroutine of this thread holds the lock {self.name!r}; a thread holds it as a "
                    "whole: use celery_redislock.locks.aio, or let each coroutine hold it in a thread of its "
                    "own (asyncio.to_thread)"
                )
            if not self._reentrant:
                raise RuntimeError(f"this thread holds the lock {self.name!r} already (reentrant=False)")
            # A lost hold is not replaced by a new one: the outer block would not learn of the loss.
            entry.lease.check()
            entry.depth += 1
            return None
        if self._token is None:
            return self._attempt().within(timeout)
        term = self._term(self._token)
        answer = self._store.renew([term])
        if not answer.renewed[0]:
            raise self._lease_of(self._token).loss(NOT_CONTINUED)
        self._keep(term, Grant(None, False, answer.sent_at, answer.answered_at))
        return None

    def _attempt(self) -> Attempt:
        """Return an attempt of this thread to hold it."""
        ttl = self._ttl + self._lock_delay
        attempt = Attempt(self._store, self._key, ttl, self._owner, self._keep, self._clock)
        if self._lock_delay:
            attempt.says = f',"delay":{self._lock_delay}'
        return attempt

    def _keep(self, term: Term, grant: Grant) -> None:
        """Note a hold of this thread, and have it renewed."""
        on_lost = None if self._on_lost is None else while_alive(self, self._on_lost)
        lease = LockLease(self._store, term, grant, on_lost=on_lost, clock=self._clock)
        if self._lock_delay or self._margin != DRIFT or self._on_state is not None:
            on_state = None if self._on_state is None else while_alive(self, self._on_state, told=1)
            lease.limit_trust(self._margin, grant.sent_at, self._lock_delay, on_state)
        if self._auto_renew:
            watchdog_of(self._store).watch(lease)
        self._holds[self._thread.marker] = Entry(lease, coroutine(), os.getpid())


def busy(name: str, holder: Hold) -> Exception:
    """Return the error for who has waited in vain."""
    from celery_redislock.locks.errors import LockBusy  # noqa: PLC0415  imports redis

    return LockBusy(name, holder.owner, holder.expires_in)


def elsewhere(term: Term, clock: Clock) -> Grant:
    """Return the grant of a hold that was acquired elsewhere, not trusted before the server is asked."""
    long_ago = clock() - term.ttl
    return Grant(None, False, long_ago, long_ago)


def while_alive(lock: object, call: Callable[..., Any], *, told: int = 0) -> Callable[..., None]:
    """Return what calls it with this lock, and so many of the facts it is told, until nobody uses the lock.

    Its lease, which the watchdog has, must not keep it.
    """
    known = weakref.ref(lock)

    def tell(*facts: object) -> None:
        if (alive := known()) is not None:
            call(alive, *facts[:told])

    return tell


@functools.cache
def _threads(kind: type[threading.local]) -> Any:
    """Return the object that has another ``marker`` for each thread, which no later thread gets."""

    def mark(thread: Any) -> None:
        thread.marker = object()

    return type("Threads", (kind,), {"__init__": mark})()

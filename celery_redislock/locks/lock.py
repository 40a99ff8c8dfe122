"""An exclusive lock for anybody: one owner's hold on one name, without Celery."""

import functools
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from celery_redislock.exceptions import LockBusy, LockKeyError, LockLost, LockOptionError, RedisLockError
from celery_redislock.locks.clock import Clock, boottime, is_seconds
from celery_redislock.locks.lease import Lease, new_token
from celery_redislock.locks.naming import lock_name
from celery_redislock.locks.process import hostname
from celery_redislock.locks.store import (
    NOBODY,
    RUNNING,
    TEN_YEARS,
    Entry,
    Grant,
    Hold,
    LockStore,
    Refusal,
    Term,
)
from celery_redislock.locks.watchdog import watchdog_of

#: Seconds between two looks of one that waits at who holds the lock, at most and at least.
PAUSE = 1.0
SHORTEST = 0.01

#: Where there is no line: seconds of the longest pause before one asks again. The shortest is as above.
LONGEST = 0.2

#: The system's: several programs that seed theirs alike would pause alike.
_chance = random.SystemRandom()

#: With messages of priority 0 on Redis, those that come for the first time.
BAND = 1


@dataclass(eq=False, slots=True)
class _Entry:
    """One thread's hold: in which process and coroutine it began, and how often the thread entered."""

    lease: Lease
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
    one name share one line. Two exceptions: where a hold has expired, one that
    comes just then may be first; and messages of RabbitMQ, which have priorities
    of their own, wait behind Locks. On a quorum of servers there is no line: who
    waits asks again after random pauses, in no order. A lock that is acquired without ``with`` and
    never released is renewed until the process ends.

    Not for coroutines, which would hold it together; a second one of the same
    thread is refused. Let each hold it in a thread (``asyncio.to_thread``).
    """

    def __init__(
        self,
        store: LockStore,
        name: str,
        *,
        ttl: float = 30.0,
        timeout: float | None = 10.0,
        owner: str | None = None,
        auto_renew: bool = True,
        on_lost: Callable[["Lock"], None] | None = None,
        clock: Clock = boottime,
    ) -> None:
        """Name a lock; nothing is sent yet.

        Args:
            store: where it is kept, from :func:`celery_redislock.locks.connect`.
            name: of the resource. Locks of the same name and prefix exclude each other, and exclude tasks
                whose ``lock_key`` is that text; where it has fields, or a ``%``, give
                ``task.lock_for(...).key``.
            ttl: seconds the hold outlives its holder's last renewal, from 0.001 to ten years; several socket
                timeouts, or one lost reply costs the lock.
            timeout: seconds ``with lock:`` waits before it raises :class:`LockBusy`; ``None`` for ever.
            owner: who holds, shown to those who are refused; host, process and thread by default.
            auto_renew: renew in the background every third of ``ttl``; otherwise :meth:`renew` does.
            on_lost: called once with this lock when the hold is found gone, in the thread that learns of
                it: the watchdog's, which holds nothing itself, or that of :meth:`check` or :meth:`renew`.
            clock: injected by tests.

        Raises:
            LockOptionError: the name is no text or empty, or a time is not a number of seconds in range.
        """
        _check_terms(name, ttl=ttl, timeout=timeout)
        self.name = name
        self._key = lock_name(name)
        self._store = store
        self._ttl = ttl
        self._timeout = timeout
        self._owner = owner
        self._auto_renew = auto_renew
        self._on_lost = on_lost
        self._clock = clock
        # By the class, which gevent may replace: one for all locks, because each costs more than a trip does.
        self._local: Any = _thread_facts(threading.local)

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
            RuntimeError: another coroutine of this thread holds it.
            LockLost: this thread holds it already, but that hold was lost; :meth:`release` it first.
        """
        if timeout is not None and not is_seconds(timeout):
            _check_terms(self.name, timeout=timeout)
        return self._wait_for(timeout) is None

    def release(self) -> bool:
        """Release the lock; atomic, and only if this very hold still has it.

        Returns:
            Whether it was still ours. ``False``: it had been lost, and nothing was touched.

        Raises:
            RuntimeError: this thread does not hold the lock.
            LockUnavailable: the server cannot be reached; the lock is released in the background.
            LockKeyError: the key on the server is not a lock any more.
        """
        entry = self._required()
        lease = entry.lease
        entry.depth -= 1
        if entry.depth:
            return lease.held
        trusted = lease.trusted
        lease.end()
        del self._local.__dict__[self]
        if self._auto_renew:
            watchdog_of(self._store).forget(lease.token)
        try:
            answer = self._store.release(lease.key, lease.token)
        except BaseException as error:
            self._release_later(lease.term, error)
            raise
        return answer.gave_back(trusted=trusted)

    def renew(self, ttl: float | None = None) -> bool:
        """Set the remaining time back to the ttl; atomic. Needed only without ``auto_renew``.

        Args:
            ttl: another time to live from now on, seconds.

        Returns:
            Whether the lock was still ours.

        Raises:
            RuntimeError: this thread does not hold the lock.
            LockOptionError: the ttl is not a number of seconds in range.
            LockUnavailable: the server cannot be reached; the earlier of the old and the new end counts.
            LockKeyError: the key on the server is not a lock any more.
        """
        lease = self._required().lease
        if lease.lost:
            return False
        if ttl is not None:
            _check_terms(self.name, ttl=ttl)
            lease.term = Term(lease.key, lease.token, ttl)
            # The server may shorten it, although no answer comes.
            lease.trust_for(ttl)
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
            RuntimeError: this thread does not hold the lock.
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

    @property
    def fence(self) -> int | None:
        """This hold's fencing token, larger than every earlier one of this lock; ``None`` if not held."""
        return None if (entry := self._entry) is None else entry.lease.fence

    @property
    def held(self) -> bool:
        """Whether this thread holds the lock and has not learnt that it is lost."""
        return (entry := self._entry) is not None and entry.lease.held

    def __enter__(self) -> "Lock":
        refused = self._wait_for(self._timeout)
        if refused is not None:
            raise LockBusy(self.name, refused.owner, refused.expires_in)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._entry is None and (error is not None or self in self._local.__dict__):
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
            why = lease.lost_because or "it was gone when it should be released"
            raise LockLost(self.name, why, lease.fence)

    @property
    def _entry(self) -> _Entry | None:
        """This thread's hold, lost or not. A forked child inherits its parent's, and does not hold."""
        entry: _Entry | None = self._local.__dict__.get(self)
        return None if entry is None or entry.pid != os.getpid() else entry

    def _required(self) -> _Entry:
        if (entry := self._entry) is None:
            raise RuntimeError(f"this thread does not hold the lock {self.name!r}; acquire it first")
        return entry

    def _wait_for(self, timeout: float | None) -> Hold | None:
        """Acquire within the timeout: ``None`` when held, else who held the lock at the last attempt."""
        if (entry := self._entry) is not None:
            if entry.coroutine is not _coroutine():
                raise RuntimeError(
                    f"another coroutine of this thread holds the lock {self.name!r}; a thread holds it as a "
                    "whole: let each coroutine hold it in a thread of its own (asyncio.to_thread)"
                )
            # A lost hold is not replaced by a new one: the outer block would not learn of the loss.
            entry.lease.check()
            entry.depth += 1
            return None
        give_up = float("inf") if timeout is None else self._clock() + timeout
        term, pid, refused = self._attempt()
        if refused is None or give_up <= self._clock():
            return refused
        if not self._store.keeps_lines:
            return self._ask_again(refused, give_up)
        try:
            return self._stand_in_line(term, pid, refused, give_up)
        except BaseException:
            if pid == os.getpid():
                # It holds the lock by now, or will be handed it, for so long.
                within = term.ttl + self._store.patience
                leave = functools.partial(self._store.leave, term.name, term.token)
                watchdog_of(self._store).owe(leave, within=within, what=repr(self.name))
            raise

    def _attempt(self) -> tuple[Term, int, Hold | None]:
        """Ask once, under a new token; return that, this process, and who refused it, if anybody."""
        pid = os.getpid()
        owner = self._owner or _who(pid, threading.get_ident())[0]
        term = Term(self._key, new_token(owner), self._ttl)
        try:
            return term, pid, self._take(term, pid)
        except BaseException as error:
            self._release_later(term, error)
            raise

    def _take(self, term: Term, pid: int, *, starts_run: bool = False) -> Hold | None:
        """Make one request for the lock, and note the hold; return who refused it, if anybody."""
        facts = _facts(pid)
        answer = self._store.acquire(term.name, term.token, term.ttl, facts=facts, starts_run=starts_run)
        if isinstance(answer, Refusal):
            return answer.hold
        # No message was named, so no mark can have answered.
        assert isinstance(answer, Grant)  # noqa: S101
        lease = Lease(self._store, term, answer, on_lost=self._announce_loss, clock=self._clock)
        if self._auto_renew:
            watchdog_of(self._store).watch(lease)
        self._local.__dict__[self] = _Entry(lease, _coroutine(), pid)
        return None

    def _stand_in_line(self, term: Term, pid: int, refused: Hold, give_up: float) -> Hold | None:
        """Wait until the lock is handed to this token; ``None`` when held, else who held it when time was up.

        Whoever ends a hold hands the lock to the first in line, as a claim that lives until its holder must
        have answered, and rings the bell. Where a hold expires nobody does, and other programs do not. So who
        waits asks once a second, and when the hold that it knows of has expired, who holds the lock; a lock
        that is free is handed on by this very question. To park again costs as little, and serves one whose
        entry was lost by a failover, or that found the line full.
        """
        store = self._store
        bell = store.bell(term.name, _nonce())
        place = "last"
        holder: Hold | None = refused
        while True:
            entry = Entry("ring", bell, store.patience, _facts(pid))
            parked = store.park(term.name, term.token, entry, nonce=_nonce(), band=BAND, place=place)
            holder = parked.held_by or holder
            # The server counts milliseconds. Where nobody is handed a free lock, its line is in trouble.
            look_in = PAUSE if holder is None else max(SHORTEST, holder.expires_in + 0.001)
            left = max(0.0, give_up - self._clock())
            is_handed = store.await_bell(bell, min(PAUSE, look_in, left))
            if pid != os.getpid():
                # A fork, with this thread and no other of its parent's: it waits for itself.
                return self._wait_for(None if give_up == float("inf") else give_up - self._clock())
            if not is_handed:
                # Where that finds it free, it is handed to somebody, who may be this one.
                holder = store.release(term.name, NOBODY).held_by or store.inspect(term.name)
                is_handed = holder is not None and holder.token == term.token
                if is_handed:
                    store.await_bell(bell, SHORTEST)  # it has rung since, or the answer was lost
            if is_handed:
                # As a run starts: what is handed to us needs no memory, and what is not is others' who wait.
                holder = self._take(term, pid, starts_run=True)
                if holder is None:
                    return None
                place = "first"  # the hand-off expired before it could be taken
            refused = holder or refused
            if give_up <= self._clock():
                store.leave(term.name, term.token)
                return refused

    def _ask_again(self, refused: Hold, give_up: float) -> Hold | None:
        """Ask after random pauses; ``None`` when held, else who held it when time was up.

        Where servers vote, waiters that ask at once each get some votes and none enough: nothing but chance
        keeps them apart.
        """
        holder: Hold | None = refused
        longest = LONGEST
        while holder is not None and (left := give_up - self._clock()) > 0:
            time.sleep(min(left, _chance.uniform(SHORTEST, longest)))
            before = self._clock()
            holder = self._attempt()[2]
            # Those who ask for long need more room between them.
            longest = min(PAUSE, max(LONGEST, 5 * (self._clock() - before)))
        return holder

    def _release_later(self, term: Term, error: BaseException) -> None:
        """Release in the background a hold that an unanswered, or interrupted, request may have left."""
        if not isinstance(error, LockKeyError):  # that is an answer: nothing was taken
            watchdog_of(self._store).owe(
                lambda: self._store.release(term.name, term.token), within=term.ttl, what=repr(self.name)
            )

    def _announce_loss(self, _lease: Lease) -> None:
        if self._on_lost is not None:
            self._on_lost(self)


@functools.lru_cache(maxsize=1024)
def _who(pid: int, thread: int) -> tuple[str, str]:
    """Return a thread's name as an owner, and the beginning of the facts that it writes about itself."""
    facts = f'{{"host":{quoted(hostname())},"pid":{pid},"state":"{RUNNING}"'
    return f"{hostname()}:{pid}:{thread}", facts


def _facts(pid: int) -> str:
    """Return what this thread writes about itself as a holder from now on."""
    begin = _who(pid, threading.get_ident())[1]
    return f'{begin},"since":{time.time():.3f}}}'


def _nonce() -> str:
    return new_token("").lstrip("/")


@functools.cache
def _thread_facts(kind: type[threading.local]) -> threading.local:
    """Return the thread-local object whose ``__dict__`` has each thread's holds by their locks."""
    return kind()


def _coroutine() -> object | None:
    """Return the task of asyncio that this thread is running, if it runs any."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None or asyncio._get_running_loop() is None else asyncio.current_task()


def _check_terms(name: object, *, ttl: object = 1.0, timeout: object = None) -> None:
    """Raise :class:`LockOptionError`, with all problems, unless a lock can have these terms."""
    problems = []
    if not isinstance(name, str):
        problems.append(f"the name is {name!r}; give a text that names the resource the lock is for")
    elif not name:
        problems.append("the name is empty; name the resource the lock is for")
    if not is_seconds(ttl) or not 0.001 <= ttl <= TEN_YEARS:
        problems.append(f"ttl={ttl!r} is not a number of seconds from 0.001 to {TEN_YEARS:.0f}")
    if timeout is not None and not is_seconds(timeout):
        problems.append(f"timeout={timeout!r} is not a number of seconds; None waits for ever, 0 asks once")
    if problems:
        raise LockOptionError(repr(name), problems)

"""One attempt to get a hold: it asks, waits in line on a bell, and takes back what it left behind."""

import functools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from operator import methodcaller
from typing import Any, TypeAlias, TypeVar

from celery_redislock.exceptions import LockKeyError, LockUnavailable, RedisLockError
from celery_redislock.locks.lease import Lease, new_token
from celery_redislock.locks.process import hostname
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.log import logger
from celery_redislock.store.store import NOBODY, RUNNING, Entry, Grant, Hold, LockStore, Parked, Refusal, Term
from celery_redislock.wire.clock import Clock

#: Seconds between two looks of one that waits at who holds the lock, at most and at least.
PAUSE = 1.0
SHORTEST = 0.01

#: Where there is no line: seconds of the longest pause before one asks again. The shortest is as above.
LONGEST = 0.2

#: The system's: several programs that seed theirs alike would pause alike.
_chance = random.SystemRandom()

#: So many names of locks that have been waited for are kept.
MOST_CROWDED = 1000

#: With messages of priority 0 on Redis, those that come for the first time.
BAND = 1

#: What an attempt asks of a store: one verb, or some.
Step: TypeAlias = Callable[[LockStore], Any]

T = TypeVar("T")

#: Steps, carried out in a thread or in a loop. Each is a call of a store, and is sent its answer or error.
Steps: TypeAlias = Generator[Step, Any, T]


@dataclass(eq=False, slots=True)
class Attempt:
    """One thread's attempt to hold a lock, under a token of its own.

    Attributes:
        store: where the lock is kept; ``key`` is its name there.
        ttl: seconds of the hold.
        owner: who holds, shown to those who are refused; host, process and thread by default.
        keep: called with the term and the grant, before anything else may happen to them.
        clock: of the store.
        limit: how many may hold it at once; ``None`` for one alone.
        says: more facts about the holder, pairs of JSON, each with a comma before it.
        may_wait: asks the store, and raises, when it could wait for ever; a step of each second.
    """

    store: LockStore
    key: str
    ttl: float
    owner: str | None
    keep: Callable[[Term, Grant], object]
    clock: Clock
    limit: int | None = None
    says: str = ""
    may_wait: Step | None = None

    def steps(self, timeout: float | None) -> "Steps[Hold | None]":
        """Acquire within so many seconds; ``None`` when held, else who held it at the last request.

        ``None`` waits for ever, 0 asks once. Raises as :meth:`LockStore.acquire` and :meth:`LockStore.park`,
        but from who stands in line ``LockUnavailable`` only when time is up; what is left of it then is
        released in the background.
        """
        give_up = float("inf") if timeout is None else self.clock() + timeout
        pid = os.getpid()
        owner = self.owner or _who(pid, threading.get_ident())[0]
        if self.limit is not None:
            owner = f"{owner}/{_nonce()}"  # of one owner the server lets only one hold it at once
        term = Term(self.key, new_token(owner), self.ttl)
        refused: Hold | None = None
        # Where others wait, to ask first costs a request more.
        if self.key not in self.store.crowded or give_up <= self.clock():
            try:
                refused = yield from self._take(term, pid)
            except BaseException as error:
                if getattr(error, "was_sent", True):
                    owe(self.store, term, error)
                raise
            if refused is None or give_up <= self.clock():
                return refused
            if not self.store.keeps_lines:
                return (yield from self._ask_again(refused, give_up))
        self._begin_to_wait()
        try:
            waiting = self._stand_in_line(term, pid, refused, give_up)
            return (yield from self._insisting(waiting, give_up))
        except BaseException:
            if pid == os.getpid():
                # It holds the lock by now, or will be handed it, for so long.
                within = term.ttl + self.store.patience
                leave = functools.partial(self.store.leave, term.name, term.token)
                watchdog_of(self.store).owe(leave, within=within, what=repr(self.key))
            raise

    def _ask_again(self, refused: Hold, give_up: float) -> "Steps[Hold | None]":
        """Ask after random pauses; ``None`` when held, else who held it when time was up.

        Where servers vote, waiters that ask at once each get some votes and none enough: nothing but chance
        keeps them apart.
        """
        holder: Hold | None = refused
        longest = LONGEST
        while holder is not None and (left := give_up - self.clock()) > 0:
            pause = min(left, _chance.uniform(SHORTEST, longest))
            yield methodcaller("pause", pause)
            before = self.clock()
            holder = yield from self.steps(0)
            # Those who ask for long need more room between them.
            longest = min(PAUSE, max(LONGEST, 5 * (self.clock() - before)))
        return holder

    def _begin_to_wait(self) -> None:
        """Warn where a thread that waits holds up others."""
        if coroutine() is not None:
            _warn_of_a_loop_that_stands()

    def _pause(self) -> float:
        """Return the seconds between two looks of one that waits, at most."""
        return min(PAUSE, self.store.patience / 2)

    def _take(self, term: Term, pid: int, *, starts_run: bool = False) -> "Steps[Hold | None]":
        """Make one request for the lock, and have the hold kept; return who refused it, if anybody."""
        more: dict[str, Any] = {"starts_run": True} if starts_run else {}
        if self.limit is not None:
            more["limit"] = self.limit
        facts = self.facts(pid)
        answer = yield lambda store: store.acquire(*term, facts=facts, **more)
        if isinstance(answer, Refusal):
            return answer.hold
        # No message was named, so no mark can have answered.
        assert isinstance(answer, Grant)  # noqa: S101
        self.keep(term, answer)
        return None

    def _stand_in_line(
        self, term: Term, pid: int, refused: Hold | None, give_up: float
    ) -> "Steps[Hold | None]":
        """Wait until the lock is handed to this token; ``None`` when held, else who held it when time was up.

        Whoever ends a hold hands the lock to the first in line, as a claim that lives until its holder must
        have answered, and rings the bell. Where a hold expires nobody does, and other programs do not. So who
        waits asks once a second, and when the hold that it knows of has expired, who holds the lock; a lock
        that is free is handed on by this very question. To park again costs as little. It tells that this one
        is alive, or else it leaves the line as a dead one does; and it serves one whose entry was lost by a
        failover, or that found the line full.
        """
        store = self.store
        bell = store.bell(term.name, _nonce())
        place = "last"
        holder = refused
        while True:
            pause = self._pause()
            # An entry that is not refreshed for so long leaves the line.
            patience = max(store.patience, 2 * pause)
            if self.may_wait is not None:
                yield self.may_wait
            entry = Entry("ring", bell, store.patience, self.facts(pid))
            parked: Parked = yield methodcaller(
                "park",
                term.name,
                term.token,
                entry,
                nonce=_nonce(),
                band=BAND,
                place=place,
                within=patience,
            )
            holder = parked.held_by or holder
            if parked.word != "woken":
                _note(store.crowded, term.name)
            elif holder is None:
                store.crowded.discard(term.name)  # it was free
            # The server counts milliseconds. Where nobody is handed a free lock, its line is in trouble.
            look_in = pause if holder is None else max(SHORTEST, holder.expires_in + 0.001)
            left = max(0.0, give_up - self.clock())
            is_handed = yield methodcaller("await_bell", bell, min(pause, look_in, left))
            if pid != os.getpid():
                # A fork, with this thread and no other of its parent's: it waits for itself.
                return (yield from self.steps(None if give_up == float("inf") else give_up - self.clock()))
            if not is_handed:
                # Where that finds it free, it is handed to somebody, who may be this one.
                held_by = (yield lambda store: store.release(term.name, NOBODY)).held_by
                holders = (yield lambda store: store.holders(term.name)) if held_by is None else (held_by,)
                holder = next(iter(holders), None)
                is_handed = term.token in {each.token for each in holders}
                if is_handed:
                    yield methodcaller("await_bell", bell, SHORTEST)  # it has rung since, or that was lost
            if is_handed:
                # As a run starts: what is handed to us needs no memory, and what is not is others' who wait.
                holder = yield from self._take(term, pid, starts_run=True)
                if holder is None:
                    return None
                place = "first"  # the hand-off expired before it could be taken
            refused = holder or refused
            if give_up <= self.clock():
                yield lambda store: store.leave(term.name, term.token)
                # Nobody has told who holds it: this does, or takes it.
                return refused or (yield from self._take(term, pid))

    def _insisting(self, steps: "Steps[T]", give_up: float) -> "Steps[T]":
        """Carry out the steps of one that waits, each until the server can be reached, or time is up.

        The first one is made once: it is not in line before that is answered.
        """
        stands = False
        tell = logger.warning
        try:
            step = next(steps)
            while True:
                try:
                    answer = yield step
                except LockUnavailable as error:
                    left = give_up - self.clock()
                    if not stands or left <= 0:
                        raise
                    tell("%s; who waits for %r tries again until its time is up", error, self.key)
                    tell = logger.debug  # it is known
                    yield methodcaller("pause", min(left, self._pause() / 4))
                else:
                    stands = True
                    step = steps.send(answer)
        except StopIteration as last:
            value: T = last.value
            return value

    def facts(self, pid: int) -> str:
        """Return what this thread writes about itself as a holder from now on."""
        begin = _who(pid, threading.get_ident())[1]
        return f'{begin},"since":{time.time():.3f}{self.says}}}'


def drive(store: LockStore, steps: "Steps[T]") -> T:
    """Carry out steps in this thread; return what they return, and raise what they raise."""
    try:
        step = next(steps)
        while True:
            try:
                answer = step(store)
            except BaseException as error:  # noqa: BLE001  they decide
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as last:
        value: T = last.value
        return value


def settled(value: T) -> "Steps[T]":
    """Return a value that takes no step."""
    yield from ()
    return value


def ending(store: LockStore, lease: Lease) -> "Steps[bool]":
    """Stop renewing a lease at this call; the steps release it, and tell whether it was still ours.

    Where the server cannot be reached, it is released in the background. Raises as :meth:`LockStore.release`.
    """
    trusted = lease.trusted
    lease.end()  # first: where this is interrupted, it is renewed no more
    return _released(store, lease, trusted=trusted)


def _released(beside: LockStore, lease: Lease, *, trusted: bool) -> "Steps[bool]":
    watchdog_of(beside).forget(lease.token)
    try:
        answer = yield lambda store: store.release(lease.key, lease.token)
    except BaseException as error:
        owe(beside, lease.term, error)
        raise
    return bool(answer.gave_back(trusted=trusted))


def settle_anyway(store: LockStore, lease: Lease, error: BaseException) -> None:
    """End a hold, and release it in the background, where what ends it was interrupted; else it is owed."""
    lease.end()
    watchdog_of(store).forget(lease.token)
    if not isinstance(error, RedisLockError):
        owe(store, lease.term, error)


def owe(store: LockStore, term: Term, error: BaseException, step: Step | None = None) -> None:
    """Do in the background what an unanswered or interrupted request has left undone: normally a release."""
    if not isinstance(error, LockKeyError):  # that is an answer: nothing was taken
        step = step or methodcaller("release", term.name, term.token)
        watchdog_of(store).owe(functools.partial(step, store), within=term.ttl, what=repr(term.name))


@functools.lru_cache(maxsize=1024)
def _who(pid: int, thread: int) -> tuple[str, str]:
    """Return a thread's name as an owner, and the beginning of the facts that it writes about itself."""
    facts = f'{{"host":{quoted(hostname())},"pid":{pid},"state":"{RUNNING}"'
    return f"{hostname()}:{pid}:{thread}", facts


def _note(crowded: set[str], name: str) -> None:
    """Note a lock that somebody waits for; forget all of them rather than to keep too many."""
    if len(crowded) >= MOST_CROWDED:
        crowded.clear()
    crowded.add(name)


def _nonce() -> str:
    return new_token("").lstrip("/")


def coroutine() -> object | None:
    """Return the task of asyncio that this thread is running, if it runs any."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None or asyncio._get_running_loop() is None else asyncio.current_task()


@functools.cache
def _warn_of_a_loop_that_stands() -> None:
    logger.warning(
        "a lock of celery_redislock.locks waits in a thread that runs an asyncio task, so every task of its "
        "loop stands still meanwhile; use celery_redislock.locks.aio, or run the whole block, with what it "
        "protects, in one call of asyncio.to_thread. This is told once a process"
    )

"""The watchdog: one thread that renews every lease of this process before its deadline.

Timeline of one lease of ttl T, granted to a request sent at 0::

    0          T/3        2T/3       deadline   T
    |-----------|----------|------------|-------|
    sent      renew      renew        margin   gone on the server (at the earliest)

An unanswered renewal is repeated every T/20 (at least 50 ms apart), each
attempt bounded by the time that is left until the deadline.

The same thread pays debts. A debt is a request, normally a release, that the
server did not answer. It is repeated once a second until it is answered, or
until the hold has expired.
"""

import atexit
import os
import time
import weakref
from _thread import RLock
from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import count
from multiprocessing.util import Finalize, register_after_fork
from operator import attrgetter
from queue import Empty
from typing import NamedTuple

from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.locks.lease import Lease
from celery_redislock.log import logger
from celery_redislock.store.store import LockStore, Renewal, Term
from celery_redislock.wire.clock import Clock, boottime
from celery_redislock.wire.thread import greenlets, original, start_thread, tell

#: Seconds the thread stays when there is nothing to watch.
LINGER = 30.0

#: Seconds between two attempts to pay a debt.
RETRY_DELAY = 1.0

#: Seconds the end of a process waits at most for its debts: for two attempts after the first.
LAST_CALL = 3.0

FOREVER = float("inf")

#: In place of the time the thread sleeps until.
AWAKE = float("-inf")

_due = attrgetter("due")
_numbers = count()


class _Debt(NamedTuple):
    """An action the server did not answer, to be tried again; those of a heap, the one due first."""

    due: float
    number: int
    action: Callable[[], object]
    what: str
    until: float


class Watchdog:
    """Renews leases in the background, and repeats releases that the server did not answer.

    One daemon thread per process and store, started by the first lease, and
    gone when there has been nothing to watch for half a minute; native with
    gevent, where it stays. All methods may be called from any thread, any number
    of times. A forked child starts with nothing to watch.

    Attributes:
        renewals: how many renewals the server has confirmed since the process began.
        is_server_away: the server did not answer when a debt was last tried, which is still to be paid.
    """

    def __init__(self, store: LockStore, *, clock: Clock = boottime) -> None:
        """Watch over leases of this store; starts no thread yet."""
        self._clock = clock
        self._store = store
        self.renewals = 0
        self._sleeps_until: float
        self._forget_everything()
        _live.add(self)

    def watch(self, lease: Lease, *, max_hold: float | None = None, first: float = FOREVER) -> None:
        """Renew a lease every third of its ttl, until it is forgotten or lost; its former watch is replaced.

        Args:
            lease: a new term, or one that got another ttl.
            max_hold: seconds after which it is not renewed any more and counts as lost; a warning is
                logged at half of it. ``None``: no limit.
            first: seconds after which it is renewed first, where a third of its ttl is too late.
        """
        since = lease.since = lease.answered_at
        if max_hold is not None:
            lease.max_hold = max_hold
        # A third of the ttl, or a quarter; sooner where the grant took long and little of its term is left.
        due = since + min(lease.term.ttl / lease.pace, (lease.deadline - since) / 2, lease.max_hold, first)
        lease.due = due
        self._watched[lease.token] = lease
        # Most leases end before they are due: waking the thread for each would double a lock's cost. After
        # its time the thread runs, or overslept with the machine: its wait stops in a suspend.
        if not since < self._sleeps_until <= due:
            self._sleeps_until = due
            self._ring()

    def forget(self, token: str) -> None:
        """Do not renew this token's lease any more; a renewal that was sent already is not waited for."""
        self._watched.pop(token, None)

    def watched(self, token: str) -> Lease | None:
        """Return the lease of this token, if this process renews it."""
        return self._watched.get(token)

    def unwatch(self, lease: Lease) -> None:
        """Do not renew this very lease any more; a later one of the same token is still renewed."""
        if self._watched.get(lease.token) is lease:
            self.forget(lease.token)

    def owe(self, action: Callable[[], object], *, within: float, what: str) -> None:
        """Do something in the watchdog's thread, at once, and once a second until the server answers.

        Each attempt is made on a new connection.

        Args:
            action: a bounded request to the store, which may be repeated: normally a release.
            within: seconds after which it is not tried any more, because the hold has expired.
            what: the hold in log messages.
        """
        now = self._clock()
        heappush(self._debts, _Debt(now, next(_numbers), action, what, now + within))
        self._ring()

    def _forget_everything(self) -> None:
        # Reentrant: a signal handler may take a lock of its own. Native; and nothing switches that has it.
        self._lock = RLock()
        self._bell = original("queue", "SimpleQueue")()
        self._watched: dict[str, Lease] = {}
        self._debts: list[_Debt] = []
        self.is_server_away = False
        self._sleeps_until = AWAKE
        self._has_thread = False

    def _ring(self) -> None:
        with self._lock:
            self._run_thread()
            self._bell.put(None)

    def _run_thread(self) -> None:
        if not self._has_thread:
            start_thread(self._run, "redislock-watchdog")
            self._has_thread = True

    def _run(self) -> None:
        while self._wait():
            try:
                self._do_what_is_due()
            except BaseException as error:  # noqa: BLE001
                # Also the SystemExit of an on_lost: a thread that dies would lose every lease of the process.
                what = "the redislock watchdog continues after an unexpected error"
                tell(logger.error, what, exc_info=error)

    def _wait(self) -> bool:
        """Sleep until something is due; false when nothing has been for so long that the thread ends."""
        while True:
            # Awake before it looks: a thread that watches a lease which this look misses rings the bell.
            kept = self._sleeps_until
            self._sleeps_until = AWAKE
            now = self._clock()
            if (wait := self._next_due() - now) <= 0:
                return True
            # A time to wake is kept although the lease it was for has been released: the next lease is
            # due later and wakes nobody, or this thread would wake for each of many short tasks.
            pause = min(wait, LINGER, kept - now if kept > now else LINGER)
            self._sleeps_until = now + pause
            try:
                self._bell.get(timeout=pause)
            except Empty:
                if pause == LINGER and self._ends():
                    return False

    def _ends(self) -> bool:
        with self._lock:
            self._sleeps_until = AWAKE  # as above
            # gevent never frees the hub of a thread that has ended (26.9, although it was destroyed).
            self._has_thread = bool(self._watched or self._debts) or greenlets.get() is not None
            return not self._has_thread

    def _next_due(self) -> float:
        # A copy, because forget() takes no lock.
        due = min(map(_due, list(self._watched.values())), default=FOREVER)
        return min(due, self._debts[0].due) if self._debts else due

    def _do_what_is_due(self) -> None:
        """Renew the leases that are due, then pay one debt: renewals never wait for more than one."""
        now = self._clock()
        watched = list(self._watched.values())
        if min(map(_due, watched), default=FOREVER) <= now:
            # A lease that would be due within a tenth of its ttl is renewed with them.
            self._renew([lease for lease in watched if lease.due <= now + lease.term.ttl / 10])
        self._pay_one()

    def _renew(self, leases: Sequence[Lease]) -> None:
        """Renew all in one call, and one by one after an unexpected error: it costs the broken one only."""
        now = self._clock()
        live = [lease for lease in leases if self._may_renew(lease, now)]
        if not live:
            return
        now = self._clock()  # again: losses that were found have been announced meanwhile
        # Kept, because the holder may give a lease another term before the answer comes.
        terms = [lease.term for lease in live]
        left = [lease.deadline - now for lease in live if lease.deadline > now]
        answer = None
        reason = ""
        try:
            answer = self._store.renew(terms, within=min(left, default=None))
        except LockUnavailable as error:
            reason = error.reason
        except Exception as error:  # noqa: BLE001
            if len(live) > 1:
                for lease in live:
                    self._renew([lease])
                return
            reason = repr(error)
            if reason != live[0].unanswered:
                what = f"renewing {live[0].key!r} failed unexpectedly; it is tried until its deadline"
                tell(logger.error, what, exc_info=error)
        else:
            self._take_answer(live, terms, answer)
        unanswered = answer.unanswered if answer is not None else {}
        for at, lease in enumerate(live):
            lease.unanswered = unanswered.get(at, reason)
            if answer is None or at in unanswered:
                lease.doubt()
                self._repeat_or_lose(lease)
            if not lease.held:
                # By itself, not by its token: a worker's main process may watch another lease of that.
                self.unwatch(lease)

    def _may_renew(self, lease: Lease, now: float) -> bool:
        """Whether to send a renewal of this lease; if not, it is dropped."""
        since = lease.since
        max_hold = lease.max_hold
        delay = _retry_delay(lease)
        # So that it is renewed soon, if an error cuts its turn short.
        lease.due = now + delay
        if lease.is_near_its_end:
            lease.doubt()
        if now >= since + max_hold:
            lease.lose(f"it was held for longer than lock_max_hold ({max_hold:g} s)")
        elif lease.unanswered and 0 <= now - lease.deadline <= delay:
            # The last renewal was sent in time and not answered; another one would come too late.
            lease.miss_deadline(lease.unanswered)
        elif now >= since + max_hold / 2 and not lease.warned:
            lease.warned = True
            what = (
                "the lease on %r has been held for %.1f s, half of lock_max_hold (%g s; by default it "
                "follows from the time limit); after lock_max_hold it is not renewed any more and counts "
                "as lost: raise lock_max_hold if its work takes that long"
            )
            tell(logger.warning, what, lease.key, now - since, max_hold)
        if why := lease.held and lease.orphaned:
            what = "%r is held as %s, which nothing can release any more: %s; it is left to expire"
            tell(logger.warning, what, lease.key, lease.token, why)
        if not (is_kept := lease.held and not why):
            self.unwatch(lease)
        return is_kept

    def _take_answer(self, leases: Sequence[Lease], terms: Sequence[Term], answer: Renewal) -> None:
        sent_at = answer.sent_at
        answered_at = answer.answered_at
        for at, (lease, term, renewed) in enumerate(zip(leases, terms, answer.renewed, strict=True)):
            if at in answer.unanswered:
                continue
            lease.learn(renewed, sent_at, answered_at, ttl=term.ttl)
            self.renewals += renewed is True
            # Its holder may have given it a shorter term meanwhile, and watches it anew.
            due = sent_at + min(term.ttl, lease.term.ttl) / lease.pace
            if not renewed:
                # A lease that is still held (a claim that is watched beside its holder) is in no hurry.
                due = max(due, answered_at + _retry_delay(lease))
            lease.due = min(due, lease.since + lease.max_hold)

    def _repeat_or_lose(self, lease: Lease) -> None:
        now = self._clock()
        deadline = lease.deadline
        again = now + _retry_delay(lease)
        if now < deadline:
            again = min(again, deadline)
        else:
            lease.miss_deadline(lease.unanswered)
        lease.due = min(again, lease.since + lease.max_hold)

    def _pay_one(self) -> None:
        """Try the debt that is due first, if it is due; only the watchdog's thread pays."""
        debts = self._debts
        expired = []
        now = self._clock()
        while debts and debts[0].due <= now and now >= debts[0].until:
            expired.append(heappop(debts))
        if expired:
            self.is_server_away = self.is_server_away and bool(debts)
            more = f" and {len(expired) - 1} others" if len(expired) > 1 else ""
            tell(logger.warning, f"could not release {expired[0].what}{more} in time: expired by now")
        if not debts or debts[0].due > now:
            return
        debt = debts[0]  # stays first in the heap: it is owed until it is paid
        try:
            self._store.close()  # so that the action gets a new connection
            debt.action()
        except LockUnavailable as error:
            self.is_server_away = True
            heapreplace(debts, debt._replace(due=self._clock() + RETRY_DELAY))
            tell(logger.debug, "could not release %s yet: %s", debt.what, error)
            return
        except LockKeyError as error:
            tell(logger.warning, "could not release %s: %s", debt.what, error.problem)
        except Exception as error:  # noqa: BLE001
            what = f"releasing {debt.what} failed unexpectedly; it is left to expire"
            tell(logger.error, what, exc_info=error)
        else:
            tell(logger.info, "released %s late: its request had got no answer", debt.what)
        self.is_server_away = False
        heappop(debts)


def _retry_delay(lease: Lease) -> float:
    """Seconds until an unanswered renewal is repeated."""
    return max(lease.term.ttl / 20, 0.05)


def watchdog_of(store: LockStore) -> Watchdog:
    """Return the one watchdog of this process for this store, made at the first call."""
    # Kept on the store, so that the two go together when nobody uses them any more.
    known: Watchdog | None = store.__dict__.get("watchdog")
    return known or store.__dict__.setdefault("watchdog", _new_watchdog(store))


def _new_watchdog(store: LockStore) -> Watchdog:
    return Watchdog(store) if store.renewed_with is None else watchdog_of(store.renewed_with)


# A lock held by the parent's watchdog thread at the moment of a fork stays locked for ever in the child
# (measured with billiard 4.3.2, which forks with os.fork), so the child starts over with fresh ones.
_live: "weakref.WeakSet[Watchdog]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for watchdog in list(_live):
        watchdog._forget_everything()


def last_call() -> None:
    """Wait, at most :data:`LAST_CALL` seconds, until this process has paid its debts, or they have expired.

    A publisher may end right after it learnt that the server is away. Its claim may have been granted all the
    same, and would keep its key for an hour. Called as a process exits; a pool's children, which end without
    exit functions (billiard 4.3.2, ``pool.py``, ``_do_exit``), call it by Celery's signal.
    """
    deadline = boottime() + LAST_CALL
    for watchdog in list(_live):
        while watchdog._debts and boottime() < deadline:
            time.sleep(0.01)


# The watchdog's thread, a daemon, runs until after these functions.
atexit.register(last_call)
# A process of multiprocessing ends without them, and forgets its parent's finalizers when it begins.
Finalize(None, last_call, exitpriority=0)
register_after_fork(last_call, lambda call: Finalize(None, call, exitpriority=0))

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

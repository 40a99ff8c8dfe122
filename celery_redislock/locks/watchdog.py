"""The watchdog: one thread that renews every lease of this process before its deadline.

Timeline of one lease of ttl T, granted to a request sent at 0::

    0          T/3        2T/3       deadline   T
    |-----------|----------|------------|-------|
    sent      renew      renew        margin   gone on the server (at the earliest)

An unanswered renewal is repeated every T/20 (at least 50 ms apart), each
attempt bounded by what is left until the deadline.

The same thread repeats what the server did not answer: a debt, normally a
release, is tried once a second until it succeeds or nothing is left to release.
"""

import atexit
import logging
import os
import time
import weakref
from _thread import RLock
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.lease import Clock, Lease, boottime
from celery_redislock.locks.store import LockStore, Renewal, Term
from celery_redislock.locks.thread import greenlets, original, start_thread, tell

logger = logging.getLogger("celery_redislock")

#: Seconds the thread stays when there is nothing to watch.
LINGER = 30.0

#: Seconds between two attempts to pay a debt.
RETRY_DELAY = 1.0

#: Seconds the end of a process waits at most for its debts: for two attempts after the first.
LAST_CALL = 3.0


@dataclass(slots=True, eq=False)
class _Watch:
    """One lease under watch, since when, and at which reading of the clock it is due.

    Attributes:
        max_hold: seconds after ``since`` at which it is not renewed any more; ``inf`` for no limit.
        warned: half of ``max_hold`` has been reported.
        unanswered: why the last renewal got no answer; empty if it got one.
    """

    lease: Lease
    since: float
    max_hold: float
    due: float = 0.0
    warned: bool = False
    unanswered: str = ""

    @property
    def retry_delay(self) -> float:
        """Seconds until an unanswered renewal is repeated."""
        return max(self.lease.term.ttl / 20, 0.05)

    def fall_due(self, at: float) -> None:
        """Be due at that time, or when the lease has been held for long enough, whichever comes first."""
        self.due = min(at, self.since + self.max_hold)


@dataclass(slots=True, eq=False)
class _Debt:
    """An action the server did not answer, to be tried again."""

    action: Callable[[], object]
    what: str
    until: float
    due: float


class Watchdog:
    """Renews leases in the background, and repeats releases that the server did not answer.

    One daemon thread per process and store, started by the first lease,
    asleep between renewals, and gone when there has been nothing to watch for
    half a minute; native with gevent, where it stays. One call renews everything
    that is due. All methods may be called from any thread, any number of times.
    A forked child starts with nothing to watch: its parent's leases are its parent's.

    Attributes:
        renewals: how many renewals the server has confirmed since the process began.
    """

    def __init__(self, store: LockStore, *, clock: Clock = boottime) -> None:
        """Watch over leases of this store; starts no thread yet."""
        self._clock = clock
        self._store = store
        self.renewals = 0
        self._sleeps_until: float
        self._forget_everything()
        _live.add(self)

    def watch(self, lease: Lease, *, max_hold: float | None = None, first: float = float("inf")) -> None:
        """Keep the lease alive from now on; a watch it had before is replaced.

        Args:
            lease: renewed every third of its ttl until :meth:`forget`, or until it is lost.
            max_hold: seconds after which it is not renewed any more and counts as lost; a warning is
                logged at half of it. ``None``: no limit.
            first: seconds after which it is renewed first, where a third of its ttl is too late.
        """
        with self._lock:
            now = self._clock()
            # A third of the ttl; sooner where the grant took long and little of its term is left.
            due = now + min(lease.term.ttl / 3, max(0.0, lease.deadline - now) / 2, first)
            longest = float("inf") if max_hold is None else max_hold
            watch = _Watch(lease, now, longest, min(due, now + longest))
            self._watched[lease.token] = watch
            self._run_thread()
            # Most leases end before they are due: waking the thread for each would double a lock's cost.
            # After its time the thread runs, or overslept with the machine: its wait stops in a suspend.
            if not now < self._sleeps_until <= watch.due:
                self._sleeps_until = watch.due
                self._bell.put(None)

    def forget(self, token: str) -> None:
        """Do not renew this token's lease any more; a renewal that was sent already is not waited for."""
        self._watched.pop(token, None)

    def unwatch(self, lease: Lease) -> None:
        """Do not renew this very lease any more; a later one of the same token is still renewed."""
        watch = self._watched.get(lease.token)
        if watch is not None and watch.lease is lease:
            del self._watched[lease.token]

    def owe(self, action: Callable[[], object], *, within: float, what: str) -> None:
        """Do something in the watchdog's thread, at once, and once a second until the server answers.

        Each attempt is made on a new connection. An earlier request that was given up may still reach the
        server after it, and then holds its lock until its ttl has passed.

        Args:
            action: a bounded request to the store, which may be repeated: normally a release.
            within: seconds after which it is not tried any more, because the hold has expired.
            what: the hold in log messages.
        """
        with self._lock:
            now = self._clock()
            self._debts.append(_Debt(action, what, now + within, now))
            self._run_thread()
            self._bell.put(None)

    @property
    def is_server_away(self) -> bool:
        """Whether the server did not answer when a debt was last tried, and the debt is still to be paid."""
        return self._is_unanswered and bool(self._debts)

    def settle(self, timeout: float) -> bool:
        """Wait until every debt is paid or has expired; at most ``timeout`` seconds.

        Returns:
            Whether nothing is owed any more.
        """
        give_up = boottime() + timeout
        while self._debts and boottime() < give_up:
            time.sleep(0.01)
        return not self._debts

    def _forget_everything(self) -> None:
        # Reentrant: a signal handler may take a lock of its own. Native; and nothing switches that has it.
        self._lock, self._bell = RLock(), original("queue", "SimpleQueue")()
        self._watched: dict[str, _Watch] = {}
        self._debts: list[_Debt] = []
        self._is_unanswered = False
        self._sleeps_until = float("-inf")
        self._has_thread = False

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
                tell(
                    logger.error, "the redislock watchdog met an unexpected error and goes on", exc_info=error
                )

    def _wait(self) -> bool:
        """Sleep until something is due; false when nothing has been for so long that the thread ends."""
        while True:
            with self._lock:
                if (wait := self._next_due() - (now := self._clock())) <= 0:
                    return True
                # A time to wake is kept although the lease it was for has been released: the next lease is
                # due later and wakes nobody, or this thread would wake for each of many short tasks.
                kept = self._sleeps_until - now
                pause = min(wait, LINGER, kept if kept > 0 else LINGER)
                self._sleeps_until = now + pause
            try:
                self._bell.get(timeout=pause)
            except Empty:
                if pause == LINGER and self._ends():
                    return False

    def _ends(self) -> bool:
        with self._lock:
            # gevent never frees the hub of a thread that has ended (26.9, although it was destroyed).
            self._has_thread = bool(self._watched or self._debts) or greenlets.get() is not None
            return not self._has_thread

    def _next_due(self) -> float:
        # A copy, because forget() takes no lock.
        dues = [watch.due for watch in list(self._watched.values())] + [debt.due for debt in self._debts]
        return min(dues, default=float("inf"))

    def _do_what_is_due(self) -> None:
        """Renew what is due, then pay one debt: renewals never wait for more than one of those."""
        with self._lock:
            now, watched = self._clock(), list(self._watched.values())
        if any(watch.due <= now for watch in watched):
            # What would be due within a tenth of its ttl joins the call.
            self._renew([watch for watch in watched if watch.due <= now + watch.lease.term.ttl / 10])
        self._pay_one()

    def _renew(self, watches: Sequence[_Watch]) -> None:
        """Renew all in one call, and one by one after an unexpected error: it costs the broken one only."""
        live = [watch for watch in watches if self._may_renew(watch)]
        if not live:
            return
        now = self._clock()
        # Kept, because the holder may give a lease another term before the answer comes.
        terms = [watch.lease.term for watch in live]
        left = [watch.lease.deadline - now for watch in live if watch.lease.deadline > now]
        answer, reason = None, ""
        try:
            answer = self._store.renew(terms, within=min(left, default=None))
        except LockUnavailable as error:
            reason = error.reason
        except Exception as error:  # noqa: BLE001
            if len(live) > 1:
                for watch in live:
                    self._renew([watch])
                return
            reason = repr(error)
            if reason != live[0].unanswered:
                what = f"renewing {live[0].lease.key!r} failed unexpectedly; it is tried until its deadline"
                tell(logger.error, what, exc_info=error)
        for place, (watch, term) in enumerate(zip(live, terms, strict=True)):
            watch.unanswered = reason
            if answer is None:
                self._repeat_or_lose(watch)
            else:
                self._take_answer(watch, term, answer, place)
            self._is_held(watch)

    def _is_held(self, watch: _Watch) -> bool:
        """Whether the lease is held; its watch is dropped if not."""
        is_held = watch.lease.held
        # Not the watch that has replaced it meanwhile: a worker's main process may watch the same token.
        if not is_held and self._watched.get(watch.lease.token) is watch:
            self.forget(watch.lease.token)
        return is_held

    def _may_renew(self, watch: _Watch) -> bool:
        """Whether to ask for this lease at all; it is dropped if not."""
        lease, now, max_hold = watch.lease, self._clock(), watch.max_hold
        # Should an error cut its turn short, it is asked about again all the same, and soon.
        watch.due = now + watch.retry_delay
        if now >= watch.since + max_hold:
            lease.lose(f"it was held for longer than lock_max_hold ({max_hold:g} s)")
        elif watch.unanswered and 0 <= now - lease.deadline <= watch.retry_delay:
            # Asked in time, without an answer, and woken for the deadline: asking again would come too late.
            lease.miss_deadline(watch.unanswered)
        elif now >= watch.since + max_hold / 2 and not watch.warned:
            watch.warned = True
            lease.warn_of_end(now - watch.since, max_hold)
        return self._is_held(watch)

    def _take_answer(self, watch: _Watch, term: Term, answer: Renewal, place: int) -> None:
        renewed = answer.renewed[place]
        watch.lease.learn(renewed, answer.sent_at, answer.answered_at, ttl=term.ttl)
        self.renewals += renewed is True
        due = answer.sent_at + term.ttl / 3
        # One that was not renewed and yet goes on (a claim that is watched beside its holder) is in no hurry.
        watch.fall_due(due if renewed else max(due, self._clock() + watch.retry_delay))

    def _repeat_or_lose(self, watch: _Watch) -> None:
        now, deadline = self._clock(), watch.lease.deadline
        again = now + watch.retry_delay
        if now < deadline:
            again = min(again, deadline)
        else:
            watch.lease.miss_deadline(watch.unanswered)
        watch.fall_due(again)

    def _pay_one(self) -> None:
        """Try the debt that is due first, if it is due; only the watchdog's thread pays."""
        with self._lock:
            now = self._clock()
            expired = [debt for debt in self._debts if now >= debt.until]
            self._debts = [debt for debt in self._debts if now < debt.until]
            debt = min(self._debts, key=lambda each: each.due, default=None)
        if expired:
            more = f" and {len(expired) - 1} others" if len(expired) > 1 else ""
            tell(logger.warning, f"could not settle {expired[0].what}{more} in time: expired by now")
        if debt is None or debt.due > now:
            return
        try:
            self._store.close()  # so that the action gets a new connection
            debt.action()
        except LockUnavailable as error:
            self._is_unanswered = True
            debt.due = self._clock() + RETRY_DELAY
            tell(logger.debug, "could not settle %s yet: %s", debt.what, error)
            return
        except Exception as error:  # noqa: BLE001
            what = f"settling {debt.what} failed unexpectedly; it is left to expire"
            tell(logger.error, what, exc_info=error)
        else:
            self._is_unanswered = False
            tell(logger.info, "settled %s late: the lock server had not answered", debt.what)
        with self._lock:
            self._debts = [each for each in self._debts if each is not debt]


# Reentrant: a signal handler may take the store's first lock in the middle of it.
_first_of_store = RLock()


def watchdog_of(store: LockStore) -> Watchdog:
    """Return the one watchdog of this process for this store, made at the first call."""
    watchdog: Watchdog | None = getattr(store, "_watchdog", None)
    if watchdog is None:
        with _first_of_store:
            watchdog = getattr(store, "_watchdog", None) or Watchdog(store)
            # Kept on the store, so that the two go together when nobody uses them any more.
            store._watchdog = watchdog
    return watchdog


# A lock held by the parent's watchdog thread at the moment of a fork stays locked for ever in the child
# (measured with billiard 4.3.2, which forks with os.fork), so the child starts over with fresh ones.
_live: "weakref.WeakSet[Watchdog]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    global _first_of_store  # noqa: PLW0603  the module owns it, and the child needs a fresh one
    _first_of_store = RLock()
    for watchdog in list(_live):
        watchdog._forget_everything()


def last_call() -> None:
    """Wait, at most :data:`LAST_CALL` seconds, until this process has paid its debts.

    A publisher may end right after it learnt that the server is away. Its claim may have been granted all the
    same, and would keep its key for an hour. Called as a process exits; a pool's children, which end without
    exit functions (billiard 4.3.2, ``pool.py``, ``_do_exit``), call it by Celery's signal.
    """
    deadline = boottime() + LAST_CALL
    for watchdog in list(_live):
        watchdog.settle(max(0.0, deadline - boottime()))


# The watchdog's thread, a daemon, runs until after these functions.
atexit.register(last_call)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

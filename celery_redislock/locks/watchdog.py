"""The watchdog: one thread that renews every lease of this process before its deadline.

Timeline of one lease of ttl T, granted to a request sent at 0::

    0          T/3        2T/3       deadline   T
    |-----------|----------|------------|-------|
    sent      renew      renew        margin   gone on the server (at the earliest)

An unanswered renewal is repeated every T/20 (at least 50 ms apart), each
attempt bounded by what is left until the deadline; at the deadline, and only
then, the lease counts as lost without the server's word. A thread that comes
late, because the process was paused or another thread kept the interpreter,
asks first and believes the answer.
"""

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable

from celery_redislock.locks.clock import Clock, boottime
from celery_redislock.locks.debts import Debts
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.renewing import Renewing
from celery_redislock.locks.schedule import Schedule
from celery_redislock.locks.store import LockStore

__all__ = ["Watchdog", "last_call", "watchdog_of"]

logger = logging.getLogger("celery_redislock")

#: Seconds the thread stays when there is nothing to watch.
LINGER = 30.0

#: Seconds the end of a process is held up at most by what it still owes: for two attempts after the first.
LAST_CALL = 3.0


class Watchdog:
    """Renews leases in the background, and gives back holds while the server could not be asked.

    One daemon thread per process and store, started by the first lease,
    asleep between renewals and gone when there has been nothing to watch for
    half a minute; one call renews everything that is due. All
    methods may be called from any thread, any number of times. A forked child
    starts with nothing to watch: its parent's leases are its parent's.
    """

    def __init__(self, store: LockStore, *, clock: Clock = boottime) -> None:
        """Watch over leases of this store; starts no thread yet."""
        self._clock = clock
        self._renewing = Renewing(store, clock)
        self._store = store
        self._sleeps_until: float
        self._forget_everything()
        _live.add(self)

    @property
    def renewals(self) -> int:
        """How many renewals the server has confirmed since the process began: a fact tests wait on."""
        return self._renewing.confirmed

    def watch(self, lease: Lease, *, max_hold: float | None = None) -> None:
        """Keep the lease alive from now on.

        Args:
            lease: renewed every third of its ttl until :meth:`forget`, or until it is lost.
            max_hold: seconds after which it is renewed no more and counts as lost; a warning is
                logged at half of it. ``None``: no limit.
        """
        with self._lock:
            now = self._clock()
            watch = self._schedule.add(lease, now=now, max_hold=max_hold)
            self._run_thread()
            # Most leases end before they are due: waking the thread for each would double a lock's cost.
            # Past its time the thread is at work, or overslept with the machine: its wait stops in a suspend.
            if not now < self._sleeps_until <= watch.due:
                self._sleeps_until = watch.due
                self._wake.notify()

    def forget(self, lease: Lease) -> None:
        """Renew this lease no more; a renewal already on its way is not waited for."""
        with self._lock:
            self._schedule.remove(lease)

    def watches(self, lease: Lease) -> bool:
        """Whether the lease is being renewed."""
        return lease.token in self._schedule

    def owe(self, action: Callable[[], object], *, within: float, what: str) -> None:
        self.release_later(action, within=within, what=what)

    def release_later(
        self, release: Callable[[], object], *, within: float, what: str, token: str | None = None
    ) -> None:
        """Try to give a hold back until the server answers or the hold has expired by itself.

        Args:
            release: gives it back; called in the watchdog's thread; idempotent. It overtakes no
                request for the hold that may be on its way still, given up before this call
                (:meth:`~celery_redislock.locks.store.LockStore.behind`). It raises
                :class:`~celery_redislock.locks.debts.NotYet` where it must wait for something else
                than the server: it is called again a second later.
            within: seconds after which the hold is gone anyway.
            what: names the hold in log lines.
            token: of the hold, if anybody may give it back sooner, with :meth:`release_now`. From now on
                it is renewed no more: a lease whose start was interrupted would be, for ever, once this
                debt has expired.
        """

        def release_anew() -> None:
            # On a new connection: what is sent on one that is open may be read before the request that was
            # given up.
            self._store.close()
            release()

        with self._lock:
            if token is not None:
                self._schedule.drop(token)
            self._debts.add(release_anew, within=within, what=what, token=token)
            self._run_thread()
            self._wake.notify()

    def release_now(self, token: str) -> bool:
        """Give the hold of this token back in the calling thread, if this process owes it.

        Returns:
            Whether it was owed.

        Raises:
            LockUnavailable: the server still does not answer; it stays owed.
        """
        release = self._debts.release_of(token)
        if release is None:
            return False
        release()
        return True

    @property
    def is_server_away(self) -> bool:
        """Whether the server did not answer when a debt was last tried, and will be asked again."""
        return self._debts.is_server_away

    @property
    def owes(self) -> int:
        """How many holds are still to be given back."""
        return len(self._debts)

    def settle(self, timeout: float) -> bool:
        """Wait until nothing is owed any more but what must wait for something else than the server.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether everything else has been given back, or has expired.
        """
        with self._lock:
            return self._paid.wait_for(lambda: not self._debts.wait_for_the_server, timeout)

    def _forget_everything(self) -> None:
        # Entered itself, and not through the condition, whose __enter__ is Python: a signal's handler that
        # raises in there would leave it locked. Reentrant: a handler may take a lock of its own.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._paid = threading.Condition(self._lock)
        self._schedule = Schedule()
        self._debts = Debts(self._clock)
        self._sleeps_until = float("-inf")
        self._thread: threading.Thread | None = None

    def _run_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="redislock-watchdog", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._wait():
            try:
                self._do_what_is_due()
            except Exception:
                # A thread that dies silently would lose every lease of the process without a word.
                logger.exception("the redislock watchdog met an unexpected error and goes on")

    def _wait(self) -> bool:
        """Sleep until something is due; false when nothing has been for so long that the thread ends."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return False  # its start was interrupted, and another one was started since
            while (wait := self._next_due() - (now := self._clock())) > 0:
                # A time to wake is kept although the lease it was for has been released: the next lease is
                # due later and rouses nobody, or this thread would wake for each of many short tasks.
                kept = self._sleeps_until - now
                pause = min(wait, LINGER, kept if kept > 0 else LINGER)
                self._sleeps_until = now + pause
                woken = self._wake.wait(pause)
                if not woken and pause == LINGER and not self._schedule and not self._debts:
                    self._thread = None
                    return False
        return True

    def _next_due(self) -> float:
        return min(self._schedule.next_due(), self._debts.next_due())

    def _do_what_is_due(self) -> None:
        """Renew what is due, then pay one debt: renewals never wait for more than one of those."""
        with self._lock:
            due = self._schedule.take_due(self._clock())
        try:
            self._renewing.renew(due)
        finally:
            with self._lock:
                for watch in due:
                    self._schedule.put_back(watch)
        self._debts.pay_one()
        with self._lock:
            self._paid.notify_all()


# Reentrant: a signal handler may take the store's first lock in the middle of it.
_first_of_store = threading.RLock()


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
    _first_of_store = threading.RLock()
    for watchdog in list(_live):
        watchdog._forget_everything()


def last_call() -> None:
    """Wait, not for long, until this process has given back what it owes; it ends then.

    A publisher that was told that the server is away, and ends at that: its claim may have been granted all
    the same, and would keep its key for an hour. Called as a process exits; a pool's children, which end
    without exit functions (billiard 4.3.2, ``pool.py``, ``_do_exit``), call it by Celery's signal.
    """
    deadline = boottime() + LAST_CALL
    for watchdog in list(_live):
        watchdog.settle(max(0.0, deadline - boottime()))


# The watchdog's thread is at work until after these functions.
atexit.register(last_call)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

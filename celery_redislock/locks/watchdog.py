"""The watchdog: one thread that renews every lease of this process before its deadline.

Timeline of one lease of ttl T, granted to a request sent at 0::

    0          T/3        2T/3       deadline   T
    |-----------|----------|------------|-------|
    sent      renew      renew        margin   gone on the server (at the earliest)

An unanswered renewal is repeated every T/20 (at least 50 ms apart) until the
deadline; then, and only then, the lease counts as lost without the server's
word. A thread that comes late, because the process was paused or another
thread kept the interpreter, asks first and believes the answer.
"""

import heapq
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_redislock.exceptions import LockUnavailable, RedisLockError
from celery_redislock.locks.clock import Clock, boottime
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.store import LockStore, Renewal

__all__ = ["Watchdog", "watchdog_of"]

logger = logging.getLogger("celery_redislock")

#: Seconds between attempts to give back a hold the server could not be asked about.
RELEASE_RETRY_DELAY = 1.0


@dataclass(order=True, slots=True)
class _Watch:
    due: float
    number: int
    lease: Lease = field(compare=False)
    max_hold: float | None = field(compare=False)
    since: float = field(compare=False)
    warned: bool = field(compare=False, default=False)


class Watchdog:
    """Renews leases in the background, and gives back holds while the server could not be asked.

    One daemon thread per process and store, started by the first lease and
    asleep between renewals; one call renews everything that is due. All
    methods may be called from any thread, any number of times. A forked child
    starts with nothing to watch: its parent's leases are its parent's.
    """

    def __init__(self, store: LockStore, *, clock: Clock = boottime) -> None:
        """Watch over leases of this store; starts no thread yet."""
        self._store = store
        self._clock = clock
        self._renewed = 0
        self._forget_everything()
        _live.add(self)

    @property
    def renewals(self) -> int:
        """How many renewals the server has confirmed since the process began: a fact tests wait on."""
        return self._renewed

    def watch(self, lease: Lease, *, max_hold: float | None = None) -> None:
        """Keep the lease alive from now on.

        Args:
            lease: renewed every third of its ttl until :meth:`forget`, or until it is lost.
            max_hold: seconds after which it is renewed no more and counts as lost; a warning is
                logged at half of it. ``None``: no limit.
        """
        now = self._clock()
        watch = _Watch(now + lease.term.ttl / 3, next(self._numbers), lease, max_hold, now)
        with self._wake:
            self._watched[lease.token] = watch
            heapq.heappush(self._due, watch)
            self._run_thread()
            if self._due[0] is watch:
                self._wake.notify()

    def forget(self, lease: Lease) -> None:
        """Renew this lease no more; a renewal already on its way is not waited for."""
        with self._wake:
            self._watched.pop(lease.token, None)

    def watches(self, lease: Lease) -> bool:
        """Whether the lease is being renewed."""
        return lease.token in self._watched

    def release_later(self, release: Callable[[], object], *, within: float, what: str) -> None:
        """Try to give a hold back until the server answers or the hold has expired by itself.

        Args:
            release: gives it back; called in the watchdog's thread; idempotent.
            within: seconds after which the hold is gone anyway.
            what: names the hold in log lines.
        """
        now = self._clock()
        with self._wake:
            heapq.heappush(self._owed, (now, next(self._numbers), now + within, release, what))
            self._run_thread()
            self._wake.notify()

    @property
    def owes(self) -> int:
        """How many holds are still to be given back."""
        return len(self._owed)

    def _forget_everything(self) -> None:
        self._wake = threading.Condition()
        self._numbers = itertools.count()
        self._watched: dict[str, _Watch] = {}
        self._due: list[_Watch] = []
        self._owed: list[tuple[float, int, float, Callable[[], object], str]] = []
        self._thread: threading.Thread | None = None

    def _run_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="redislock-watchdog", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                while (wait := self._next_due() - self._clock()) > 0:
                    self._wake.wait(min(wait, threading.TIMEOUT_MAX) if wait != float("inf") else None)
                due, owed = self._take_due(), self._take_owed()
            try:
                if due:
                    self._renew(due)
                for debt in owed:
                    self._pay(*debt)
            except Exception:
                # A thread that dies silently would lose every lease of the process without a word.
                logger.exception("the redislock watchdog met an unexpected error and goes on")

    def _next_due(self) -> float:
        while self._due and self._watched.get(self._due[0].lease.token) is not self._due[0]:
            heapq.heappop(self._due)
        first = self._due[0].due if self._due else float("inf")
        return min(first, self._owed[0][0]) if self._owed else first

    def _take_due(self) -> list[_Watch]:
        """Everything due now, and what would be due within a tenth of its ttl: one call for all."""
        now = self._clock()
        taken: list[_Watch] = []
        while self._due and self._due[0].due <= now + self._due[0].lease.term.ttl / 10:
            watch = heapq.heappop(self._due)
            if self._watched.get(watch.lease.token) is watch:
                taken.append(watch)
        return taken

    def _take_owed(self) -> list[tuple[float, int, float, Callable[[], object], str]]:
        now = self._clock()
        taken = []
        while self._owed and self._owed[0][0] <= now:
            taken.append(heapq.heappop(self._owed))
        return taken

    def _renew(self, watches: list[_Watch]) -> None:
        live = [watch for watch in watches if self._may_renew(watch)]
        if not live:
            return
        try:
            answer: Renewal | None = self._store.renew([watch.lease.term for watch in live])
            reason = ""
        except RedisLockError as error:
            answer, reason = None, getattr(error, "reason", str(error))
        for place, watch in enumerate(live):
            lease = watch.lease
            if answer is not None:
                lease.learn(answer.renewed[place], answer.sent_at, answer.answered_at)
                self._renewed += answer.renewed[place] is True
                self._again(watch, answer.sent_at + lease.term.ttl / 3)
            elif self._clock() >= lease.deadline:
                lease.lose(f"it could not be confirmed by its deadline ({reason})")
                self.forget(lease)
            else:
                self._again(watch, self._clock() + max(lease.term.ttl / 20, 0.05))

    def _may_renew(self, watch: _Watch) -> bool:
        if watch.max_hold is None:
            return watch.lease.held
        held_for = self._clock() - watch.since
        if held_for >= watch.max_hold:
            watch.lease.lose(f"it was held for longer than lock_max_hold ({watch.max_hold:g} s)")
            self.forget(watch.lease)
            return False
        if held_for >= watch.max_hold / 2 and not watch.warned:
            watch.warned = True
            logger.warning(
                "the lease on %r has been held for %.1f s, half of lock_max_hold (%g s); "
                "after that it is renewed no more",
                watch.lease.key,
                held_for,
                watch.max_hold,
            )
        return watch.lease.held

    def _again(self, watch: _Watch, due: float) -> None:
        with self._wake:
            if self._watched.get(watch.lease.token) is not watch:
                return
            if not watch.lease.held:
                del self._watched[watch.lease.token]
                return
            watch.due = due
            if watch.max_hold is not None:
                watch.due = min(due, watch.since + watch.max_hold)
            heapq.heappush(self._due, watch)

    def _pay(self, due: float, number: int, until: float, release: Callable[[], object], what: str) -> None:
        try:
            release()
        except LockUnavailable as error:
            if self._clock() >= until:
                logger.warning("gave up giving back %s: %s; it has expired by now", what, error.reason)
                return
            with self._wake:
                due = self._clock() + RELEASE_RETRY_DELAY
                heapq.heappush(self._owed, (due, number, until, release, what))
        else:
            logger.info("gave back %s, late: the lock server had been away", what)


_first_of_store = threading.Lock()


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
    _first_of_store = threading.Lock()
    for watchdog in list(_live):
        watchdog._forget_everything()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

"""What the worker's main process renews: the holds of messages it has received and not seen ended.

Most deliveries are over within a second and never need one. So a delivery costs an entry in a queue here; its
header is read, and its renewal begins, when a thread finds it still there after a while.
"""

import os
import weakref
from collections import deque
from collections.abc import Collection
from datetime import datetime, timezone
from functools import partial
from math import inf
from typing import Any

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.log import logger
from celery_redislock.publishing.turn import hand_off
from celery_redislock.receiving.hand import RUNS, RUNS_ELSEWHERE, WAITS, State
from celery_redislock.store.store import Grant, Term
from celery_redislock.wire.clock import boottime
from celery_redislock.wire.thread import original, start_thread, tell

#: Seconds between two looks. A delivery that is there at one of them is taken out at the next.
PAUSE = 0.5


class HoldInHand(Lease):
    """A hold of a message this process has received, renewed beside its holder.

    So a child that keeps the interpreter in C code for minutes keeps its lock. This process does not
    decide about losses: its request may be sent before the child has started, or after it has ended.
    """

    #: The run itself warns.
    warned = True

    def __init__(
        self, lock: TaskLock, token: str, ttl: float, request: Any, states: Collection[State]
    ) -> None:
        """Renew from now on what a request holds while it is in these states."""
        now = boottime()
        super().__init__(lock.store, Term(lock.key, token, ttl), Grant(0, False, now, now))
        self.watchdog = watchdog_of(lock.store)
        self._request = weakref.ref(request)
        self._states = states

    @property
    def held(self) -> bool:
        """The message is still here, or its run has not ended; its renewal may have begun too late.

        Not longer than it may be held: the run itself announces that.
        """
        request = self._request()
        if self.ended or request is None or request.state not in self._states:
            return False
        return not request.has_result and boottime() < self.since + self.max_hold

    def lose(self, reason: str) -> None:
        """Keep asking: a missing hold may still come, or come back, and a child may wait for the server."""


def begin(request: Any) -> None:
    """Renew what a request holds, which has lasted."""
    request.renewals = ()  # first: it may be accepted now, in another thread
    if request.state in WAITS:
        _renew_claim(request)
    elif not request.has_result:
        # Its start may take long, and until then nobody else can tell that it is not lost.
        _renew_turn(request, RUNS)
        if request.state is RUNS_ELSEWHERE:
            _renew_lease(request)


def _renew_claim(request: Any) -> None:
    """Renew the claim while the message waits here: prefetched, for its ETA, or for a rate limit."""
    if (delivery := request.delivery) is None:
        return
    lock = delivery.locks.claim
    message = delivery.message
    if delivery.parked_as is not None:
        _renew_turn(request, WAITS)
        return
    if message is None or not message.claimed or message.stands_for_period:
        return
    queue_ttl = delivery.options.lock_queue_ttl
    now = datetime.now(timezone.utc)
    # Not less than until the ETA and as long again: its claim was made for that.
    until_eta = (request.eta - now).total_seconds() if request.eta else 0.0
    ttl = queue_ttl + max(0.0, until_eta)
    # Celery looks at its expiry when it gives it to the pool, and not again.
    may_expire = request.expires and request._apply_result is None
    until_expiry = (request.expires - now).total_seconds() if may_expire else inf
    # Soon: the message may have waited in its queue until little of its claim is left.
    soon = min(2 * PAUSE, queue_ttl / 12, max(0.0, until_expiry) / 12)
    renewal = partial(HoldInHand, lock, message.token, request=request, states=WAITS)
    if until_expiry >= ttl:
        _renew(request, renewal(ttl=ttl), first=soon, max_hold=until_expiry)
    elif until_expiry > PAUSE:
        # Once: from its expiry on it cannot run, although it may wait here for much longer.
        _renew(request, renewal(ttl=until_expiry), first=soon, max_hold=2 * soon)


def _renew_turn(request: Any, states: Collection[State]) -> None:
    """Renew what it was handed in line: if this process dies, it is handed that again soon."""
    delivery = request.delivery
    if delivery is None or (parked_as := delivery.parked_as) is None:
        return
    lock = delivery.locks.claim
    lives_for = hand_off(declaration_of(request.task).settings)
    for each in dict.fromkeys((lock, delivery.locks.copies)):
        turn = HoldInHand(each, parked_as, lives_for, request, states)
        turn.token += "" if each == lock else " beside"  # the watchdog knows holds by their tokens
        _renew(request, turn, first=PAUSE)


def _renew_lease(request: Any) -> None:
    # Made anew: whether its message was kept for so long that it can come again shows when it starts.
    request.__dict__.pop("delivery", None)
    delivery = request.delivery
    if delivery is not None and (delivery.locks.running is not None or delivery.again):
        lock = delivery.locks.copies
        limit = request.time_limits[0] or request.task.time_limit
        renewal = HoldInHand(lock, delivery.token, lock.ttl, request, RUNS)
        _renew(request, renewal, max_hold=delivery.options.max_hold(limit))


def _renew(request: Any, renewal: HoldInHand, **when: Any) -> None:
    request.renewals = (*(request.renewals or ()), renewal)
    renewal.watchdog.watch(renewal, **when)


def stop_renewing(request: Any) -> None:
    """Renew no more of what a request holds."""
    for renewal in request.renewals or ():
        renewal.end()
        renewal.watchdog.unwatch(renewal)
    request.renewals = ()


class Unrenewed:
    """Deliveries whose renewal has not begun, and the daemon thread that looks at them.

    A forked child starts over.
    """

    def __init__(self) -> None:
        """Start no thread yet."""
        # None marks where the last look was. Every operation on it is atomic.
        self._queue: deque[weakref.ref[Any] | None] = deque([None])
        self._has_thread = False

    def add(self, request: Any) -> None:
        """Call ``request.begin_renewal()`` in the thread after a while, if anybody refers to it then."""
        self._queue.append(weakref.ref(request))
        if not self._has_thread:
            self._has_thread = True
            start_thread(self._run, "redislock-renewal")

    def look(self) -> None:
        """Take out what was there at the last look."""
        while (entry := self._queue.popleft()) is not None:
            try:
                if (request := entry()) is not None:
                    request.begin_renewal()
            except BaseException as error:  # noqa: BLE001  a thread that dies would renew nothing any more
                tell(logger.error, "could not begin to renew what a message holds", exc_info=error)
        self._queue.append(None)

    def _run(self) -> None:
        sleep = original("time", "sleep")  # native with gevent
        while True:
            sleep(PAUSE)
            self.look()


#: The one of this process.
UNRENEWED = Unrenewed()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(Unrenewed.__init__, UNRENEWED))

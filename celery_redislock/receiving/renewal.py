"""What the worker's main process renews: the holds of messages it has received and not seen ended.

Most deliveries are over within a second and never need one. So a delivery costs an entry in a queue here; its
header is read, and its renewal begins, when a thread finds it still there after a while.
"""

import os
import weakref
from collections import deque
from collections.abc import Collection
from functools import partial
from typing import Any

from celery_redislock.locks.lease import Lease
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.log import logger
from celery_redislock.receiving.hand import State
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

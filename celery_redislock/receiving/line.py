"""The line of what the worker's main process has in hand, until it has lasted.

Nearly every message has run before anything of it has to be renewed. So a delivery costs an entry here; its
header is read, and its renewal begins, when a thread finds it still there after a while.
"""

import logging
import os
from _thread import RLock
from collections import deque
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any
from weakref import ref

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.locks.thread import original, start_thread, tell

__all__ = ["LINE", "patience"]

logger = logging.getLogger("celery_redislock")


def patience(ttl: float) -> float:
    """Return the seconds what lives so long may stand in line, and as many until it is renewed then."""
    return min(1.0, ttl / 12)


class Line:
    """What has come lately, and one daemon thread that takes out what has been there for a while.

    While somebody stands in line it looks twice in the shortest :func:`patience` of the tasks there were, and
    takes out what was there at its last look. Native with gevent. A forked child starts over.
    """

    def __init__(self) -> None:
        """Start no thread yet."""
        # None marks where the last look was. Whatever is done to it is atomic.
        self._line: deque[ref[Any] | None] = deque([None])
        self._met: dict[int, ref[Any]] = {}
        self._patience = patience(float("inf"))
        self._lock, self._bell = RLock(), original("queue", "SimpleQueue")()
        self._is_idle, self._has_thread = True, False

    def add(self, delivery: Any, task: Any) -> None:
        """Call ``delivery.leave_line()`` in the thread after a while, if anybody refers to it then."""
        if id(task) not in self._met:
            self._meet(task)
        self._line.append(ref(delivery))
        if self._is_idle:
            self._ring()

    def look(self) -> None:
        """Take out what was there at the last look."""
        while (entry := self._line.popleft()) is not None:
            try:
                if (delivery := entry()) is not None:
                    delivery.leave_line()
            except BaseException as error:  # noqa: BLE001  a thread that dies would renew nothing any more
                tell(logger.error, "could not begin to renew what a message holds", exc_info=error)
        self._line.append(None)

    def _meet(self, task: Any) -> None:
        met, number = self._met, id(task)
        met[number] = ref(task, lambda _: met.pop(number, None))
        with suppress(Exception):  # a wrong declaration is the child's to report
            options = declaration_of(task).options
            self._patience = min(self._patience, patience(min(options.lock_ttl, options.lock_queue_ttl)))
            self._ring()

    def _ring(self) -> None:
        with self._lock:
            self._is_idle = False
            if not self._has_thread:
                start_thread(self._run, "redislock-line")
                self._has_thread = True
            self._bell.put(None)

    def _run(self) -> None:
        while True:
            self._is_idle = True  # first, and then it looks for entries: whoever comes after that rings
            pause = self._patience / 2 if len(self._line) > 1 else None
            self._is_idle = pause is None
            with suppress(Empty):
                self._bell.get(timeout=pause)
            self.look()


#: The one of this process.
LINE = Line()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(Line.__init__, LINE))

"""The line of what the worker's main process has in hand, until it has lasted.

Nearly every message has run before anything of it has to be renewed. So a delivery costs an entry here; its
header is read, and its renewal begins, when a thread finds it still there after a while.
"""

import logging
import os
from collections import deque
from functools import partial
from typing import Any
from weakref import ref

from celery_redislock.locks.thread import original, start_thread, tell

__all__ = ["LINE", "PAUSE"]

logger = logging.getLogger("celery_redislock")

#: Seconds between two looks. Who stands in line at one of them leaves at the next.
PAUSE = 0.5


class Line:
    """What has come lately, and the daemon thread that looks at it. A forked child starts over."""

    def __init__(self) -> None:
        """Start no thread yet."""
        # None marks where the last look was. Whatever is done to it is atomic.
        self._line: deque[ref[Any] | None] = deque([None])
        self._has_thread = False

    def add(self, delivery: Any) -> None:
        """Call ``delivery.leave_line()`` in the thread after a while, if anybody refers to it then."""
        self._line.append(ref(delivery))
        if not self._has_thread:
            self._has_thread = True
            start_thread(self._run, "redislock-line")

    def look(self) -> None:
        """Take out what was there at the last look."""
        while (entry := self._line.popleft()) is not None:
            try:
                if (delivery := entry()) is not None:
                    delivery.leave_line()
            except BaseException as error:  # noqa: BLE001  a thread that dies would renew nothing any more
                tell(logger.error, "could not begin to renew what a message holds", exc_info=error)
        self._line.append(None)

    def _run(self) -> None:
        sleep = original("time", "sleep")  # native with gevent
        while True:
            sleep(PAUSE)
            self.look()


#: The one of this process.
LINE = Line()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(Line.__init__, LINE))

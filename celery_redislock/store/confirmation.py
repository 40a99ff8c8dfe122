"""What must have a lock before it counts: replicas of its server, its disk, or both.

A server that dies takes with it what it has not passed on. ``WAIT`` and ``WAITAOF`` are answered when what
was written on the same connection is elsewhere, too. On another connection they confirm what nobody has.
"""

import re
from typing import Any

from celery_redislock.exceptions import LockOptionError
from celery_redislock.log import logger
from celery_redislock.wire.clock import Clock
from celery_redislock.wire.thread import tell

#: Seconds that a server's disk may take: it is written to once a second (``appendfsync everysec``).
SYNC_TAKES = 2.0

#: Seconds between two looks at which replicas are online.
LOOK_AGAIN = 10.0

#: A replica that is online and has acknowledged something, in the server's words and in redis-py's: one that
#: still loads what it was sent is online, and answers nothing.
_has_replica = re.compile(rb"state\W+online\W+offset\W+[1-9]").search


class Confirmation:
    """What confirms an acquire. Thread-safe, without a lock: at worst a change is told twice.

    Attributes:
        is_auto: one replica must confirm while one is online, otherwise none. At first one is expected.
    """

    def __init__(self, min_replicas: object, sync: object, clock: Clock) -> None:
        """Ask for so many replicas, or ``"auto"``, and with ``sync="aof"`` for disks.

        Raises:
            LockOptionError: they are nothing of the kind.
        """
        problems = []
        if min_replicas != "auto" and (type(min_replicas) is not int or not 0 <= min_replicas <= 100):
            problems.append(f"min_replicas={min_replicas!r} is neither a whole number (0 … 100) nor 'auto'")
        if sync not in (None, "aof"):
            problems.append(f"sync={sync!r} is neither 'aof' nor None")
        if problems:
            raise LockOptionError("lock server", problems)
        self.is_auto = min_replicas == "auto"
        self._replicas: Any = 1 if self.is_auto else min_replicas
        self._sync = sync
        self._clock = clock
        self._look_at = float("-inf")

    def __bool__(self) -> bool:
        return bool(self.is_auto or self._replicas or self._sync)

    @property
    def is_stale(self) -> bool:
        """Whether it is time to ask the server which replicas it has."""
        return self.is_auto and self._clock() >= self._look_at

    def learn(self, server: str, _name: str, info: bytes, *_: object) -> None:
        """Read what ``INFO replication`` says; a change logs a WARNING."""
        before = self._replicas
        self._replicas = 1 if _has_replica(info) else 0
        self._look_at = self._clock() + LOOK_AGAIN
        if self._replicas != before:
            now = (
                "has a replica again, which must confirm each lock"
                if self._replicas
                else ("has no replica online: locks count without one, and a failover may lose them")
            )
            tell(logger.warning, f"the lock server {server} {now} (min_replicas='auto')")

    @property
    def command(self) -> tuple[str, ...]:
        """What is sent behind an acquire, without its timeout; nothing where nothing has to confirm it."""
        if self._sync:
            return ("WAITAOF", "1", str(self._replicas))
        return ("WAIT", str(self._replicas)) if self._replicas else ()

    @property
    def waits(self) -> float:
        """Seconds for it: a replica writes to its disk, and tells of that, once a second."""
        return SYNC_TAKES * (2 if self._replicas else 1) if self._sync else 0.0

    def missing(self, counts: tuple[int, int] | None) -> str:
        """Return what has not been confirmed, in an error's words.

        ``counts``: of the server itself, 0 where it was asked and its disk did not have it in time, and of
        its replicas; ``None``: nobody was asked.
        """
        if counts is None:
            return ""
        on_disk, replicas = counts
        if not on_disk:
            return "it was not confirmed in time that the lock is on the server's disk"
        if replicas >= self._replicas:
            return ""
        where = " on their disks, for which they need appendonly yes" if self._sync else ""
        return f"only {replicas} of {self._replicas} replicas confirmed the lock{where}"

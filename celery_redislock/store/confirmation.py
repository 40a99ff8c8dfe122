"""How many replicas must have a lock before it counts.

A server that dies takes with it what it has not passed on. ``WAIT`` is answered when what was written on the
same connection is elsewhere, too. On another connection it confirms what nobody has.
"""

import re
from typing import Any

from celery_redislock.exceptions import LockOptionError
from celery_redislock.log import logger
from celery_redislock.wire.clock import Clock
from celery_redislock.wire.thread import tell

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

    def __init__(self, min_replicas: object, clock: Clock) -> None:
        """Ask for so many replicas, or ``"auto"``.

        Raises:
            LockOptionError: it is nothing of the kind.
        """
        if min_replicas != "auto" and (type(min_replicas) is not int or not 0 <= min_replicas <= 100):
            problem = f"min_replicas={min_replicas!r} is neither a whole number (0 … 100) nor 'auto'"
            raise LockOptionError("lock server", [problem])
        self.is_auto = min_replicas == "auto"
        self._replicas: Any = 1 if self.is_auto else min_replicas
        self._clock = clock
        self._look_at = float("-inf")

    def __bool__(self) -> bool:
        return bool(self.is_auto or self._replicas)

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
        return ("WAIT", str(self._replicas)) if self._replicas else ()

    def missing(self, replicas: int | None) -> str:
        """Return what so many replicas have not confirmed, in an error's words; ``None``: none was asked."""
        if replicas is None or replicas >= self._replicas:
            return ""
        return f"only {replicas} of {self._replicas} replicas confirmed the lock"

"""A key in a store: its holds are released, and messages marked as done. Knows no task.

A request that the server does not answer is owed to the watchdog.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from celery_redislock.exceptions import LockUnavailable, RedisLockError
from celery_redislock.locks.process import is_dead
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.log import logger
from celery_redislock.store.store import RUNNING, Hold, LockStore, Mark, Release
from celery_redislock.wire.thread import tell

K = TypeVar("K", bound="KeyLock")
T = TypeVar("T")

#: Seconds for which a release is owed where nobody knows how long a hold lives.
UNKNOWN_TTL = 3600.0


class KeyLock:
    """The lock of one key. Every verb takes one round trip, and may be repeated with the same token.

    Attributes:
        store: where the lock is kept.
        key: its name.
    """

    __slots__ = ()

    # Fields of the named tuple that each kind is.
    store: LockStore
    key: str
    _replace: Callable[..., Any]

    @property
    def longest(self) -> float:
        """Seconds after which a hold of it has expired that nobody renews."""
        return UNKNOWN_TTL

    def of_message(self: K, message: str) -> K:
        """Return the lock of one message: it keeps a second copy of that message from running beside it."""
        return cast("K", self._replace(key=f"message:{message}"))

    def of_queue(self: K) -> K:
        """Return the lock under which the claim of a queued call is kept, beside that of a run."""
        return cast("K", self._replace(key=f"queued:{self.key}"))

    def release(
        self, token: str, *, opened_by: str | None = None, mark: Mark | None = None
    ) -> Release | None:
        """Release the hold of a token; never raises. The answer is ``None`` where there is none: it is owed.

        ``opened_by``: the period that began under this token ends as well. ``mark`` is left for the copies of
        its message.
        """
        request = partial(self.store.release, self.key, token, opened_by=opened_by, mark=mark)
        return self._now_or_later(request, mark.ttl if mark is not None else 0.0)

    def release_if_dead(self, hold: Hold) -> bool:
        """Release a dead run's lease, never a claim, whose message lives on; whether asking again pays."""
        if b'"at":' not in hold.text or hold.state != RUNNING or not is_dead(hold.facts.get("at")):
            return False
        answer = self.release(hold.token)
        if answer is not None and answer.released:
            line = "%r was held by %r, but its worker was killed (pid %r): released"
            tell(logger.warning, line, hold.name, hold.owner, hold.facts.get("pid"))
        return True

    def release_later(self, token: str, *, opened_by: str | None = None) -> None:
        """Owe the release of a token that an unanswered request may have left held; it is renewed no more."""
        watchdog_of(self.store).forget(token)
        self._later(partial(self.store.release, self.key, token, opened_by=opened_by))

    def mark_done(self, message: str, ttl: float) -> None:
        """Note for ``ttl`` seconds that a message is done; not awaited, and nothing is raised."""
        self._now_or_later(partial(self.store.mark_done, self.key, message, ttl), ttl)

    def _now_or_later(
        self, request: Callable[[], T], ttl: float = 0.0, owed: Callable[[], object] | None = None
    ) -> T | None:
        """Send a request; where the server does not answer, owe it (or ``owed``) to the watchdog."""
        try:
            # Two socket timeouts for each of a thousand messages, and a worker would miss its heartbeats.
            if not watchdog_of(self.store).is_server_away:
                return request()
        except RedisLockError as error:
            if not isinstance(error, LockUnavailable):
                why = "could not release the hold on %r, which is left to expire: %s"
                tell(logger.warning, why, self.key, error)
                return None
        self._later(owed or request, ttl)
        return None

    def _later(self, request: Callable[[], object], ttl: float = 0.0) -> None:
        """Owe a request to the watchdog until every hold has expired that it could end."""
        within = max(self.longest, ttl)
        watchdog_of(self.store).owe(request, within=within, what=f"the hold on {self.key!r}")


class _Named(NamedTuple):
    store: LockStore
    key: str


class LockByName(_Named, KeyLock):
    """A lock of which only the name is known: no task, and nothing of how long its holds live."""

    __slots__ = ()

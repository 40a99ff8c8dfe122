"""When to lock: claim at publish, start, finish. Knows no Celery.

One message's life::

    publish        claim     token m (the message's identity), ttl queue_ttl
    run starts     start     claim m -> lease r (the run's token), ttl lock_ttl, renewed
    run ends       finish    lease r -> free            normally
                             lease r -> claim m2        it published itself again (retry, replace)
                             lease r -> claim m         its message goes back to the queue

Whatever the server cannot be told at the end is told later by the watchdog,
or settled by expiry.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from celery_redislock.exceptions import LockKeyError, LockUnavailable, RedisLockError
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.store import (
    DoneMark,
    Grant,
    LockStore,
    Recorded,
    Refusal,
    Release,
    Term,
)
from celery_redislock.locks.watchdog import Watchdog, watchdog_of
from celery_redislock.work import QUEUED, RUNNING, Work

__all__ = ["Guard", "Started"]

logger = logging.getLogger("celery_redislock")


class Started(NamedTuple):
    """A run holds its lock.

    Attributes:
        lease: renewed until :meth:`Guard.finish`.
        from_claim: the message's own claim was still there, or the lock had been free; ``None`` where that
            is not known, because the run had the lock by an earlier request whose answer got lost.
    """

    lease: Lease
    from_claim: bool | None


class Guard:
    """Takes and gives back locks for messages and their runs.

    Every method takes one round trip, two more where what this process owes
    stood in the way, and is safe to repeat; each raises ``LockUnavailable`` in
    bounded time unless it says otherwise.
    """

    def __init__(self, store: LockStore) -> None:
        """Guard with this store; sends nothing yet."""
        self.store = store

    @property
    def watchdog(self) -> Watchdog:
        """The one watchdog of this process and store."""
        return watchdog_of(self.store)

    def claim(
        self, work: Work, token: str, *, ttl: float, period: float | None = None, state: str = QUEUED
    ) -> Grant | Refusal | Recorded:
        """Hold the key for a message about to be published, or accepted; see :meth:`owing`."""
        about = work.about(state, message=token)
        return self._acquire(lambda: self.store.acquire(work.key, token, ttl, about=about, period=period))

    @contextmanager
    def owing(self, key: str, token: str, *, ttl: float, undo: bool = False) -> Iterator[None]:
        """Ask for a hold: should that end without the server's answer, the hold is owed back to it.

        The reply may have been lost, or the waiting for it interrupted (a soft time limit, a signal), and
        the hold taken all the same. Owed only when nobody will ask with this token any more: a release
        still on its way would end a hold that a later attempt was granted.

        Args:
            key: the lock's name.
            token: of the hold asked for.
            ttl: seconds after which it is gone anyway.
            undo: nothing ran under it, so its window is given back too.
        """
        try:
            yield
        except LockKeyError:
            raise  # that is an answer: nothing was taken
        except BaseException:
            self.give_back_later(key, token, ttl=ttl, undo=undo)
            raise

    def give_back_unrun(self, key: str, token: str, *, ttl: float, undo: bool) -> None:
        """Release the claim of a message that will not run, in a worker's main process; never raises.

        Later, once the server is known to be away: two socket timeouts for each of a thousand such
        messages, and the worker would miss its heartbeats. Arguments as for :meth:`give_back`.
        """
        if self.watchdog.is_server_away:
            self.give_back_later(key, token, ttl=ttl, undo=undo)
        else:
            self.give_back(key, token, ttl=ttl, undo=undo)

    def give_back(self, key: str, token: str, *, ttl: float, undo: bool = False) -> Release | None:
        """Release a hold that is not watched; never raises.

        Args:
            key: the lock's name.
            token: of the claim or the lease.
            ttl: seconds after which it is gone anyway.
            undo: nothing ran under it, so its window is given back too.

        Returns:
            ``None`` where the server could not be asked: it is asked again in the background.
        """
        try:
            return self.store.release(key, token, undo=undo)
        except LockUnavailable:
            self.give_back_later(key, token, ttl=ttl, undo=undo)
        except RedisLockError as error:
            logger.warning("could not give back the hold on %r: %s", key, error)
        return None

    def start(
        self,
        work: Work,
        run_token: str,
        *,
        ttl: float,
        message: str | None,
        claim: str | None,
        max_hold: float | None = None,
        period: float | None = None,
        on_lost: Callable[[Lease], None] | None = None,
    ) -> Started | Refusal | Recorded:
        """Turn the message's claim into a lease, or acquire where it has none; renewed from now on.

        May be repeated with the same token; see :meth:`owing`.

        Args:
            work: what is locked.
            run_token: this run's term.
            ttl: of the lease, seconds.
            message: the message's identity, whose done mark refuses the run.
            claim: token the lease may take over; ``None`` for none.
            max_hold: seconds after which it is renewed no more.
            period: least seconds between two acceptances, where accepting happens here.
            on_lost: called once, in the thread that learns of a loss.
        """
        about = work.about(RUNNING, message=message)
        answer = self._acquire(
            lambda: self.store.acquire(
                work.key, run_token, ttl, about=about, instead_of=claim, period=period, message=message
            )
        )
        if not isinstance(answer, Grant):
            return answer
        lease = Lease(self.store, Term(work.key, run_token, ttl), answer, on_lost=on_lost)
        self.watchdog.watch(lease, max_hold=max_hold)
        return Started(lease, None if answer.repeated else answer.taken_over)

    def finish(self, lease: Lease, *, done: DoneMark | None = None, undo: bool = False) -> bool:
        """End a run's lease and release it; never raises ``LockUnavailable``.

        Args:
            lease: the run's.
            done: mark to leave behind.
            undo: nothing ran under it, so its window is given back too.

        Returns:
            Whether the lease was still ours when it was given back; unknown counts as yes.
        """
        trusted = lease.trusted
        try:
            self.let_go(lease)
            answer = self.store.release(lease.key, lease.token, done=done, undo=undo)
            return lease.gave_back(answer, trusted=trusted)
        except LockKeyError:
            raise
        except BaseException as error:
            self.let_go(lease)
            self.watchdog.release_later(
                lambda: self.store.release(lease.key, lease.token, done=done, undo=undo),
                # The mark is of use for longer than the lease lives.
                within=max(lease.term.ttl, done.ttl if done is not None else 0.0),
                what=f"the lease on {lease.key!r}",
                token=lease.token,
            )
            if isinstance(error, LockUnavailable):
                return True
            raise

    def abandon(self, lease: Lease) -> None:
        """See to it that a lease ends whose end was interrupted; nothing if that had begun."""
        if not lease.ended:
            self.let_go(lease)
            self.give_back_later(lease.key, lease.token, ttl=lease.term.ttl)

    def hand_on(self, lease: Lease, work: Work, token: str, *, ttl: float) -> bool:
        """Turn a run's lease into a claim for a message of the same task id; the body has unwound.

        Returns:
            Whether the claim is held. ``False``: the lease had been lost and somebody else holds the
            key now, or the server could not be asked (it is given back in the background).
        """
        try:
            self.let_go(lease)
            return self.convert(work, lease.token, token, ttl=ttl)
        except BaseException:
            self.let_go(lease)
            self.give_back_later(work.key, lease.token, ttl=lease.term.ttl)
            self.give_back_later(work.key, token, ttl=ttl)
            raise

    def convert(self, work: Work, old: str, new: str, *, ttl: float) -> bool:
        """Turn the hold of one token into a claim of another; acquire it where nobody holds it."""
        try:
            answer = self.store.transfer(work.key, old, new, ttl, about=work.about(QUEUED, message=new))
        except RedisLockError:
            self.give_back_later(work.key, old, ttl=ttl)
            self.give_back_later(work.key, new, ttl=ttl)
            return False
        return isinstance(answer, Grant)

    def let_go(self, lease: Lease) -> None:
        """Renew a run's lease no more; sends nothing."""
        lease.end()
        self.watchdog.forget(lease)

    def give_back_later(self, key: str, token: str, *, ttl: float, undo: bool = False) -> None:
        """Let the watchdog release a hold as soon as the server answers, until it has expired."""
        self.watchdog.release_later(
            lambda: self.store.release(key, token, undo=undo),
            within=ttl,
            what=f"the hold on {key!r}",
            token=token,
        )

    def _acquire(self, ask: Callable[[], Grant | Refusal | Recorded]) -> Grant | Refusal | Recorded:
        """Ask for a hold; refused by one that this process still owes, give that back and ask once more.

        Who was told that the server is away asks again as soon as it is not, and his first attempt may have
        been granted: the lock would then be kept from him by a holder of which no message was ever published.
        """
        answer = ask()
        if isinstance(answer, Refusal) and self.watchdog.release_now(answer.hold.token):
            return ask()
        return answer

"""One round of renewals: one call for all that is due, and what becomes of each lease."""

import logging
from collections.abc import Callable, Sequence

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.clock import Clock
from celery_redislock.locks.schedule import Watch
from celery_redislock.locks.store import LockStore, Renewal, Term

__all__ = ["Renewing"]

logger = logging.getLogger("celery_redislock")


class Renewing:
    """Asks the store about leases and takes in its answers. Used by the watchdog's thread alone.

    Attributes:
        confirmed: how many renewals the server has confirmed.
    """

    def __init__(self, store: LockStore, clock: Clock) -> None:
        """Renew with this store; sends nothing yet."""
        self._store = store
        self._clock = clock
        self.confirmed = 0

    def renew(self, watches: Sequence[Watch]) -> None:
        """Renew all in one call; afterwards each watch says when it is due again, or that it is over.

        An error in handling one of them, a user's callback among others, is
        logged, and costs neither the others nor, unless it is over, itself.
        """
        now = self._clock()
        for watch in watches:
            # Should an error cut its turn short, it is asked about again all the same, and soon.
            watch.due = now + _retry_delay(watch)
        live = [watch for watch in watches if _safely(self._may_renew, watch)]
        if not live:
            return
        # Kept, because the holder may give a lease another term while the answer is on its way.
        terms = [watch.lease.term for watch in live]
        answer, reason = self._ask(live, terms)
        for place, (watch, term) in enumerate(zip(live, terms, strict=True)):
            watch.unanswered = reason
            if answer is None:
                _safely(self._repeat_or_lose, watch)
            else:
                _safely(self._take_in, watch, term, answer, place)

    def _may_renew(self, watch: Watch) -> bool:
        """Whether to ask for this lease at all."""
        lease, now = watch.lease, self._clock()
        held_for = now - watch.since
        if watch.max_hold is not None and held_for >= watch.max_hold:
            lease.lose(f"it was held for longer than lock_max_hold ({watch.max_hold:g} s)")
        elif watch.unanswered and 0 <= now - lease.deadline <= _retry_delay(watch):
            # Asked in time, without an answer, and woken for the deadline: asking again would come too late.
            lease.miss_deadline(watch.unanswered)
        elif watch.max_hold is not None and held_for >= watch.max_hold / 2 and not watch.warned:
            watch.warned = True
            lease.warn_of_end(held_for, watch.max_hold)
        watch.is_over = not lease.held
        return not watch.is_over

    def _ask(self, live: list[Watch], terms: list[Term]) -> tuple[Renewal | None, str]:
        """Renew all in one call: the answer, or why there is none."""
        now = self._clock()
        left = [watch.lease.deadline - now for watch in live if watch.lease.deadline > now]
        try:
            return self._store.renew(terms, within=min(left, default=None)), ""
        except LockUnavailable as error:
            return None, error.reason
        except Exception as error:
            # Whatever it is, it must not cost these leases their next attempt.
            logger.exception(
                "renewing %s failed unexpectedly, and is tried again until the deadline", _named(terms)
            )
            return None, repr(error)

    def _take_in(self, watch: Watch, term: Term, answer: Renewal, place: int) -> None:
        renewed = answer.renewed[place]
        watch.lease.learn(renewed, answer.sent_at, answer.answered_at, ttl=term.ttl)
        self.confirmed += renewed is True
        watch.is_over = not watch.lease.held
        due = answer.sent_at + term.ttl / 3
        # One that was not renewed and goes on (a claim that is watched beside its holder) is in no hurry.
        watch.fall_due(due if renewed else max(due, self._clock() + _retry_delay(watch)))

    def _repeat_or_lose(self, watch: Watch) -> None:
        now, deadline = self._clock(), watch.lease.deadline
        again = now + _retry_delay(watch)
        if now < deadline:
            again = min(again, deadline)
        else:
            watch.lease.miss_deadline(watch.unanswered)
        watch.is_over = not watch.lease.held
        watch.fall_due(again)


def _safely(step: Callable[..., bool | None], watch: Watch, *rest: object) -> bool:
    try:
        return bool(step(watch, *rest))
    except BaseException:
        # Even SystemExit: a callback that exits would end this thread, and every lease with it, unseen.
        logger.exception(
            "handling the lease on %r failed unexpectedly; unless it is over, it is asked about again",
            watch.lease.key,
        )
        return False


def _named(terms: list[Term]) -> str:
    """Name the leases of a batch, the first three of them."""
    names = ", ".join(repr(term.name) for term in terms[:3])
    more = f" and {len(terms) - 3} more" if len(terms) > 3 else ""
    return f"the lease{'s' if len(terms) > 1 else ''} on {names}{more}"


def _retry_delay(watch: Watch) -> float:
    return max(watch.lease.term.ttl / 20, 0.05)

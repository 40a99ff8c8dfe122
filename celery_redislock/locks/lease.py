"""One term of holding a lock, as its holder sees it."""

import os
from _thread import RLock
from binascii import b2a_base64
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from celery_redislock.exceptions import LockLost, LockUnavailable
from celery_redislock.log import logger
from celery_redislock.store.store import Grant, LockStore, Term, owner_name
from celery_redislock.wire.clock import Clock, boottime
from celery_redislock.wire.thread import tell

#: Parts and seconds of a term by which two clocks may drift in it, and by which both are rounded.
DRIFT = 0.01
_ROUNDING = 0.002

#: What a holder knows of its lease.
HELD = "held"
UNSURE = "unsure"
LOST = "lost"

_URLSAFE = bytes.maketrans(b"+/", b"-_")


def new_token(owner: str) -> str:
    """Mint a token for one term of holding: ``owner/nonce``, 72 random bits in the nonce."""
    name = owner_name(owner) if "\0" in owner else owner
    return f"{name}/{b2a_base64(os.urandom(9), newline=False).translate(_URLSAFE).decode()}"


def call_back(call: Callable[..., object], *told: object) -> None:
    """Call what a user gave; a coroutine that it returns is closed, and a WARNING says so."""
    answer = call(*told)
    if isinstance(answer, CoroutineType):
        answer.close()
        logger.warning("%r returned a coroutine, which nobody awaits: it did nothing; give a function", call)


class Lease:
    """One term of holding a lock: its grant, until when it can be trusted, whether it was lost.

    Thread-safe: the holder's thread reads, the watchdog's thread renews (see the package docstring).

    Attributes:
        term: name, token and ttl.
        key: the lock's name.
        token: this term's token, ``owner/nonce``.
        fence: the fencing token of the grant.
        deadline: the clock's reading up to which the lease can be trusted.
        answered_at: the clock's reading when the last answer came; no renewal that was sent before it
            makes the deadline later.
        ended: its holder has released it, or is about to.
        taken_over, repeated, sent_again: as of the grant.
        lost_because: how its loss was noticed; ``None`` while it is not known to be lost.
        state: ``held``; ``unsure``: its renewal got no answer, or its deadline is near; or ``lost``.
    """

    state = HELD
    ended = False
    lost_because: str | None = None

    # The watchdog's notes.
    #: The clock's reading when it began to watch.
    since = 0.0
    #: Seconds from then on for which it renews.
    max_hold = float("inf")
    #: It has warned that half of that has passed, or need not.
    warned = False
    #: The clock's reading at which the next renewal is due.
    due = float("inf")
    #: Why the last renewal got no answer; empty if it got one.
    unanswered = ""
    #: Renewals of one ttl.
    pace = 3.0
    #: Refers weakly to the object that can release it, where only that can. It has no ``__del__``: CPython
    #: swallows the error of a signal that comes as that begins.
    keeper: Callable[[], object] | None = None

    _on_state: Callable[[str], None] | None = None
    _untold: tuple[str, ...] = ()
    _margin = DRIFT
    _delay = 0.0

    def __init__(
        self,
        store: LockStore,
        term: Term,
        grant: Grant,
        *,
        on_lost: Callable[["Lease"], None] | None = None,
        clock: Clock = boottime,
    ) -> None:
        """Record a store's grant, whose times are of this clock.

        ``on_lost`` is called once, in the thread that learnt of the loss, normally the watchdog's, which
        renews nothing meanwhile; with gevent in a greenlet. Its own error is logged.
        """
        self.term = term
        self.key, self.token, ttl = term
        self.fence: int | None
        self.fence, self.taken_over, sent_at, self.answered_at, self.repeated, self.sent_again = grant
        self._store = store
        self._on_lost = on_lost
        self._clock = clock
        # Reentrant: a signal handler may call check() in the middle of an answer. Native, as the watchdog's
        # thread is.
        self._lock = RLock()
        self.deadline = sent_at + ttl - max(DRIFT * ttl + _ROUNDING, self.answered_at - sent_at)

    def limit_trust(
        self,
        margin: float,
        sent_at: float | None = None,
        delay: float = 0.0,
        on_state: Callable[[str], None] | None = None,
    ) -> None:
        """Trust it for less of its ttl from now on; for its holder, before anybody else has it.

        Args:
            margin: part of the ttl for which it is not trusted, although the server keeps it.
            sent_at: of the grant; without it the term of the grant is trusted for a little less.
            delay: seconds of the ttl for which the server keeps it beyond that.
            on_state: called as ``on_lost`` is, with each new ``state``, one after the other.
        """
        self._margin = margin
        self._delay = delay
        self._on_state = on_state
        self._set_pace()
        if sent_at is None:
            self.deadline -= delay + (margin - DRIFT) * self.term.ttl
        else:
            self.deadline = self._deadline(self.term.ttl, sent_at, self.answered_at)

    def _set_pace(self) -> None:
        ttl = self.term.ttl
        self.pace = (3 if self._margin < 0.25 else 4) * ttl / (ttl - self._delay)

    def _deadline(self, ttl: float, sent_at: float, answered_at: float) -> float:
        """Return until when a term is trusted that an answered request began."""
        ttl -= self._delay
        return sent_at + ttl - max(self._margin * ttl + _ROUNDING, answered_at - sent_at)

    @property
    def is_near_its_end(self) -> bool:
        """Less than its margin is left until its deadline."""
        return self.deadline - self._clock() < self._margin * (self.term.ttl - self._delay)

    @property
    def expires_in(self) -> float:
        """Seconds this lease can be trusted without another renewal; 0 when it ended or was lost."""
        return max(0.0, self.deadline - self._clock()) if self.held else 0.0

    @property
    def held(self) -> bool:
        """Neither released nor known to be lost."""
        return not self.ended and self.lost_because is None

    @property
    def lost(self) -> bool:
        """The lease was found gone while its holder still ran."""
        return self.lost_because is not None

    @property
    def orphaned(self) -> str:
        """Why nobody is left who could release it; empty where somebody is, as far as is known.

        The watchdog's thread asks before each renewal.
        """
        is_left = self.keeper is not None and self.keeper() is None
        return "nothing refers to its object any more" if is_left else ""

    @property
    def trusted(self) -> bool:
        """Held, and its deadline has not passed: nobody else can hold it now."""
        return self.held and self._clock() < self.deadline

    def check(self) -> None:
        """Raise :class:`~celery_redislock.exceptions.LockLost` if the lease is lost or was released.

        Free of cost while the lease can be trusted. After its deadline (this
        process was paused, or renewals failed) it sends one renewal, which
        takes a bounded time; an unreachable server then counts as a loss.
        Call it before a side effect another holder must not see twice.
        """
        if self.held and self._clock() >= self.deadline:
            term = self.term
            try:
                answer = self._store.renew([term])
            except LockUnavailable as error:
                self.miss_deadline(error.reason)
            else:
                self.learn(answer.renewed[0], answer.sent_at, answer.answered_at, ttl=term.ttl)
        if self.lost_because is not None:
            raise self.loss(self.lost_because)
        if self.ended:
            raise self.loss("it has been released")

    def loss(self, reason: str) -> LockLost:
        """Return the error that tells of its loss."""
        return LockLost(self.key, reason, self.fence)

    def trust_for(self, ttl: float) -> None:
        """Trust it for at most ``ttl`` seconds from now: a request for this ttl is about to be sent."""
        with self._lock:
            now = self._clock()
            self._set_pace()
            self.deadline = min(self.deadline, self._deadline(ttl, now, now))
            # The answer to a request that was sent before must not make it longer again.
            self.answered_at = max(self.answered_at, now)

    def end(self) -> None:
        """Stop trusting and stop announcing: the holder is releasing the lease."""
        self.ended = True
        # The callable may keep a run alive, with all its arguments.
        self._on_lost = None
        self._on_state = None

    def lose(self, reason: str) -> None:
        """Declare the lease lost; announces it once, never after :meth:`end`."""
        with self._lock:
            if self.ended or self.lost_because is not None:
                return
            self.lost_because = reason
        self._become(LOST)
        if (on_lost := self._on_lost) is not None:
            tell(self._report, "on_lock_lost (or on_lost)", LOST, on_lost, self)

    def doubt(self) -> None:
        """Note that nobody knows whether it is still held."""
        self._become(UNSURE)

    def _become(self, state: str) -> None:
        """Change the state, and tell that: once, and in order, whichever threads learn of changes."""
        with self._lock:
            if self.state in {state, LOST}:
                return
            self.state = state
            if self._on_state is None:
                return
            self._untold += (state,)
            if len(self._untold) > 1:
                return  # the thread that tells of the one before tells of this one
        while self._untold:
            if (on_state := self._on_state) is not None:
                tell(self._report, "on_state", self._untold[0], on_state, self._untold[0])
            with self._lock:
                self._untold = self._untold[1:]

    def _report(self, option: str, state: str, call: Callable[[Any], None], told: object) -> None:
        try:
            call(told)
        except Exception:
            # The watchdog has other leases to renew, and check() must raise LockLost, not this.
            logger.exception("%s raised for the lease on %r, which is %s", option, self.key, state)

    def miss_deadline(self, why: str) -> None:
        """Declare it lost at its deadline: the server did not answer; *why*: the last renewal's error."""
        self.lose(f"it could not be confirmed by its deadline ({why})")

    def learn(self, renewed: bool | None, sent_at: float, answered_at: float, *, ttl: float) -> None:
        """Take the answer (see ``Renewal``) to a renewal for ``ttl``, which begins the term anew."""
        if not renewed:
            gone = "it had expired, or was taken away, when it should have been renewed"
            self.lose(gone if renewed is None else "another holder has the lock, or its key was overwritten")
            return
        deadline = self._deadline(ttl, sent_at, answered_at)
        with self._lock:
            if sent_at < self.answered_at:
                # Sent before the last answer was in: nobody knows which of the two the server took last.
                deadline = min(self.deadline, deadline)
                answered_at = max(self.answered_at, answered_at)
            self.deadline = deadline
            self.answered_at = answered_at
        if self.state == UNSURE and not self.is_near_its_end:
            self._become(HELD)


class LockLease(Lease):
    """The lease of a ``Lock`` or a ``Semaphore``: its loss is redis-py's error, too."""

    def loss(self, reason: str) -> LockLost:
        """As :meth:`Lease.loss`."""
        from celery_redislock.locks import errors  # noqa: PLC0415  imports redis

        return errors.LockLost(self.key, reason, self.fence)

    def missed(self) -> LockLost:
        """Return the error for a block that was not alone and does not know."""
        return self.loss(self.lost_because or "it was gone when it should be released")


class InertLease:
    """The ``lease`` of a body that holds no lock, so that it runs however it was called."""

    key: str | None = None
    token: str | None = None
    fence: int | None = None
    expires_in: float = 0.0
    held: bool = False
    lost: bool = False

    def check(self) -> None:
        """Do nothing: there is nothing to lose."""

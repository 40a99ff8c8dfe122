"""What a lock does, step by step: for threads (``lock.py``) and for tasks of asyncio (``aio/lock.py``) alike.

Nothing is sent here. A step is a call of a store's verbs, which a thread or a loop carries out.
"""

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.locks.attempt import Attempt, Steps, ending, settle_anyway, settled
from celery_redislock.locks.block import Block
from celery_redislock.locks.lease import DRIFT, LockLease, call_back
from celery_redislock.locks.naming import joint_name, names_of
from celery_redislock.locks.terms import check_store, check_terms, check_token, refuse_others
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.store.store import Grant, Hold, LockStore, Term
from celery_redislock.wire.clock import Clock, boottime, is_seconds

H = TypeVar("H", bound="Held")


@dataclass(eq=False)
class Held:
    """One holder's hold.

    Attributes:
        lease: of the hold.
        who: has it: the thread, or the task.
        coroutine: the task of asyncio that the thread was running, if it ran any.
        pid: of the process that has it.
        depth: how often its holder has entered it.
        block: in which it was acquired, of a thread; ``None``: in none, or that was left, and is held on.
    """

    lease: LockLease
    who: object = None
    coroutine: object | None = None
    pid: int = field(default_factory=os.getpid)
    depth: int = 1
    block: Block | None = None

    def told(self, on_state: Callable[[str], None] | None) -> Callable[[str], None] | None:
        """Return what its lease calls with each new state: in the thread that learns of it; or in a loop."""
        return on_state

    def ends(self) -> None:
        """Note that it is about to be released."""

    def takes_back(self, error: BaseException | None) -> bool:  # noqa: ARG002  a task's does
        """Whether the block was ended by its loss, and by nothing else."""
        return False


def leaving(held: Held, releasing: "Steps[bool]", error: BaseException | None) -> "Steps[None]":
    """End a block that held: raise :class:`LockLost` where the block was not alone, and does not know."""
    try:
        released = yield from releasing
    except RedisLockError:
        if error is None:
            raise
        released = True  # in the background, or it expires; the body's own error matters more
    if held.takes_back(error) or (error is None and not released):
        raise held.lease.missed() from error


def checking(lease: LockLease) -> "Steps[None]":
    """Raise :class:`LockLost` where it is lost; no request while it can be trusted."""
    if not lease.trusted:
        yield lambda _: lease.check()


class Holding(Generic[H]):
    """Exclusive access to one name: its terms, its holds, and the steps that change them."""

    #: Who holds.
    _kind: ClassVar[str]
    #: An attribute that only a store for them has; and the function that makes one.
    _stores: ClassVar[tuple[str, str]]
    #: The store whose watchdog renews, and whose verbs are called in the background.
    _beside: LockStore
    _holds: dict[object, H]

    # What threads and tasks have each in its own way.

    #: Returns the present thread or task.
    _who: Callable[[], Any]
    _new_held: Callable[[Any, Term, Grant, Any], H]
    _joined: Callable[[Any], Any]
    _beside_of: Callable[[Any], LockStore]

    def _set_terms(
        self, store: Any, name: Any, others: Mapping[str, object], *, wait: float | None, ttl: float,
        owner: str | None, token: str | None, auto_renew: bool, reentrant: bool,
        on_lost: Callable[[Any], object] | None, on_state: Callable[[Any, str], object] | None, margin: float,
        lock_delay: float, clock: Clock = boottime,
    ) -> None:  # fmt: skip
        """Check and note what a lock is told; nothing is sent yet."""
        refuse_others(repr(name), others)
        check_store(name, store, *self._stores)
        if token is not None:
            check_token(name, token)
        names = names_of(name)
        for each in names:
            check_terms(
                each, ttl=ttl, wait=wait, owner=owner, margin=margin, lock_delay=lock_delay,
                on_lost=on_lost, on_state=on_state,
            )  # fmt: skip
        self.name = ", ".join(names)
        self._key = joint_name(names)
        self._store = self._joined(store) if " " in self._key else store
        self._beside = self._beside_of(self._store)
        if lock_delay and not self._beside.keeps_lines:
            problem = f"lock_delay={lock_delay:g} is not kept by a quorum of servers; leave it out"
            raise LockOptionError(repr(name), [problem])
        self._ttl = ttl
        #: Seconds for which the server keeps it.
        self._kept_for = ttl + lock_delay
        #: What it says about itself there, beside who holds it.
        self._says = f',"delay":{lock_delay}' if lock_delay else ""
        self._wait = wait
        self._token = token
        self._owner = owner
        self._auto_renew = auto_renew
        self._reentrant = reentrant
        self._on_lost: Any = None if on_lost is None else _while_alive(self, on_lost)
        self._on_state = None if on_state is None else _while_alive(self, on_state, told=1)
        self._margin = margin
        self._lock_delay = lock_delay
        self._clock = clock
        self._holds = {}

    def _attempt(self, who: Any) -> Attempt:
        raise NotImplementedError

    def _insist(self, held: H) -> None:
        """Raise RuntimeError where this one may not enter that hold."""

    @property
    def token(self) -> str | None:
        """What the server knows this hold by, to be handed to another ``Lock``; ``None`` if not held."""
        return None if (held := self._held) is None else held.lease.token

    @property
    def fence(self) -> int | None:
        """This hold's fencing token, larger than every earlier one of this lock; ``None`` if not held.

        Of a hold that a ``token`` continues only the one that acquired it knows the fence.
        """
        return None if (held := self._held) is None else held.lease.fence

    @property
    def held(self) -> bool:
        """Whether this thread, or task, holds the lock and has not learnt that it is lost."""
        return (held := self._held) is not None and held.lease.held

    @property
    def _held(self) -> H | None:
        """The present holder's hold, lost or not. A forked child inherits its parent's, and does not hold."""
        return self._hold_of(self._who())

    @property
    def _depth(self) -> int:
        """How often the present holder has entered."""
        return 0 if (held := self._held) is None else held.depth

    def _hold_of(self, who: object) -> H | None:
        held = self._holds.get(who)
        return None if held is None or held.pid != os.getpid() else held

    def _required(self) -> H:
        if (held := self._hold_of(self._who())) is not None:
            return held
        if self._token is None:
            from celery_redislock.locks.errors import LockNotHeld  # noqa: PLC0415  imports redis

            raise LockNotHeld(self.name, self._kind)
        return self._elsewhere(self._token)

    def _elsewhere(self, token: str) -> H:
        """Return a hold that was acquired elsewhere, and is not trusted before the server is asked."""
        long_ago = self._clock() - self._ttl
        grant = Grant(None, False, long_ago, long_ago)
        # Who has acquired it is told of its loss.
        return self._new_held(self._who(), self._term(token), grant, None)

    def _term(self, token: str) -> Term:
        return Term(self._key, token, self._kept_for)

    def _keep(self, who: object, term: Term, grant: Grant) -> None:
        """Note a hold, and have it renewed."""
        self._holds[who] = held = self._hold(who, term, grant)
        if self._auto_renew:
            watchdog_of(self._beside).watch(held.lease)

    def _hold(self, who: object, term: Term, grant: Grant) -> H:
        held = self._new_held(who, term, grant, self._on_lost)
        held.lease.keeper = weakref.ref(self)
        if self._lock_delay or self._margin != DRIFT or self._on_state is not None:
            on_state = held.told(self._on_state)
            held.lease.limit_trust(self._margin, grant.sent_at, self._lock_delay, on_state)
        return held

    # The steps.

    def _acquiring(self, timeout: float | None) -> "Steps[Hold | None]":
        """Acquire within the timeout: ``None`` when held, else who held the lock at the last attempt."""
        if timeout is not None and not is_seconds(timeout):
            check_terms(self.name, timeout=timeout)
        who = self._who()
        if (held := self._hold_of(who)) is not None:
            return self._entering_again(held)
        if self._token is not None:
            return self._continuing(who, self._token)
        return self._attempt(who).steps(timeout)

    def _entering_again(self, held: H) -> "Steps[None]":
        self._insist(held)
        if not self._reentrant:
            raise RuntimeError(f"this {self._kind} holds the lock {self.name!r} already (reentrant=False)")
        # A lost hold is not replaced by a new one: the outer block would not learn of the loss.
        yield from checking(held.lease)
        held.depth += 1

    def _continuing(self, who: object, token: str) -> "Steps[None]":
        term = self._term(token)
        holds = yield lambda store: store.holders(self._key)
        answer = yield lambda store: store.renew([term])
        if not answer.renewed[0]:
            raise self._elsewhere(token).lease.loss("nobody holds it under the token to be continued")
        # Of many that hold a permit, some are told.
        hold = next((hold for hold in holds if hold.token == token), None)
        is_of_several = hold and b'"names":[' in hold.text and " " not in self._key
        if hold is None or "limit" in hold.facts or is_of_several:
            problem = f"token={token!r} is a reader's, a permit's or of other names: no hold of this lock"
            raise LockOptionError(repr(self.name), [problem])
        self._keep(who, term, Grant(None, False, answer.sent_at, answer.answered_at))

    def _releasing(self) -> "Steps[bool]":
        held = self._required()
        if held.depth > 1:
            held.depth -= 1
            return settled(held.lease.held)
        # First: while it is renewed, somebody has to know of it, wherever this is interrupted.
        release = ending(self._beside, held.lease)
        self._holds.pop(held.who, None)
        held.ends()
        return release

    def _renewing(self, ttl: float | None) -> "Steps[bool]":
        lease = self._required().lease
        if lease.lost:
            return False
        if ttl is not None:
            check_terms(self.name, ttl=ttl)
            lease.term = Term(lease.key, lease.token, ttl + self._lock_delay)
            # The server may shorten it, although no answer comes.
            lease.trust_for(lease.term.ttl)
        term = lease.term
        try:
            answer = yield lambda store: store.renew([term])
            lease.learn(answer.renewed[0], answer.sent_at, answer.answered_at, ttl=term.ttl)
        finally:
            if ttl is not None and self._auto_renew and lease.held:
                # Its next renewal was due by the old ttl.
                watchdog_of(self._beside).watch(lease)
        return lease.held

    def _entering(self) -> "Steps[None]":
        if (refused := (yield from self._acquiring(self._wait))) is not None:
            from celery_redislock.locks.errors import LockBusy  # noqa: PLC0415  imports redis

            raise LockBusy(self.name, refused.owner, refused.expires_in)

    def _leaving(self, error: BaseException | None) -> "Steps[None]":
        if self._held is None and (error is not None or self._who() in self._holds):
            return  # its own error matters more; or this is a fork, whose parent entered the block
        yield from leaving(self._required(), self._releasing(), error)

    def _leave_anyway(self, depth: int | None, error: BaseException) -> None:
        """Do what the end of a block has left undone that was interrupted; nothing where it has ended.

        ``depth``: how often its holder had entered; ``None``: as often as is noted, so nothing was done yet.
        """
        who = self._who()
        if (held := self._hold_of(who)) is None:
            return
        left = (depth or held.depth) - 1
        if left > 0:
            held.depth = left
            return
        if not self._is_shared(held.lease):
            settle_anyway(self._beside, held.lease, error)
        self._holds.pop(who, None)

    def _is_shared(self, lease: LockLease) -> bool:  # noqa: ARG002  of a lock with two sides
        """Whether the holder has this lease by another lock as well."""
        return False


def _while_alive(lock: object, call: Callable[..., Any], *, told: int = 0) -> Callable[..., None]:
    """Return what calls it with this lock, and so many of the facts it is told, until nobody uses the lock.

    Its leases, which the watchdog has, must not keep it.
    """
    known = weakref.ref(lock)

    def tell(*facts: object) -> None:
        if (alive := known()) is not None:
            call_back(call, alive, *facts[:told])

    return tell

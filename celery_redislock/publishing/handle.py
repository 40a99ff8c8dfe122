"""A look at a task's lock from outside: who holds it, and taking it away."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from celery_redislock.declaring.kinds import HOLDERS, Seconds
from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.acts import note_act
from celery_redislock.locks.force import facts_of_force
from celery_redislock.locks.hold import A_DAY, AN_HOUR, Held, hold_in_line, hold_key
from celery_redislock.locks.keylock import LockByName
from celery_redislock.locks.limits import A_YEAR, replace_limit
from celery_redislock.log import logger
from celery_redislock.store.store import (
    HELD,
    QUEUED,
    RUNNING,
    YEAR_10000,
    Hold,
    Limit,
    LockStore,
    Release,
    Waiter,
    short,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from celery_redislock.declaring.types import LockTerms
    from celery_redislock.locks.lock import Lock


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, when the server was asked. Advisory: it may be gone by now.

    Attributes:
        key: the name under which it is held: the lock's, or ``queued:`` and the lock's for the claim of a
            scope that has two locks.
        owner: the task id.
        state: ``queued`` (its message is on the way), ``running``, ``period`` (accepted within
            ``lock_period``, whether its run has ended or not), ``hold`` (an operator's) or ``foreign``
            (another program's lock on the same key).
        task: the task's name.
        host: where the claim or the run was taken.
        pid: of that process.
        since: seconds since the epoch.
        remaining: seconds until the hold ends unless it is renewed; ``inf`` for another program's
            lock that has no end, and for one that waits in line.
        token: the term of holding.
        queued: the task id of the call that is queued beside a run, in a scope that has two locks; ``None``
            if there is none, and where this holder is itself the queued call.
        ttl: seconds that a run's hold outlives its last renewal, which is due every third of it; ``None`` for
            others, and where it is unknown.
        about: what ``lock_describe`` says of the call; why an operator holds it.
        due: of one that waits in line, before when it does not start, in seconds since the epoch; ``None``
            where it is due.
        merged: how many calls were merged into it; ``None`` where none can be.
        place: of one that waits: in its line, the first is 1; 0 for one that was handed the lock and has not
            started. ``None`` for others.
        length: how many wait in that line; ``None`` for others.
    """

    key: str
    owner: str
    state: str
    task: str | None
    host: str | None
    pid: int | None
    since: float | None
    remaining: float
    token: str
    queued: str | None = None
    ttl: float | None = None
    about: str | None = None
    due: float | None = None
    merged: int | None = None
    place: int | None = None
    length: int | None = None

    @property
    def renewed(self) -> float | None:
        """Seconds since the hold of a run was renewed, or began; ``None`` where that is unknown."""
        return None if self.ttl is None else max(0.0, self.ttl - self.remaining)

    @property
    def is_late(self) -> bool:
        """A renewal of it is overdue, by half of the time between two, so its process is most likely dead."""
        return self.renewed is not None and self.ttl is not None and self.renewed > self.ttl / 2

    @classmethod
    def of(cls, hold: Hold, queued: Hold | None = None) -> "Holder":
        """Read what a holder wrote about itself; ``queued``: the hold of the claim beside it."""
        task, host, pid = map(hold.facts.get, ("task", "host", "pid"))
        state = hold.state or "foreign"
        beside = queued.owner if queued is not None and queued.state == QUEUED else None
        ttl, about = map(hold.facts.get, ("ttl", "about"))
        return cls(
            hold.name, hold.owner, state, task, host, pid, hold.since, hold.expires_in, hold.token, beside,
            ttl if state == RUNNING and isinstance(ttl, int | float) and 0 < ttl < YEAR_10000 else None,
            about if isinstance(about, str) else None,
        )  # fmt: skip

    @classmethod
    def in_line(cls, waiter: Waiter, place: int | None = None, length: int | None = None) -> "Holder":
        """Read what one that waits wrote about itself. The hold that it will be handed has not begun.

        Args:
            waiter: who waits.
            place: in its line, as :attr:`place`; ``None``: unknown.
            length: of that line; ``None``: unknown.
        """
        due, merged = map(waiter.hold.facts.get, ("due", "merged"))
        return replace(
            cls.of(waiter.hold),
            remaining=inf,
            due=due / 1000 if isinstance(due, int) and 0 < due < 1000 * YEAR_10000 else None,
            merged=merged if isinstance(merged, int) else None,
            place=place,
            length=length,
        )


@dataclass(eq=False, repr=False)
class LockHandle:
    """One task's lock for given arguments, from :meth:`SingletonTask.lock_for`.

    A scope that has two locks keeps the claim of its queued call under a second name, while its run holds
    the lock's own.

    Attributes:
        key: the lock's name.
    """

    _task: Any
    _store: LockStore
    key: str
    _queued_key: str | None = None
    _has_limit: bool = False

    def __repr__(self) -> str:
        return f"<LockHandle {self.key!r} of {self._task.name}>"

    def lock(self, **terms: "Unpack[LockTerms]") -> "Lock":
        """Return a ``Lock`` of this very key, for a program that must not work beside the task.

        It excludes the runs of the task; in a scope that claims at publish its calls, too. Terms and errors
        are those of :class:`celery_redislock.locks.Lock`.
        """
        from celery_redislock.locks.lock import Lock  # noqa: PLC0415  not to look at a lock

        names = self.key.split(" ")  # several resources
        return Lock(self._store, names if len(names) > 1 else self.key, **terms)

    def holder(self, *, only: Literal["queued"] | None = None) -> Holder | None:
        """Return who holds the lock, or ``None``; one request, two in a scope that has two locks.

        There the run comes first; :attr:`Holder.queued` names the queued call beside it. If nothing runs, the
        queued call is the holder. The two locks are not read in one step.

        Args:
            only: ``"queued"``: only a queued call, the first of :meth:`holders`; two requests.

        Raises:
            LockUnavailable: the lock server cannot be reached.
            LockKeyError: the key on the server is not a lock.
            ValueError: ``only`` is something else.
        """
        if only is not None:
            return next(iter(self.holders(only=only)), None)
        # The queued call first: one that starts in between is seen then, twice rather than not at all.
        queued = () if self._queued_key is None else self._store.holders(self._queued_key)
        holds = self._store.holders(self.key)
        if holds:
            return Holder.of(holds[0], next(iter(queued), None))
        return Holder.of(queued[0]) if queued else None

    def holders(self, *, only: Literal["queued"] | None = None) -> list[Holder]:
        """Return all who hold the lock, which several may (``lock_limit``); one request.

        The one whose hold ends first comes first. In a scope that has two locks these are the runs.

        Args:
            only: ``"queued"``: only queued calls, under either name, also where the task had two locks when
                they were published and has one now; two requests.

        Raises:
            LockUnavailable: the lock server cannot be reached.
            LockKeyError: the key on the server is not a lock.
            ValueError: ``only`` is something else.
        """
        if only not in {None, QUEUED}:
            raise ValueError(f"only is {only!r}; give 'queued', or None for a run as well")
        beside: Iterable[Hold] = ()
        if only is not None:
            beside = self._store.holders(LockByName(self._store, self.key).of_queue().key)
            if self._queued_key is None:
                # Another task may have two locks of this resource, and another lock may be called so.
                beside = [hold for hold in beside if hold.facts.get("task") == self._task.name]
        holds = (*beside, *self._store.holders(self.key))
        return [Holder.of(hold) for hold in holds if only is None or hold.state == QUEUED]

    def limit(
        self,
        value: int | None = None,
        *,
        for_: float | timedelta = A_YEAR,
        reset: bool = False,
        by: str | None = None,
    ) -> Limit | None:
        """Replace ``lock_limit`` for this key, at once and for all processes; return what is set now.

        Without arguments nothing is changed. Raised, it lets those start who wait in line; lowered, it ends
        no run: no other one starts until fewer hold the lock. In a scope that has two locks it counts for
        both. One request for each, one more to reset, and one to note who did it.

        Args:
            value: so many may hold the lock at once, from 1 to 10,000.
            for_: seconds, or a ``timedelta``, after which the task's own limit counts again; a year.
            reset: the task's own limit counts again from now on.
            by: who sets it, as ``celery redislock explain`` and ``history`` show it; the user of this
                process.

        Raises:
            LockOptionError: the task says ``lock_limit=1`` or nothing, so that its runs ask for no limit; or
                a value is out of range.
            LockUnavailable: the lock server cannot be reached.
        """
        if value is None and not reset:
            return self._store.limit(self.key)
        problems: list[str] = []
        if not self._has_limit:
            problems.append(
                f"its limit cannot be changed: {self._task.name} says lock_limit=1, and its runs ask for no "
                "other; set a lock_limit above 1, or a callable of the arguments, and deploy"
            )
        try:
            seconds = Seconds().read(for_)
        except ValueError as error:
            problems.append(f"for_ {error}")
        try:
            HOLDERS.read(1 if reset else value)
        except ValueError as error:
            problems.append(f"limit {error}")
        if problems:
            raise LockOptionError(self.key, problems)
        if reset and self._store.limit(self.key) is None:
            return None  # nobody has changed anything, which the log would say
        keys = [self.key] if self._queued_key is None else [self._queued_key, self.key]
        return replace_limit(self._store, keys, None if reset else value, seconds, by=by)

    def hold(self, *, reason: str, for_: float | timedelta = AN_HOUR, by: str | None = None) -> list[Holder]:
        """Let no run of this key start, of any ``lock_limit``, until :meth:`release`, or for so long.

        Who runs, or was handed the lock, ends first: the hold waits for that in front of the line, at most
        ``for_`` seconds, and begins then. Calls that meet it wait, whatever ``on_conflict`` says. In a scope
        that has two locks it is that of the runs. It replaces a hold of this key, reason and time. Nothing
        renews it. From any process that reaches the lock server; it needs none afterwards. An operator's act,
        logged as WARNING; up to seven requests, and one for each hundred who wait, where more than that do.
        They are not one step: one that dies in between leaves the hold, or the one before it, or none.

        Args:
            reason: why, for the log and for whoever asks ``celery redislock explain``.
            for_: seconds from 1 to 86,400, or a ``timedelta``, after which it ends by itself; an hour.
            by: who does it, as it is shown; the user of this process.

        Returns:
            Who holds the lock still, sixteen at most; none where the hold has begun.

        Raises:
            LockOptionError: the reason is empty, or the time out of range.
            LockUnavailable: the lock server cannot be reached, or keeps no lines.
            LockKeyError: the key on the server is not a lock.
        """
        return [Holder.of(each) for each in self._hold(reason, for_, by).before]

    def _hold(self, reason: str, for_: float | timedelta, by: str | None = None) -> Held:
        """As :meth:`hold`; return also which hold it replaces."""
        problems = [] if reason.strip() else ["a hold takes a reason: whoever waits for its end will ask"]
        seconds = 0.0
        try:
            seconds = Seconds(least=1.0).read(for_)
        except ValueError as error:
            problems.append(f"for_ {error}")
        if seconds > A_DAY:
            problems.append(f"for_ is {seconds:g} s; give at most a day, and hold it again before that ends")
        if problems:
            raise LockOptionError(self.key, problems)
        return hold_key(self._store, self.key, seconds, reason, by)

    def waiting(self, *, offset: int = 0, limit: int | None = None) -> list[Holder]:
        """Return who waits in line for the lock, in order, as they will hold it; one request for 100.

        ``since`` is when each was parked. A :class:`~celery_redislock.locks.Lock` that waits has no ``task``.
        In a scope that has two locks those follow who wait to be the queued call; one request more. The line
        moves on between two requests, so they are no picture of one moment.

        Args:
            offset: so many are left out at the beginning.
            limit: so many are returned at most; ``None``: all.

        Raises:
            LockOptionError: the offset is no whole number from 0 on, or the limit none from 1 on.
            LockUnavailable: the lock server cannot be reached.
        """
        problems = [
            f"{name}={value!r} is not a whole number from {least} on"
            for name, value, least in (("offset", offset, 0), ("limit", 1 if limit is None else limit, 1))
            if type(value) is not int or value < least
        ]
        if problems:
            raise LockOptionError(self._task.name, problems)
        found: list[Holder] = []
        for name in [self.key] if self._queued_key is None else [self.key, self._queued_key]:
            if len(found) != limit:
                last = -1 if limit is None else offset + limit - len(found) - 1
                length, waiters = self._store.waiting(name, first=offset, last=last)
                places = enumerate(waiters, offset + 1)
                found += [Holder.in_line(waiter, place, length) for place, waiter in places]
                offset = max(0, offset - length)
        return found

    def release(self, *, reason: str, only: Literal["queued"] | None = None) -> Holder | None:
        """Take the lock away from its holder, period included; an operator's act, logged as WARNING.

        A :meth:`hold` that waits for who runs is ended first, and they keep the lock.

        A run that loses its lock so continues, and learns of it at its next renewal or ``check()``. The
        holder is compared atomically: one that came in between keeps the lock.

        Args:
            reason: why, for the log.
            only: ``"queued"``: only from a claim, never from a run. In a scope that has two locks ``None``
                takes the run's lock, and the queued call's if nothing runs.

        Returns:
            The holder it was taken from; ``None`` if there was none, or none it may be taken from.

        Raises:
            LockUnavailable: the lock server cannot be reached.
            LockKeyError: the key on the server is not a lock.
            ValueError: ``only`` is something else.
        """
        waiting = None if only else hold_in_line(self._store, self.key)
        seen = self.holder(only=only) if waiting is None else Holder.in_line(waiting)
        if seen is None or not take_away(self._store, seen, reason).took_away:
            return None
        return seen


def take_away(store: LockStore, seen: Holder, reason: str) -> Release:
    """Take a lock from the holder that was seen, and from no other; log that as WARNING, and note who did it.

    An operator's hold that waits leaves the line. Two requests, and one more then.

    Raises:
        LockUnavailable: the lock server cannot be reached.
        LockKeyError: the key on the server is not a lock.
    """
    owner = short(seen.owner) if seen.state == "foreign" else seen.owner
    release = store.force_release(seen.key, expected=seen.token, by=facts_of_force(owner, reason))
    if seen.state == HELD and not release.took_away:
        word, _, release = store.leave(seen.key, seen.token)
        release = release._replace(released=word != "missing")
    if release.took_away:
        logger.warning("released %r by force from %r (%s): %r", seen.key, seen.owner, seen.state, reason)
        note_act(store, "release", seen.key, f"taken from {owner} ({seen.state})", reason)
    return release

"""A store that answers what a test wrote down beforehand."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import Lease, Lock, LockStore, MemoryStore, Watchdog
from celery_redislock.locks.lease import DRIFT
from celery_redislock.store.store import Entry, Grant, Parked, Release, Renewal, Term
from tests.clocks import ManualClock


def unavailable() -> LockUnavailable:
    """The error of a server that does not answer."""
    return LockUnavailable("a server", "renew", "no answer")


class ScriptedRenewer:
    """Answers renewals: every one with ``True`` unless told otherwise.

    Attributes:
        calls: the terms of each call.
        withins: the bound of each call.
        takes: seconds each call lasts.
        silent: names of which no answer comes, where others are answered.
        closed: how often idle connections were closed.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.calls: list[list[Term]] = []
        self.withins: list[float | None] = []
        self.takes = 0.0
        self.silent: set[str] = set()
        self.closed = 0
        self._next: deque[Sequence[bool | None] | Exception | Callable[[], None]] = deque()

    @property
    def server(self) -> str:
        """For messages."""
        return "scripted"

    def close(self) -> None:
        """See LockStore; counted."""
        self.closed += 1

    def then(self, *answers: Sequence[bool | None] | Exception | Callable[[], None]) -> None:
        """Answer the next calls so; an exception is raised, a callable is run before a plain ``True``."""
        self._next.extend(answers)

    def renew(self, terms: Sequence[Term], *, within: float | None = None) -> Renewal:
        """See LockStore."""
        self.calls.append(list(terms))
        self.withins.append(within)
        sent_at = self.clock()
        self.clock.advance(self.takes)
        answer: object = self._next.popleft() if self._next else None
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer()
        renewed = answer if isinstance(answer, Sequence) else [True] * len(terms)
        silent = {at: "no answer" for at, term in enumerate(terms) if term.name in self.silent}
        return Renewal(renewed, sent_at, self.clock(), silent)


def lease_on(
    renewer: ScriptedRenewer,
    *,
    ttl: float = 30.0,
    name: str = "n",
    token: str | None = None,
    on_lost: Callable[[Lease], None] | None = None,
    margin: float = DRIFT,
    **trust: Any,
) -> Lease:
    """A lease granted just now."""
    now = renewer.clock()
    term = Term(name, token or f"job/{name}", ttl)
    lease = Lease(renewer, term, Grant(1, False, now, now), on_lost=on_lost, clock=renewer.clock)
    if trust or margin != DRIFT:
        lease.limit_trust(margin, now, **trust)
    return lease


def lock_on(store: MemoryStore, clock: ManualClock, **options: Any) -> Lock:
    """A lock by that clock that nobody renews."""
    return Lock(store, "n", clock=clock, auto_renew=False, **options)


class Driven(Watchdog):
    """A watchdog whose thread is the test; ``renewer`` is the store that it asks."""

    def __init__(self, renewer: ScriptedRenewer) -> None:
        self.renewer = renewer
        self.manual = renewer.clock
        super().__init__(cast("LockStore", renewer), clock=renewer.clock)

    def _run_thread(self) -> None:
        pass

    def watched(self, *, max_hold: float | None = None, **options: Any) -> Lease:
        """Watch a lease granted just now."""
        lease = lease_on(self.renewer, **options)
        self.watch(lease, max_hold=max_hold)
        return lease

    def asked(self) -> list[list[str]]:
        """Return the names in each call so far."""
        return [[term.name for term in call] for call in self.renewer.calls]

    def run_until(self, time: float) -> None:
        """Do all that becomes due up to a moment, each at its moment."""
        while self._next_due() <= time:
            self.manual.now = max(self.manual.now, self._next_due())
            self._do_what_is_due()
        self.manual.now = max(self.manual.now, time)


class FailingStore(MemoryStore):
    """Does what it is asked, and then fails to say so, for each verb named in ``fails``.

    Who waits for a bell lets the time pass by its manual clock.
    """

    fails: frozenset[str] = frozenset()

    def acquire(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer("acquire", super().acquire(*args, **kwargs))

    def renew(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer("renew", super().renew(*args, **kwargs))

    def release(self, *args: Any, **kwargs: Any) -> Any:
        if "release" in self.fails:
            raise LockUnavailable("memory", "release", "no answer")
        return super().release(*args, **kwargs)

    def await_bell(self, bell: str, seconds: float) -> bool:
        if not super().await_bell(bell, 0.0):
            cast("ManualClock", self._clock).advance(seconds)
        return super().await_bell(bell, 0.0)

    def pause(self, seconds: float) -> None:
        cast("ManualClock", self._clock).advance(seconds)

    def _answer(self, verb: str, answer: Any) -> Any:
        if verb in self.fails:
            raise LockUnavailable("memory", verb, "no answer")
        return answer


class ToldStore(FailingStore):
    """Tells which requests for a lock it has got, in ``asked``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[str] = []

    def acquire(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append("acquire")
        return super().acquire(*args, **kwargs)

    def park(self, *args: Any, **kwargs: Any) -> Parked:
        self.asked.append("park")
        return super().park(*args, **kwargs)


class LinedStore(FailingStore):
    """Locks in memory with a line whose course a test writes down: what happens in each wait.

    Attributes:
        turns: of the waits to come; each returns whether the bell rang, as by :meth:`hand_over`.
        entries: the ids that were parked, and where, in ``places``.
        waits: how long each wait was to be.
        left: the ids that have left.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.turns: list[Callable[[], object]] = []
        self.entries: list[str] = []
        self.places: list[str] = []
        self.waits: list[float] = []
        self.left: list[str] = []

    def hand_over(self) -> bool:
        """End the hold there is, and hand the lock to whoever was parked last."""
        self.force_release("n")
        self.acquire("n", self.entries[-1], self.patience, facts="{}")
        return True

    def park(self, name: str, id: str, entry: Entry, **options: Any) -> Parked:  # noqa: A002, ARG002
        self._answer("park", None)
        self.entries.append(id)
        self.places.append(options["place"])
        return Parked("parked", 0, self.inspect(name))

    def await_bell(self, bell: str, seconds: float) -> bool:  # noqa: ARG002
        self.waits.append(seconds)
        return bool(self.turns.pop(0)())

    def leave(self, name: str, id: str) -> tuple[str, bytes, Release]:  # noqa: A002
        self._answer("leave", None)
        self.left.append(id)
        return "left", b"", self.release(name, id)

"""The lock store: the verbs that must be atomic, and the values they take and answer with.

:class:`~celery_redislock.store.redisstore.RedisStore` keeps locks on a server,
:class:`~celery_redislock.store.memory.MemoryStore` in this process, for tests.
Both pass the same contract tests. The file is long because a verb's docstring is its contract.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.store.home import Proof, SharedText

if TYPE_CHECKING:
    from celery_redislock.wire.scripts import Scripts

#: Ten years in seconds: a longer time was most likely written in milliseconds.
TEN_YEARS = 315_360_000.0

#: Holders of one lock at most, where people count them: at 9,000 a refused acquire took 4.8 ms of the server.
MOST_HOLDERS = 10_000

#: Holders of one lock that are told, where many locks are looked at.
MOST_TOLD = 16

#: Characters of another program's value that are kept, or shown to anybody.
SHOWN_OF_VALUE = 8

#: Locks that a walk tells at a time.
SLICE = 1000

#: Seconds since the epoch: no calendar shows what comes later.
YEAR_10000 = 253_402_300_800

#: Not json.loads, which first finds out in which encoding bytes are.
_decode = json.JSONDecoder().decode

#: Characters of a message or a result above which no script carries them: locks do not wait for that.
LARGEST = 256 * 1024

#: The kinds of facts that a holder writes about itself; another program may have written anything.
_KINDS = {"task": str, "host": str, "pid": int}
_PLAIN = str | int | float

#: A token that nobody has. Its release ends no hold, and hands a lock that is free to the first in line.
NOBODY = "nobody"

#: In place of a home, where the lock server is the broker.
_NOWHERE = SimpleNamespace(text="")

#: The states of a holder: its message waits for a worker; its run has started; its period (``lock_period``)
#: has not passed.
QUEUED = "queued"
RUNNING = "running"
ACCEPTED = "period"
#: Nobody holds it: its rate (``lock_rate``) has had its starts. The token is that of the last one.
RATED = "rate"
#: An operator holds it (``locks/hold.py``): the state, how the owner begins, and how the nonce does. No other
#: nonce has a colon.
HELD = "hold"
OPERATOR = "operator "
HOLD_NONCE = "hold:"

#: SYMBOL FOR NULL. An id that has one is taken for one with NUL.
_NUL = "\u2400"

#: The cause of a refusal, by the state of its holder.
_CAUSES = {QUEUED: "claim", RUNNING: "run", ACCEPTED: "period", RATED: "rate"}


def owner_name(task_id: str) -> str:
    """Return a task id as tokens have it: NUL ends a token on the server, and its symbol stands for it."""
    return task_id.replace("\0", _NUL)


def owner_of(token: str) -> str:
    """Return the owner a token was minted for; a foreign value without a nonce is its own owner."""
    return (token.rpartition("/")[0] or token).replace(_NUL, "\0")


def short(value: str) -> str:
    """Return the beginning of another program's value: who knows it all can release that lock."""
    return value if len(value) <= SHOWN_OF_VALUE else f"{value[:SHOWN_OF_VALUE]}…"


class Hold:
    """A holder as the store knew it when it answered. Advisory: it may be gone by now.

    The facts that the holder wrote are read when first used: most duplicates are skipped without them.
    Scripts find them as text, so their spelling is the format; ``since`` comes before ``args``:

    ``task``, ``host``, ``pid``, ``since``, ``args``
        for people; ``task`` also for counts, ``since`` (seconds, the writer's clock) for the age of a claim
    ``state``, ``published``, ``message``
        ``queued``, ``accepted``, ``running`` or ``hold``; its message has left; the identity of that, if not
        the token
    ``line``, ``names``, ``unacked``
        it was handed the lock in its turn; all locks it waits for; the broker's hash of deliveries (line.lua)
    ``due``, ``first``, ``merged``
        of a call whose place others take: before when it does not start, and when the first of them was
        made, in ms of the server's clock; how many were merged into it (merge.lua)
    ``rate``
        how many may start in which span, in ms, as its process knows it (rate.lua)
    ``limit``, ``permits``
        of holders, as its process knows it; the places that it takes (permits.lua)
    ``at``, ``ttl``
        where a run is, so that somebody finds it dead; its lease's ttl
    ``on_conflict``, ``ignored``, ``timed``, ``confirmed``
        what its duplicates do; its result is not stored; its times are counted; replicas confirm it

    Attributes:
        name: the lock's name.
        token: the holder's token; the whole value where a foreign client holds the key.
        expires_in: seconds until the hold ends unless it is renewed; ``inf`` for another program's
            lock that has no end.
        is_period: nothing is held, but ``lock_period`` has not passed since the last acceptance.
        text: the holder's facts, JSON. A piece of it that begins with a quotation mark is a name or a value.
    """

    __slots__ = ("_facts", "expires_in", "is_period", "name", "text", "token")

    def __init__(self, name: str, value: bytes, expires_in: float, is_period: bool = False) -> None:
        """Read a stored value, ``token NUL json``; anything else is a foreign holder's whole token."""
        token, _, self.text = value.partition(b"\0")
        self.name = name
        self.token = token.decode("utf-8", "replace")
        self.expires_in = expires_in
        self.is_period = is_period
        self._facts: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        fields = (self.name, self.token, dict(self.facts), self.expires_in, self.is_period)
        return f"Hold({', '.join(map(repr, fields))})"

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts that the holder wrote about itself, such as task, state, host, pid and since."""
        if self._facts is None:
            self._facts = facts_in(self.text)
        return self._facts

    @property
    def owner(self) -> str:
        """Who the lock is held for, such as a task id."""
        return owner_of(self.token)

    @property
    def is_operators(self) -> bool:
        """Whether an operator holds it, or waits for that: then no call is dropped because of it."""
        # Each duplicate asks.
        return "/hold:" in self.token and self.token.rpartition("/")[2].startswith(HOLD_NONCE)

    @property
    def message(self) -> object:
        """The identity of the message it is held for. That is its token, unless the holder wrote another."""
        return self.facts.get("message", self.token)

    @property
    def state(self) -> str | None:
        """``QUEUED``, ``RUNNING``, ``ACCEPTED``, ``HELD`` or another text; ``None`` if it wrote none."""
        state = ACCEPTED if self.is_period else self.facts.get("state")
        return state if isinstance(state, str) and state.isprintable() else None

    @property
    def since(self) -> float | None:
        """When the holder took it, in seconds since the epoch by its own clock; ``None`` if unknown."""
        since = self.facts.get("since")
        if isinstance(since, int | float) and not isinstance(since, bool) and 0 <= since < YEAR_10000:
            return since
        return None


def sliced(names: Iterable[str], size: int | None = None) -> Iterator[list[str]]:
    """Yield so many of these names at a time, of a walk :data:`SLICE`."""
    left = iter(names)
    while some := list(islice(left, size or SLICE)):
        yield some


def facts_in(text: bytes) -> dict[str, Any]:
    """Return a holder's facts, without those that are nested (nobody could print them) or of another kind."""
    try:
        facts = _decode(text.decode()) if text else {}
    except (ValueError, RecursionError):
        facts = {}
    pairs = facts.items() if isinstance(facts, dict) else ()
    return {key: fact for key, fact in pairs if isinstance(fact, _KINDS.get(key, _PLAIN))}


class Grant(NamedTuple):
    """The hold is ours.

    Attributes:
        fence: the fencing token, larger with each grant of the same lock; ``None`` where there is none.
        taken_over: the hold was there before, under ``instead_of``.
        sent_at: this process's clock just before the answered request was sent.
        answered_at: the same clock when the answer came.
        repeated: the hold was there before under this very token: an earlier request was granted it.
            Its answer may have been lost, and with it whether it took anything over.
        sent_again: the message whose claim was taken over was sent more than once, so a copy of it may come.
    """

    fence: int | None
    taken_over: bool
    sent_at: float
    answered_at: float
    repeated: bool = False
    sent_again: bool = False


class Refusal(NamedTuple):
    """Somebody else holds the lock, or its period has not passed.

    Attributes:
        holds: the holders that refuse it, one or several.
        number: of a call whose facts say that it coalesces, when it was made: larger for each later one.
            Microseconds of the server's clock.
    """

    holds: tuple[Hold, ...]
    number: int | None = None

    @property
    def hold(self) -> Hold:
        """The first of the holders that refuse it."""
        return self.holds[0]

    @property
    def because(self) -> str:
        """The cause: ``"run"``, ``"claim"``, ``"period"``, ``"rate"``. Another program's lock: as a run."""
        return _CAUSES.get(self.hold.state or RUNNING, "run")


class Marked(NamedTuple):
    """Nothing was taken, because this message has a mark (:class:`Mark`): it ran already.

    A copy of a message that is not done waits until the mark says done, or expires (in ``expires_in`` s).
    """

    is_done: bool
    expires_in: float


#: The answers of :meth:`LockStore.acquire`.
Answer: TypeAlias = Grant | Refusal | Marked


class Mark(NamedTuple):
    """A note that a release leaves for copies of its message. "done" is never overwritten by "ending".

    Attributes:
        message: the message's identity, the token of its publish.
        ttl: seconds until the mark expires.
        is_done: nothing is left to do for the message. ``False``: it is ending; its result and its
            follow-ups may still be to come.
    """

    message: str
    ttl: float
    is_done: bool = False


class Term(NamedTuple):
    """One hold, as a renewal names it."""

    name: str
    token: str
    ttl: float


class Renewal(NamedTuple):
    """The answers to a batch of renewals, with the times of a :class:`Grant`.

    Per term, in order: ``True`` renewed; ``None`` missing; ``False`` held by another token. ``unanswered``:
    why those terms, by their place, got no answer, where others did: a Cluster has many nodes.
    """

    renewed: Sequence[bool | None]
    sent_at: float
    answered_at: float
    unanswered: Mapping[int, str] = {}


class Release(NamedTuple):
    """The answer to a release.

    Attributes:
        released: the hold was ours and is gone now.
        held_by: another token's hold (after an operator's release: the victim), ``None`` for nobody's.
        repeated: the first request got no answer, and may have released a hold that the second one found
            missing or another's: :meth:`gave_back` decides.
        promoted: what waited for the lock, holds it now, and has to be published by this process.
    """

    released: bool
    held_by: Hold | None = None
    repeated: bool = False
    promoted: "tuple[Promotion, ...]" = ()

    def gave_back(self, *, trusted: bool) -> bool:
        """Whether it ended this very hold, which nobody else can have ended while it could be ``trusted``."""
        return self.released or (self.repeated and trusted)

    @property
    def took_away(self) -> bool:
        """Whether an operator's release took away the hold that was seen, or most likely did."""
        return self.released or (self.repeated and self.held_by is None)


class Promotion(NamedTuple):
    """A waiting message that was handed its lock, and that somebody has to publish, and to settle then.

    Attributes:
        name: the lock's name.
        id: of the entry: the message's identity, and the token of its claim.
        text: as it was parked.
        sends: how often it was sent before, and has not started; ``kept``: how often its claim was extended,
            because it may still be there.
    """

    name: str
    id: str
    text: bytes
    sends: int = 0
    kept: int = 0


class Entry(NamedTuple):
    """Who waits in a line, and how to tell that its turn has come.

    Attributes:
        kind: ``push``: the text goes to the front of a queue of the broker, on this server. ``ring``: to a
            bell, the list of a process that waits. ``give``: a process whose home is ``to`` publishes it.
            ``hold``: nothing is sent.
        to: the queue, the bell or the home.
        ttl: seconds the claim lives that the entry is handed.
        facts: of that claim, JSON.
        text: of the message.
    """

    kind: str
    to: str
    ttl: float
    facts: str
    text: str = ""

    def dumps(self) -> str:
        """Return it as it is parked."""
        return f"{self.kind}\0{self.to}\0{max(1, round(self.ttl * 1000))}\0{self.facts}\0{self.text}"


class Merge(NamedTuple):
    """How a call takes the place of the one of its task that waits in line; its own arguments run then.

    Attributes:
        names: the task id and the token as they are spelled in the text, with NUL between them.
        pause: seconds without another such call until the one that waits is due; 0 for at once.
        longest: seconds from the first such call on after which it is due in any case; 0 for none.
        number: when it was made (:class:`Refusal`); ``None`` where nobody knows, on a worker.
        instead_of: on a worker: the id of the one that was told that it gives way.
        mark_ttl: seconds in which a copy of that one may come, and then does nothing.
    """

    names: str
    pause: float = 0.0
    longest: float = 0.0
    number: int | None = None
    instead_of: str = ""
    mark_ttl: float = 3600.0


class Turn(NamedTuple):
    """How a message that is published waits in line, where its claim is refused.

    Attributes:
        header: a piece of its text, which is there once.
        unclaimed: what is there instead where it leaves without a claim; ``parked``: where it waits.
        facts: of the claim that it is handed in its turn, JSON; ``hand_off``: seconds that lives.
        band: as for :meth:`LockStore.park`, and so are ``most`` and ``within``.
    """

    header: str
    unclaimed: str
    parked: str
    facts: str
    band: int
    most: int
    hand_off: float
    within: float | None = None
    merge: Merge | None = None


class Parked(NamedTuple):
    """The answer to :meth:`LockStore.park`, and to :meth:`LockStore.claim_and_push` with a turn.

    Attributes:
        word: ``parked``; ``repeated``: it had been parked before; ``woken``: parked, and on its way already;
            ``runs``: not parked, it may have the lock; ``full``: not parked, the line is full; ``unclaimed``:
            not parked, it was pushed without a claim; ``merged``: it has taken the place of one that waits,
            whose id its message has now. With a :class:`Merge` on a worker, and not parked: ``newer``: the
            one of its task that waits was called later; ``older``: that was called earlier, and gives way;
            ``done``: this one has run, or has given way.
        place: how many were before it; of one that ``merged``, how many have taken that place.
        held_by: who holds the lock; for ``merged``, ``newer`` and ``older`` the one that waits.
        promoted: as of a :class:`Release`.
    """

    word: str
    place: int = 0
    held_by: Hold | None = None
    promoted: tuple[Promotion, ...] = ()


class Waiter(NamedTuple):
    """An entry of a line, as it was parked, without its text; ``hold`` is the claim it will be handed.

    ``sends``: how often its message was sent, because it was handed the lock.
    """

    id: str
    kind: str
    to: str
    hold: Hold
    sends: int = 0


class Line(NamedTuple):
    """A line as a walk tells it.

    Attributes:
        name: the lock's name.
        length: how many wait in it.
        first: the first of them. Where nobody waits, the first of those that were handed the lock.
        is_handed_on: that one is meant: it was handed the lock, and its message has not started.
    """

    name: str
    length: int
    first: Waiter
    is_handed_on: bool = False


class Unstarted(NamedTuple):
    """A message that was handed its lock and does not start; operators should know.

    Attributes:
        name: the lock's name.
        id: as of a :class:`Promotion`.
        queue: where it was sent.
        times: how often its claim was extended; how often it was sent, where it ``is_lost`` each time.
        is_lost: it went to the end of its line. Else it lies in its queue.
    """

    name: str
    id: str
    queue: str
    times: int
    is_lost: bool


class Sweep(NamedTuple):
    """The answer to :meth:`LockStore.sweep`.

    Attributes:
        next_in: seconds until the next line is due; ``inf`` where nobody waits.
        held: who holds the locks of the lines that were looked at.
        broken: keys that are another program's: their locks' names, and the server's words.
        promoted: as of a :class:`Release`.
        unstarted: what was handed its lock and does not start.
        elsewhere: locks whose first in line only another home can serve: their names, and that home.
    """

    next_in: float
    held: tuple[Hold, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    promoted: tuple[Promotion, ...] = ()
    unstarted: tuple[Unstarted, ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()


class Limit(NamedTuple):
    """A limit that was set at run time, in place of those that tasks say.

    Attributes:
        value: so many may hold the lock at once.
        expires_in: seconds until those of the tasks count again.
        facts: who set it (``by``, ``host``, ``pid``), and when (``since``, seconds since the epoch).
    """

    value: int
    expires_in: float
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, value: bytes, expires_in: float) -> "Limit":
        """Read a stored value, ``N NUL json``."""
        number, _, text = value.partition(b"\0")
        return cls(int(number), expires_in, facts_in(text))


class Refused(NamedTuple):
    """The calls of one task that one key has refused in the last hour.

    Attributes:
        times: how many.
        first: when the first of them was, and ``last`` the last one, in seconds since the epoch, by the
            server's clock.
        holder: who held the lock then: a task id; of another program's value the beginning.
        hold: who was refused last: its ``owner``, and in its facts task, host, pid, and ``on_conflict``, the
            strategy that its task asks for. It has held nothing.
    """

    times: int
    first: float
    last: float
    holder: str
    hold: Hold


class History(NamedTuple):
    """What happened to one lock in the last hour.

    Attributes:
        refused: one for each task, the one refused last before the others.
        forced: who took the lock away by force last (``by``, ``host``, ``pid``), the ``reason``, from whom
            (``owner``), and when (``since``, seconds since the epoch); empty where nobody did.
    """

    refused: tuple[Refused, ...] = ()
    forced: Mapping[str, Any] = {}


class Counts(NamedTuple):
    """What was counted of tasks, for 30 days at most.

    Attributes:
        since: since when, in seconds since the epoch; ``None`` where nothing was.
        numbers: how often, by task and what: ``accepted``, ``started``, ``skipped``, ``asked`` (refused; its
            task has a callable for ``on_conflict``), ``waited``, ``merged``, ``lost``, ``forced``,
            ``restored``; and by task, ``wait`` or ``hold``, and an upper bound in seconds or ``ms`` for their
            sum.
    """

    since: float | None = None
    numbers: Mapping[tuple[str, ...], int] = {}


class LockStore(ABC):
    """The atomic verbs. Times are seconds. Thread-safe; safe to use after a fork.

    Every verb raises ``LockUnavailable`` when the server does not answer in a
    bounded time, and ``LockKeyError`` when the key on the server is not a lock.
    Every verb may be repeated with the same token.

    Attributes:
        home: the broker that this process publishes to, where that is not the lock server, as its URL spells
            it, and in further lines other spellings of that broker; '' for none. A worker's children have
            what its main process has set last.
        on_promoted: called with what the end of a hold has promoted and this process has to publish, in the
            thread that ended it, after the answer was read. Callers that end a hold need not know of it.
        is_shared: other processes see these locks.
        keeps_lines: who waits stands in a line, and is served in order. Where it is false, who waits asks
            again after a random pause.
        prefix: the beginning of all keys.
        renewed_with: the store whose watchdog renews what this one holds, ``None`` for its own.
        patience: seconds after which every verb has answered or raised, but for a slow new connection.
    """

    _home: Any = _NOWHERE
    on_promoted: Callable[[Sequence[Promotion]], object] | None = None
    is_shared: bool = False
    keeps_lines: bool = True
    prefix: str = ""
    renewed_with: "LockStore | None" = None
    patience: float = 2.0

    @cached_property
    def crowded(self) -> set[str]:
        """Names of locks that somebody of this process has just had to wait for."""
        return set()

    def _share_home(self, spellings: str) -> None:
        if self._home is _NOWHERE:
            self._home = SharedText()
        self._home.text = spellings

    # Each release reads it, so no function of Python's does.
    home = cast("str", property(attrgetter("_home.text"), _share_home))

    @property
    def own_home(self) -> str:
        """The first line of ``home``: what this process parks messages for."""
        return self.home.partition("\n")[0]

    @property
    @abstractmethod
    def server(self) -> str:
        """Where the locks are kept, without credentials; for messages."""

    @property
    def is_open(self) -> bool:
        """Whether the server could be reached a moment ago, as far as can be told without asking it."""
        return False

    def scripts(self, names: Sequence[str], package: str) -> "Scripts":  # noqa: ARG002  there is no server
        """Return a runner of a package's scripts where the locks are; their keys begin with ``prefix``.

        Raises:
            LockUnavailable: only this process sees the locks.
        """
        raise LockUnavailable(self.server, names[0], "no scripts can be run in this store")

    def leads_to(self, address: Mapping[str, Any]) -> bool:  # noqa: ARG002  there is no server
        """Whether a redis-py client with these options is in the database of the locks, as the same user.

        Where it is, :meth:`release_and_store` stores results for it.
        """
        return False

    def reaches(self, address: Mapping[str, Any]) -> bool:  # noqa: ARG002  there is no server
        """Whether :meth:`claim_and_push` serves the queues that a redis-py client with these options sees."""
        return False

    @abstractmethod
    def acquire(
        self,
        name: str,
        token: str,
        ttl: float,
        *,
        facts: str,
        instead_of: str | None = None,
        period: float | None = None,
        message: str | None = None,
        starts_run: bool = False,
        limit: int | None = None,
    ) -> Answer:
        """Take the hold, keep it, or take it over; one round trip.

        Args:
            name: the lock's name.
            token: of the hold. If it holds already, its ``ttl`` starts anew, and the grant says ``repeated``.
            ttl: how long the hold lives unless it is renewed.
            facts: small facts about the holder for those who are refused, as JSON, no argument values.
            instead_of: another token this hold replaces where that one holds (a claim becoming a lease).
            period: least time between two acceptances by the server's clock; taking over is no new one.
            message: whose mark is looked at first, before the holder and before ``instead_of``. Where it has
                one, :class:`Marked` is the answer and nothing is taken, unless ``token`` holds already.
            starts_run: a run begins with it, so a server that is out of memory grants it, as it grants a hold
                that is taken over. It refuses any other.
            limit: so many may hold it at once, one task id only once; ``None``: one. The facts say it too, as
                ``"limit"``. Where processes disagree, the least counts: that of the holders, and of the
                first in line. One that was set (:meth:`limit`) counts instead of all. Above 1 there is no
                fence, and nobody is granted it before those who wait in line.
        """

    def begin(self, name: str, token: str, ttl: float, **terms: Any) -> Callable[[], Answer]:
        """Send the request of :meth:`acquire`, and return a function that reads the answer.

        That is called once, by the same thread, and answers and raises as :meth:`acquire` does; the time in
        between does not count. Where it is not called, as after an error, the hold may have been taken.
        """
        return partial(self.acquire, name, token, ttl, **terms)

    @abstractmethod
    def look(
        self, name: str, token: str, *, period: float | None = None, limit: int | None = None, facts: str = ""
    ) -> Refusal | None:
        """Return who would refuse a claim under ``token`` now, ``None`` for nobody; one round trip.

        ``facts``: of that claim, as for :meth:`acquire`; with them a refusal is noted (:meth:`happened`).
        A hold refuses, and with ``period`` a period that has not passed; those of this very token do not.
        Nothing is taken: at the next request the lock may be another's. A replica, which may know only a past
        holder, does not answer (``LockUnavailable``).
        """

    def claim_and_push(
        self, name: str, token: str, ttl: float, *, queue: str, text: str,  # noqa: ARG002  no queue
        turn: Turn | None = None, **terms: Any,  # noqa: ARG002
    ) -> Answer | Parked:  # fmt: skip
        """As :meth:`acquire`, and put the *text* of the message it is for into *queue*, the broker's list.

        Both or neither, in one round trip. Repeated under the same token within three socket timeouts it
        pushes once, also if the message has run meanwhile. A claim that this token holds already, and whose
        message was not pushed in that time, gets its message. Where :class:`LockUnavailable` says
        ``was_refused`` nothing was done.

        With a ``turn`` nothing is refused: in the same step the message is put into the line of the lock,
        behind those of its ``band``, for a holder or for those who wait; where a period refuses it, the line
        is full, or its keys are another program's, into the queue, without a claim. The answer is
        :class:`Parked` then.

        Raises:
            LockUnavailable: besides, with ``was_refused``, in a store that :meth:`reaches` no queue.
        """
        error = LockUnavailable(self.server, "claim_and_push", "no queue can be reached from this store")
        error.was_refused = True
        raise error

    @abstractmethod
    def renew(self, terms: Sequence[Term], *, within: float | None = None) -> Renewal:
        """Set each hold's remaining time back to its ttl; one round trip per 200. Never creates a lock.

        ``within``: seconds the answer is of use, if less than the store's own bound (a lease about to end).
        """

    @abstractmethod
    def release(
        self, name: str, token: str, *, opened_by: str | None = None, mark: Mark | None = None
    ) -> Release:
        """Release the hold if ``token`` still has it; one round trip.

        ``opened_by``: the period that began under this token ends too. ``mark`` is left in any case, also
        where another token holds the lock.
        """

    def release_and_store(
        self, name: str, token: str, key: str, result: str, seconds: int,  # noqa: ARG002  it stores nothing
        *, opened_by: str | None = None, mark: Mark | None = None,
    ) -> tuple[Release, bool]:  # fmt: skip
        """As :meth:`release`, and store a result; also whether that, or a success before it, is stored now.

        The result is announced on the channel ``key``, and lives for so many seconds, with 0 for ever. In a
        store that :meth:`leads_to` no results the hold is released, and nothing is stored.
        """
        return self.release(name, token, opened_by=opened_by, mark=mark), False

    @abstractmethod
    def release_claims(self, owners: Collection[str]) -> Iterator[tuple[str, str]]:
        """Release the claims of these owners on all locks: their messages will never run.

        A period that began under such a claim ends with it; runs keep their locks. One request looks at
        a thousand locks, and is sent when the caller iterates so far: without an iteration nothing is
        released. A claim that is taken meanwhile may be missed.

        Yields:
            The lock's name and the claim's token, for each claim that was released.
        """

    @abstractmethod
    def hand_on(
        self, name: str, old: str, new: str, ttl: float, *, facts: str, mark: Mark | None = None
    ) -> Release:
        """Turn one token's hold into another's, if it still holds; one round trip. Never takes a free lock.

        Where the message of ``new``, which is its identity, has a mark already, it has run, and the hold is
        released instead. ``ttl`` and ``facts`` are those of the new hold; ``mark`` as for :meth:`release`.

        Returns:
            ``released`` if the hold of ``old`` was there: it is now that of ``new``, or released. Also
            where ``new`` holds already, because this request was repeated.
        """

    @abstractmethod
    def downgrade(self, name: str, token: str, ttl: float, *, facts: str) -> Release:
        """Turn an exclusive hold into one of several, for ``ttl`` seconds from now; one round trip.

        It keeps its token. ``facts`` have the ``limit``: so many may hold the lock from now on; those start
        that are first in line.

        Returns:
            ``released`` if it was held: it is exclusive no more.

        Raises:
            LockUnavailable: besides, in a store in which nothing is held by several.
        """

    @abstractmethod
    def park(
        self, name: str, id: str, entry: Entry, *, nonce: str, how: str = "refused", band: int = 0,  # noqa: A002
        place: str = "last", most: int = 10_000, ahead: str = "",
        acknowledge: tuple[str, str, str] | None = None, within: float | None = None,
        merge: Merge | None = None,
    ) -> Parked:  # fmt: skip
        """Put an entry into the line of a lock, unless it may have the lock; one round trip.

        From then on whoever ends a hold of that lock hands it to the first in line, in the same step.

        Args:
            name: the lock's name.
            id: of the entry; the token of the claim it will be handed.
            entry: who waits, and how to tell it.
            nonce: of this request. Repeated within three socket timeouts it parks once, also where the entry
                has left the line meanwhile, unless that is a ``ring``.
            how: ``ask``: it may run where the lock is free; ``behind``: it waits also then, because one
                before it is on its way to the lock; ``refused``: it is woken at once where the lock is free.
            band: of its priority: 0 is served first.
            place: ``last`` or ``first`` of its band, or the id of one it goes before (first, if it has left).
            most: entries there may be.
            ahead: ``token NUL facts``: where the lock is free, nobody waits and it waits ``behind``, a claim
                of the one before it, for ten seconds; else that one's run would be refused in favour of those
                behind it.
            acknowledge: a delivery that the broker, on the lock server, forgets in the same step: the keys of
                the hash of deliveries and of the sorted set of their tags, and the tag.
            within: seconds after which it goes without the lock, if it still waits: :meth:`sweep` lets it go.
            merge: it takes the place of an older call of its task, once that is to give way.

        Raises:
            LockUnavailable: besides, in a store that keeps no lines; and where the server is out of memory.
        """

    def newest(self, name: str, task: str, id: str, number: int | None) -> str:  # noqa: A002, ARG002
        """Note when a call was made that starts now; one round trip.

        Returns:
            The id of a later call of this task that was accepted within the last hour, '' for none.
            ``number``: as of a :class:`Merge`; without one each other call counts as later, and nothing is
            noted. A store of several locks, and a quorum, knows none.

        Raises:
            LockUnavailable: the server cannot be reached.
        """
        return ""

    @abstractmethod
    def leave(self, name: str, id: str, *, unless_held: bool = False) -> tuple[str, bytes, Release]:  # noqa: A002
        """Take an entry out of a line, and release the lock if it was handed to it; one round trip.

        ``unless_held``: not one that holds the lock, unless its message was sent and has not started.

        Returns:
            ``left`` (also where it was handed the lock and has not started), ``released`` (it held the lock),
            ``kept`` (it holds it) or ``missing``; the entry as it was parked, empty where it is not there or
            kept; and what the release has promoted.
        """

    @abstractmethod
    def move(self, name: str, id: str, place: str) -> bool:  # noqa: A002
        """Move an entry to the ``first`` or ``last`` place of a line, whatever its priority; one round trip.

        It has the priority of its new neighbour from then on. Returns whether it is in that line.
        """

    def bell(self, name: str, nonce: str) -> str:
        """Return a new bell for a waiting process, ``to`` of its ``ring`` entry in the line of that lock."""
        return f"{self.prefix}:{{{name}}}:bell:{nonce}"

    @abstractmethod
    def await_bell(self, bell: str, seconds: float) -> bool:
        """Wait for a bell, and take its ring; one request, which the server answers when it rings.

        It is bounded by twice the seconds and a socket timeout, so a wait is best made of pieces of a second:
        signals are handled, and a server that has gone is noticed, in between. ``False`` does not mean that
        nobody rang: of two attempts the first one's answer may be lost. Who holds the lock says more.

        Returns:
            Whether it rang.
        """

    def pause(self, seconds: float) -> None:
        """Let so many seconds pass; nothing is sent."""
        time.sleep(seconds)

    @abstractmethod
    def settle(self, name: str, id: str, ttl: float, *, sent: bool = True) -> bool:  # noqa: A002
        """Let a message leave the line that was promoted and has been published; one round trip.

        Its claim lives for ``ttl`` seconds from now on. If that ends before the message has started, it is
        back in its place in the line. ``sent=False``: it was not published, as it was before and may still be
        there. Returns whether it was still in line.
        """

    @abstractmethod
    def sweep(self, *, most: int = 100) -> Sweep:
        """Look at lines whose time has come, and hand free locks to the first in line; one round trip.

        A line is due when its lock's hold expires, and sooner: two seconds after a holder has started, then
        after a quarter of the time for which it has held the lock. Each due line is looked at once, by one of
        all processes that sweep. While its lock is held, those go without it that have waited for as long as
        they may. A message that was handed its lock and has not started is sought in the broker's queue and
        among what workers have in hand, where the broker is the lock server; found nowhere at two looks, it
        is sent again.
        """

    @abstractmethod
    def homes(self, spelling: str = "", name: str = "") -> Mapping[str, Proof]:
        """Return the spellings of brokers that workers have proved within a week; one round trip.

        With a ``spelling``, note first that this process has just proved it, by this name of its broker ('':
        there is no proof).
        """

    @abstractmethod
    def drain(
        self, name: str = "", *, most: int = 100, ids: Sequence[str] = ()
    ) -> tuple[int, tuple[Promotion, ...]]:  # fmt: skip
        """Send what waits to its queues without the lock, in order: of one lock, or of all; one round trip.

        For an app that takes no locks any more, and for operators. ``ids``: only these entries of that lock.

        Returns:
            How many left, ``most`` of them at most, and those that the caller has to publish.
        """

    @abstractmethod
    def lines(self, *, limit: int = 1000) -> list[str]:
        """Return the names of the locks that somebody waits for, those that are looked at next first.

        Above a thousand as for :meth:`names`.
        """

    @abstractmethod
    def waiting(
        self, name: str, *, first: int = 0, last: int = -1, handed_on: bool = False
    ) -> tuple[int, list[Waiter]]:  # fmt: skip
        """Return how many wait for a lock, and those of them from ``first`` to ``last``, in order.

        Ranks begin with 0; a ``last`` of -1 is the end of the line. One request for each page of up to 100.
        Between two of them the line moves on: nobody is told twice, and who comes to a place that was told
        already is not told.

        ``handed_on``: instead those that were handed the lock, whose messages have not started.
        """

    @abstractmethod
    def mark_done(self, name: str, message: str, ttl: float) -> None:
        """Note that a message is done. The answer is not awaited, so a mark may be lost without an error.

        Raises:
            LockUnavailable: the request could not be sent.
        """

    def inspect(self, name: str, *, to_decide: bool = False) -> Hold | None:
        """Return the first of :meth:`holders`, or ``None``."""
        return next(iter(self.holders(name, to_decide=to_decide)), None)

    @abstractmethod
    def holders(self, name: str, *, to_decide: bool = False) -> tuple[Hold, ...]:
        """Return who holds the lock, or whose period it waits for; none where it is free.

        Where several hold it, the one whose hold ends first comes first.

        ``to_decide``: something depends on the answer, so a replica must not give it: it may know only a
        holder that is long gone (``LockUnavailable``).
        """

    def holders_of_each(self, names: Iterable[str]) -> Iterator[tuple[Hold, ...]]:
        """Yield the :meth:`holders` of each of these locks; as few requests as the store can make of it."""
        return map(self.holders, names)

    def walk_holds(self, *, limit: int = 100_000) -> Iterator[list[Hold]]:
        """Look at all locks that refuse now, and keep the server from nobody else for long.

        No picture of one moment: what refuses all along is told, and nothing twice; what comes or goes
        meanwhile may be missing. A key that is no lock is left out.

        Args:
            limit: so many locks at most.

        Yields:
            The :meth:`holders` of a thousand locks, in the order of :meth:`names`: of a lock that several
            hold, :data:`MOST_TOLD`.
        """
        for some in sliced(self.names(limit=limit)):
            found: list[Hold] = []
            for name in some:
                with suppress(LockKeyError):
                    found += self.holders(name)[:MOST_TOLD]
            if found:
                yield found

    def walk_lines(self, *, limit: int = 10_000) -> Iterator[list[Line]]:
        """Look at the heads of all lines, as :meth:`walk_holds` looks at locks.

        Args:
            limit: so many lines at most.

        Yields:
            A thousand lines, in the order of :meth:`lines`; those in which somebody waits, or was handed the
            lock and has not started.
        """
        for some in sliced(self.lines(limit=limit)):
            found: list[Line] = []
            for name in some:
                with suppress(LockKeyError):
                    length, waiters = self.waiting(name, last=0)
                    handed_on = [] if waiters else self.waiting(name, handed_on=True)[1]
                    found += [Line(name, length, first, not waiters) for first in [*waiters, *handed_on][:1]]
            if found:
                yield found

    @abstractmethod
    def limit(
        self, name: str, value: int | None = None, *, ttl: float | None = None, facts: str = ""
    ) -> "Limit | None":  # fmt: skip
        """Replace the limit that processes give for a lock, for ``ttl`` seconds; return what is set now.

        With a ``ttl`` and no ``value`` what was set is taken back; without a ``ttl`` nothing is changed. Who
        waits in line starts at once where there is room. ``facts`` say who set it, as JSON. It counts only
        where a limit is given.

        Raises:
            LockUnavailable: besides, in a store that keeps no limits.
        """

    @abstractmethod
    def force_release(self, name: str, *, expected: str | None = None, by: str = "") -> Release:
        """Take the hold away from ``expected``, a token that was seen, or from anybody; an operator's verb.

        ``by``: who does it, why and when, as JSON; kept for an hour (:meth:`happened`).

        Returns:
            ``released`` with the victim in ``held_by``; or not, with the present holder, or nobody.
        """

    @abstractmethod
    def names(self, *, limit: int = 1000) -> list[str]:
        """Return the names of the locks that refuse now, soonest to stop it first.

        Held ones, and free ones whose period has not passed; with both, the one that ends first counts. A
        run's is listed as its claim was, until it is renewed: :meth:`inspect` tells whether it is held.

        Above a thousand a server is asked for a piece of its list at a time: what is listed all along is
        told, in the order of when it was read.
        """

    def happened(
        self, name: str, *, task: str = "", what: str = "", times: int = 1,  # noqa: ARG002  nothing is noted
        value: str = "", holder: str = "",  # noqa: ARG002
    ) -> History:  # fmt: skip
        """Return what happened to a lock in the last hour; one request.

        ``task`` and ``what``: count this so many times more, which only its caller has seen
        (:class:`Counts`); a request that is repeated counts once. With a ``value``, the ``token NUL facts``
        of who was refused last, so many refusals by the holder with this token are noted in place of that.
        """
        return History()

    def refused(self, *, limit: int = 1000) -> list[str]:  # noqa: ARG002  nothing is noted
        """Return the names of the locks that have refused a task in the last hour, the latest first."""
        return []

    def counts(self) -> Counts:
        """Return what was counted of all tasks; one request."""
        return Counts()

    def clock(self, name: str = "") -> float | None:  # noqa: ARG002
        """Return the server's clock, in seconds since the epoch; one request. ``None`` for none.

        ``name``: of the lock whose server is asked; a Cluster has one for each.
        """
        return None

    def acts(self, noted: str = "") -> list[Mapping[str, Any]]:  # noqa: ARG002  nobody else would see them
        """Return what operators did in the last thirty days, the last 1,000 acts, in order; one round trip.

        It takes the right to read their key, and no script. The days are those of this machine's clock.

        *noted*: an act, as JSON, which is noted instead; nothing is returned then. A store that only this
        process sees, and a quorum, keep none.
        """
        return []

    def other_prefixes(self, name: str = "", token: str = "") -> list[str]:  # noqa: ARG002  it is alone
        """Return prefixes under which others keep locks on the same server; for a check, as it takes long.

        As :meth:`others`, and one request more for each.

        Args:
            name: only those under which this lock is held.
            token: of its term, where another one's hold does not count.
        """
        return []

    def others(self, pattern: str, *, endless: bool = False) -> set[str]:  # noqa: ARG002  there is no server
        """Return keys on the same server, of anybody, that match; ``endless``: only those without a TTL.

        For a check, as it takes long: it looks through at most 100,000 keys. On a Cluster it finds none.
        Raises ``LockUnavailable``, too, for a user who may not look.
        """
        return set()

    def server_says(self, section: str, name: str) -> str | None:  # noqa: ARG002  there is no server
        """Return what the server says of itself under this name (``INFO``); ``None`` where it does not."""
        return None

    def close(self) -> None:  # noqa: B027  nothing to close is the rule
        """Close the idle connections; the store stays usable."""

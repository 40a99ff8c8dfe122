"""A small world: what there is, what may happen, and a state of it, as values."""

from collections.abc import Sequence
from typing import NamedTuple

from tools.explore.frozen import Frozen

#: Seconds of model time. The claim of a queued call outlives all else, so that it shows who needs its end.
LEASE = 3.0
HAND_OFF = 5.0
QUEUED_FOR = 60.0
PERIOD = 4.0
SPAN = 4.0

#: What a worker sweeps a line for, at the latest.
LOOK = 2.0


#: A request of a run that may come late, or twice: verb, name of the lock, token, message.
Request = tuple[str, str, str, str]


class World(NamedTuple):
    """What there is, and how many faults of each kind may happen.

    Attributes:
        name: as it is told.
        messages: calls; ``names``: the locks of each, a blank between two.
        on_conflict: ``skip``, ``wait`` or ``coalesce``.
        claims: at publish; else a message takes its lock when it starts.
        limit: places; ``None`` for one holder, who is alone. ``weights``: places that each call takes.
        period: least seconds between two that are accepted.
        rate: starts and milliseconds, as scripts read it.
        pause: seconds without another call until the last one starts; such calls claim nothing at publish.
        homes: of all processes, where the broker is another server: as it is spelled, a line each. Messages
            are parked for the last one. '' where the lock server is the broker.
        blocks: calls are threads that wait for their lock (``waiters.py``).
        retries: of each call. ``losses``: replies or requests that are lost, and publishers that die.
        kills: of runs; their messages are delivered again. ``acts``: of others (``acts.py``).
        ticks: how often time passes until something ends.
    """

    name: str
    messages: int = 2
    names: Sequence[str] = ("k", "k", "k")
    on_conflict: str = "wait"
    claims: bool = True
    limit: int | None = None
    weights: Sequence[int] = ()
    period: float | None = None
    rate: str = ""
    pause: float = 0.0
    homes: str = ""
    blocks: bool = False
    retries: int = 0
    losses: int = 1
    kills: int = 1
    ticks: int = 3
    acts: int = 0

    @property
    def bound(self) -> float:
        """Seconds within which each accepted call has ended, where no fault happens any more."""
        more = (self.period or 0.0) + (SPAN if self.rate else 0.0) + self.pause
        return LEASE + HAND_OFF + 2 * LOOK + self.messages * (1 + self.retries) * more


class Copy(NamedTuple):
    """A message in a queue or in hand.

    Attributes:
        token: its identity; ``number``: when it was called, where it was refused at publish.
        claimed: it was accepted at its publish. ``earlier``: it was delivered before.
        parked: it waited in line. ``must_run``: it is a retry.
    """

    token: str
    claimed: bool = False
    earlier: bool = False
    parked: bool = False
    must_run: bool = False
    number: int = -1

    def dumps(self) -> str:
        """Return its text."""
        return "\t".join([self.token, *(str(int(each)) for each in self[1:])])

    @classmethod
    def loads(cls, text: str) -> "Copy":
        """Return the message of a text."""
        token, claimed, earlier, parked, must_run, number = text.split("\t")
        return cls(token, claimed == "1", earlier == "1", parked == "1", must_run == "1", int(number))

    @property
    def job(self) -> int:
        """Which call it belongs to."""
        return int(self.token.partition("/")[0])


class Run(NamedTuple):
    """A message in the hands of a worker.

    Attributes:
        copy: the message; ``token``: of its run.
        stage: ``asked`` (no answer to its start), ``refused``, ``body``, ``retried`` (its retry is
            published), ``ended`` (its lock is released, and it is not done).
        trusted: seconds for which it takes its lock for held.
    """

    copy: Copy
    token: str
    stage: str
    trusted: float = 0.0


class Job(NamedTuple):
    """A call.

    Attributes:
        stage: ``new``, ``asked`` (no answer to its claim), ``live`` (accepted), ``skipped``, ``failed``
            (its publish did), ``dead`` (its publisher died with its claim), ``merged`` (a newer one
            runs), ``dropped``, ``over``.
        retries: published. ``done``: messages of it that are done.
    """

    stage: str = "new"
    retries: int = 0
    done: tuple[str, ...] = ()


class State(NamedTuple):
    """All that can be told from the outside, and how many faults may still happen.

    Attributes:
        store: what it keeps. ``queue``: in any order; ``runs``: messages in hand.
        owed: late requests of runs.
        closed: seconds until a period, a rate or a pause lets the next one through, as an observer counts
            them; ``closed_by``: the message that began them.
    """

    store: Frozen
    jobs: tuple[Job, ...]
    queue: tuple[Copy, ...]
    runs: tuple[Run, ...]
    owed: tuple[Request, ...]
    losses: int
    kills: int
    ticks: int
    acts: int
    closed: float = 0.0
    closed_by: str = ""


class Step(NamedTuple):
    """What happened, in words, and the state after it; the law that it broke; whether it is a fault."""

    told: str
    state: State
    broken: str = ""
    is_fault: bool = False

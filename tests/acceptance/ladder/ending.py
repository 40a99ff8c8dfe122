"""What a row of the ladder is: an ending, how it is brought about, and what must be true in each pool."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import states

if TYPE_CHECKING:
    from tests.acceptance.ladder.scene import Scene

__all__ = ["EVERY_POOL", "NARROW", "SHARED", "Case", "Ending", "Freed", "Group", "Stage", "own"]

#: ``caller`` stands for no pool: what runs in the process that calls.
EVERY_POOL = ("prefork", "threads", "gevent", "eventlet", "solo")

#: Brings the ending about; returns when its cause was, or ``None`` where that is the end of the last body.
Act = Callable[["Scene"], float | None]


class Freed:
    """Who gives the lock back, and when; the words are those of the page."""

    RUN = "before the result, by the run"
    MAIN = "before the result, by the main process"
    DEAD = "once the body is over"
    KILLED = "once the body is over, by itself 5 s later at the latest"
    LATE = "by the last run, when a result is there already"
    TURN = "in its turn, by the main process"
    TOLD = "right after the result, by the main process"
    EXPIRY = "by itself"
    NEXT = "for the next publish that finds it held"
    OPERATOR = "at once, by an operator"
    CALLER = "at once, by the publisher"
    NOBODY = "all the time"


class Stage(NamedTuple):
    """The shop an ending is played in.

    Attributes:
        name: of a shop that is shared by the endings it is named in, one per pool; empty for one's own.
        conf: settings.
        arguments: of ``celery worker``.
        concurrency: bodies a worker runs at once.
        workers: how many, ``solo`` too.
        own_broker: the broker is a server of its own, so that it can be disturbed.
    """

    name: str = ""
    conf: Mapping[str, Any] = {}
    arguments: tuple[str, ...] = ()
    concurrency: int = 1
    workers: int = 1
    own_broker: bool = False


#: Four bodies at once, shared with all other tests.
SHARED = Stage("shared")
#: One body at once, and three messages waiting in the worker.
NARROW = Stage("narrow", arguments=("--prefetch-multiplier", "4"))


def own(
    *arguments: str, workers: int = 1, concurrency: int = 1, own_broker: bool = False, **conf: Any
) -> Stage:
    """Return a stage for one ending alone, which may do with it what it wants."""
    return Stage("", conf, arguments, concurrency, workers, own_broker)


class Case(NamedTuple):
    """What must be true of an ending in some pools.

    Attributes:
        pools: where.
        ends: of the bodies, in their order: ``""`` returned, the exception's name, ``None`` killed.
        freed: one of :class:`Freed`.
        within: seconds from the cause to the free lock, at most.
        term: where it expires, of what, as the page says it.
        state: of the task id at the end.
        rather: the state where two of Celery's own steps came in the other order; empty where there is one.
        stores: whether that state is stored by Celery before 5.7 too.
        lost: what plain Celery loses, and so do we; a sentence for the page.
        note: what else a reader should know.
        gap: the lock may be free before the last body all the same, where the ending is ``kept``.
        stage: instead of the ending's.
        slow: left out of ``make test``.
    """

    pools: tuple[str, ...]
    ends: tuple[str | None, ...]
    freed: str
    within: float = 5.0
    state: str = states.SUCCESS
    rather: str = ""
    stores: bool = True
    term: str = ""
    lost: str = ""
    note: str = ""
    gap: bool = False
    stage: Stage | None = None
    slow: bool = False


class Ending(NamedTuple):
    """A row of the ladder.

    Attributes:
        name: for people, and unique.
        act: brings it about.
        cases: what must be true, pool by pool.
        stage: where it is played.
        kept: the lock is not free for a moment until the last body begins.
        since: the Celery version it needs.
    """

    name: str
    act: Act
    cases: tuple[Case, ...]
    stage: Stage = SHARED
    kept: bool = False
    since: tuple[int, int] = (5, 5)


class Group(NamedTuple):
    """Endings of a kind; a section of the page.

    Attributes:
        title: of the section.
        promise: the law, for people.
        endings: the rows.
    """

    title: str
    promise: str
    endings: tuple[Ending, ...]

"""What a row is: an ending, how it is brought about, and what must be true in each pool."""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import states

if TYPE_CHECKING:
    from tests.acceptance.endings.scene import Scene

#: The pools that every row is played in where it can happen; the commonest rows in ``solo``, too.
EVERY = ("prefork", "threads", "gevent")
AND_SOLO = (*EVERY, "solo")

#: Brings the ending about; returns when its cause was, or ``None`` where that is the end of the last body.
Act = Callable[["Scene"], float | None]


class Free(Enum):
    """When the lock is free, and by what."""

    #: Released before the result can be seen.
    BEFORE_RESULT = auto()
    #: Released, by whomever; the result may be seen earlier.
    RELEASED = auto()
    #: Within seconds: released, or by a lease that was shortened.
    SOON = auto()
    #: By the end of its TTL.
    EXPIRED = auto()


class Stage(NamedTuple):
    """The project an ending is played in.

    Attributes:
        name: of a project that is shared by the endings it is named in, one per pool; empty for one's own.
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
SHARED = Stage("shared", concurrency=4)
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
        free: when, and by what.
        within: seconds from the cause to the free lock, at most.
        state: of the task id at the end.
        rather: the state where two of Celery's own steps came in the other order; empty where there is one.
        stores: whether that state is stored by Celery before 5.7 too.
        is_lost: the message is gone for good, as a plain task's would be.
        gap: the lock may be free before the last body all the same, where the ending is ``kept``.
        copied: a copy of the message waits in line, is handed the lock, and has nothing to do.
        stage: instead of the ending's.
        slow: left out of ``make test``.
    """

    pools: tuple[str, ...]
    ends: tuple[str | None, ...]
    free: Free = Free.BEFORE_RESULT
    within: float = 5.0
    state: str = states.SUCCESS
    rather: str = ""
    stores: bool = True
    is_lost: bool = False
    gap: bool = False
    copied: bool = False
    stage: Stage | None = None
    slow: bool = False


class Ending(NamedTuple):
    """A row.

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

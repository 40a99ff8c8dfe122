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
PREFORK = ("prefork",)

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
    """The project an ending is played in."""

    name: str = ""  # of one that endings share, one per pool; empty for one's own
    conf: Mapping[str, Any] = {}
    arguments: tuple[str, ...] = ()  # of ``celery worker``
    concurrency: int = 1
    workers: int = 1
    own_broker: bool = False  # a server that can be disturbed


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
    """What must be true of an ending in some pools."""

    pools: tuple[str, ...]
    ends: tuple[str | None, ...]  # of its bodies: "" returned, the exception's name, None killed
    free: Free = Free.BEFORE_RESULT
    within: float = 5.0  # seconds from the cause to the free lock, at most
    state: str = states.SUCCESS  # of the task id at the end
    rather: str = ""  # the state where two of Celery's own steps came in the other order
    stores: bool = True  # whether that state is stored by Celery before 5.7 too
    is_lost: bool = False  # the message is gone for good, as a plain task's would be
    gap: bool = False  # the lock may be free before the last body although the ending is ``kept``
    copied: bool = False  # a copy of the message waits in line, is handed the lock, and has nothing to do
    stage: Stage | None = None  # instead of the ending's
    slow: bool = False


class Ending(NamedTuple):
    """A row; its name is unique."""

    name: str
    act: Act
    cases: tuple[Case, ...]
    stage: Stage = SHARED
    kept: bool = False  # the lock is not free for a moment until the last body begins
    since: tuple[int, int] = (5, 5)  # the Celery version it needs

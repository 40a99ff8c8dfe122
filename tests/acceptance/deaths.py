"""Where a worker's process may die inside the package: at a point, and in a process, that a plan names.

A worker installs this when it imports its project. The package knows of no such point.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

from celery_redislock.publishing.message import HEADER
from tests.acceptance.journal import Journal, is_pool_child

#: A message is about to be parked; it is parked (and acknowledged, where that is one step).
PARKING, PARKED = "parking", "parked"
#: A run's lock is about to be released; it is released, and has promoted the next one; that is published.
RELEASING, RELEASED, PUBLISHED = "releasing", "released", "published"
#: A look at lines has promoted the next one.
SWEPT = "swept"
#: One that was handed the lock was taken from its queue, and nobody has noted that; it is noted who has it.
POPPED, IN_HAND = "popped", "in hand"
#: Its run is about to take its lock; its whole worker dies.
STARTING = "starting"


def install(journal: Journal, plan: Mapping[str, Any]) -> None:
    """Let a process of this worker die, once in the life of the project, and shorten the package's terms.

    ``plan``: ``dies`` (``at`` a point, ``number``: when it is reached that often) and ``terms`` (seconds).
    The journal notes under ``deaths`` where which process died.
    """
    from celery_redislock.publishing import promote
    from celery_redislock.receiving import parking
    from celery_redislock.receiving.in_hand import WorkerName
    from celery_redislock.running import unique
    from celery_redislock.store.redisstore import RedisStore

    for name, seconds in plan.get("terms", {}).items():
        setattr(parking, name, seconds)
        setattr(promote, name, seconds)
    if (dies := plan.get("dies")) is None:
        return
    point, number = dies["at"], dies.get("number", 1)

    def die(*, in_child: bool) -> None:
        if is_pool_child() is in_child and journal.count(f"deaths at {point}") == number:
            journal.note("deaths", [point, os.getpid()])
            if point == STARTING:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    in_main, in_child = partial(die, in_child=False), partial(die, in_child=True)
    points: Mapping[str, Sequence[tuple[Callable[..., None], Any, str, Callable[..., object]]]] = {
        PARKING: [(_before, RedisStore, "park", lambda *_: in_main())],
        PARKED: [(_after, RedisStore, "park", lambda *_: in_main())],
        RELEASING: [
            (_before, RedisStore, verb, lambda *_: in_child()) for verb in ("release", "release_and_store")
        ],
        RELEASED: [(_before, RedisStore, "_ended", lambda _, answer: answer.released and in_child())],
        PUBLISHED: [(_before, RedisStore, "settle", lambda *_: in_child())],
        POPPED: [(_before, WorkerName, "write", lambda *args: waited(args[2]) and in_main())],
        IN_HAND: [(_after, WorkerName, "write", lambda *args: waited(args[2]) and in_main())],
        STARTING: [(_before, unique, "start", lambda run: run.parked_as and in_child())],
        SWEPT: [(_before, promote, "publish_promoted", lambda *_: in_main())],
    }
    for how, owner, name, act in points[point]:
        how(owner, name, act)


def waited(message: Any) -> bool:
    """Whether a message has waited in line."""
    return '"l":' in str(message.headers.get(HEADER))


def _before(owner: Any, name: str, act: Callable[..., object]) -> None:
    function = getattr(owner, name)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        act(*args)
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, act: Callable[..., object]) -> None:
    function = getattr(owner, name)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        act(*args)
        return answer

    setattr(owner, name, wrapped)

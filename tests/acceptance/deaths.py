"""Where a worker's process may die inside the package: at a point, and in a process, that a plan names.

A worker installs this when it imports its project. The package knows of no such point.
"""

import os
import signal
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from tests.acceptance.journal import Journal, is_pool_child

#: A message is about to be parked; it is parked (and acknowledged, where that is one step).
PARKING, PARKED = "parking", "parked"
#: A run's lock is about to be released; it is released, and has promoted the next one; that is published.
RELEASING, RELEASED, PUBLISHED = "releasing", "released", "published"
#: A look at lines has promoted the next one.
SWEPT = "swept"


def install(journal: Journal, plan: Mapping[str, Any]) -> None:
    """Let a process of this worker die, once in the life of the project, and shorten the package's terms.

    Args:
        journal: counts how often the point was reached, and notes under ``deaths`` where which process died.
        plan: ``dies`` (``at`` a point, ``number``: when it is reached that often) and ``terms``
            (``HAND_OFF``, ``PUBLISHING``: seconds).
    """
    from celery_redislock.publishing import promote
    from celery_redislock.receiving import parking
    from celery_redislock.store.redisstore import RedisStore

    for name, seconds in plan.get("terms", {}).items():
        setattr(parking, name, seconds)
        setattr(promote, name, seconds)
    if (dies := plan.get("dies")) is None:
        return
    point, number = dies["at"], dies.get("number", 1)

    def die(in_child: bool) -> None:
        if is_pool_child() is in_child and journal.count(f"deaths at {point}") == number:
            journal.note("deaths", [point, os.getpid()])
            os.kill(os.getpid(), signal.SIGKILL)

    match point:
        case "parking":
            _before(RedisStore, "park", lambda *_: die(in_child=False))
        case "parked":
            _after(RedisStore, "park", lambda: die(in_child=False))
        case "releasing":
            for verb in ("release", "release_and_store"):
                _before(RedisStore, verb, lambda *_: die(in_child=True))
        case "released":
            _before(RedisStore, "_ended", lambda _, answer: answer.released and die(in_child=True))
        case "published":
            _before(RedisStore, "settle", lambda *_: die(in_child=True))
        case "swept":
            _before(promote, "publish_promoted", lambda *_: die(in_child=False))
        case _:
            raise ValueError(f"{point!r} is no point")


def _before(owner: Any, name: str, act: Callable[..., object]) -> None:
    function = getattr(owner, name)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        act(*args)
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, act: Callable[[], object]) -> None:
    function = getattr(owner, name)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        act()
        return answer

    setattr(owner, name, wrapped)

"""Stories that tests let a loop play, always within a time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

from celery_redislock.locks import aio
from tests.stores import RedisCase

T = TypeVar("T")

#: Seconds a story takes at most.
LONGEST = 60.0


def play(
    case: RedisCase, story: Callable[[aio.Store], Awaitable[T]], server: Any = None, **options: Any
) -> T:
    """Let a loop of its own play a story with a store of its own; return what the story returns."""

    async def run() -> T:
        given = {"prefix": case.prefix, "socket_timeout": case.redis.connections.socket_timeout, **options}
        async with aio.connect(server or case.url, **given) as store:
            return await asyncio.wait_for(story(store), LONGEST)

    return asyncio.run(run())


def by_a_task(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let a loop of its own play a test whose ``store`` is one on the server of its ``case``."""
    parameters = inspect.signature(test).parameters

    @wraps(test)
    def played(**fixtures: Any) -> None:
        play(fixtures["case"], lambda store: test(store=store, **fixtures))

    asked = [each for name, each in parameters.items() if name != "store"]
    played.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
    return played


async def until(fact: Callable[[], bool], timeout: float = 10.0) -> bool:
    """As ``wait_until``, and let the loop run meanwhile."""
    deadline = time.monotonic() + timeout
    while not fact():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True

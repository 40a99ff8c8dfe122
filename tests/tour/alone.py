"""Locks without Celery.

`from celery_redislock.locks import Lock, connect`.
"""

import asyncio
from typing import Any

from celery_redislock.locks import Lock, connect
from tests.tour.guide import Guide
from tests.tour.stop import stop

__all__: list[str] = []


@stop("A lock is busy")
def busy(guide: Guide) -> None:
    """`with lock:` waited for its `timeout`.

    `acquire(timeout=...)` returns `False` instead; `acquire()` waits for ever.
    """
    store = guide.store()
    with Lock(store, "nightly", owner="somebody-else"):
        in_time = Lock(store, "nightly", timeout=0)
        with in_time:
            pass


@stop("A lock is not held")
def not_held(guide: Guide) -> None:
    """Each thread holds for itself."""
    guide.lock("nightly").release()


@stop("A lock was lost inside its block")
def lost_inside(guide: Guide) -> None:
    """Raised by the end of the block, if nothing else was: until then it believed to be alone."""
    lock = guide.lock("nightly", auto_renew=False)
    with lock:
        lock._store.force_release("nightly")


@stop("A lock that cannot be")
def impossible(guide: Guide) -> None:
    """The name is the resource's; times are numbers of seconds."""
    wrong: list[dict[str, Any]] = [
        {"name": ""},
        {"name": 5},
        {"name": "nightly", "ttl": -1.0},
        {"name": "nightly", "ttl": float("inf"), "timeout": True},
    ]
    for terms in wrong:
        try:
            Lock(guide.store(), **terms)
        except ValueError as error:
            guide.say(error)


@stop("A lock shared by coroutines")
def coroutines(guide: Guide) -> None:
    """The second of a thread is refused; without that, both would go on at once."""
    lock = guide.lock("nightly")

    async def work() -> None:
        with lock:
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(work(), work())

    asyncio.run(both())


@stop("A timeout that bounds nothing")
def no_timeout(guide: Guide) -> None:
    """Every request is answered, or given up, within twice `socket_timeout`."""
    connect(guide.url, socket_timeout=0)


@stop("A URL that cannot be read")
def unreadable_url(guide: Guide) -> None:
    """User and password are never shown."""
    for url in (
        "redis://bob:secret@h/zero",
        "http://bob:secret@h",
        "redis://h/0?sockt_timeout=1",
        "redis://h/0?credential_provider=mine",
    ):
        try:
            connect(url)
        except ValueError as error:
            guide.say(error)

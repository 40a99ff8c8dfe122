"""Testing.

`celery_redislock.testing`.
"""

from typing import Any

from celery_redislock import LockUnavailable
from celery_redislock.testing import hold
from tests.tour.guide import Guide
from tests.tour.stop import stop

__all__: list[str] = []

#: Nobody listens there.
NOBODY = "redis://127.0.0.1:1/0"


def sync(account_id: int) -> int:
    """What every task here does."""
    return account_id


@stop("A lock that a test wants to hold is held")
def held_already(guide: Guide) -> None:
    """`hold` plays another holder, so nobody else may hold the lock."""
    task = guide.shop().unique(sync, lock_key="account:{account_id}")
    task.delay(7)
    with hold(task, 7):
        pass


@stop("No call of a unique task")
def no_call(guide: Guide) -> None:
    """`hold` takes what one would call `delay` on, and the arguments one would give that."""
    shop = guide.shop()
    task, free = shop.unique(sync), shop.unique(sync, name="shop.free", lock=None)
    calls: list[Any] = [("shop.sync", 7), (task,), (free, 7)]
    for call in calls:
        try:
            with hold(*call):
                pass
        except TypeError as error:
            guide.say(error)


@stop("A test meets no lock server")
def no_server(guide: Guide) -> None:
    """Kept in memory, locks need none: [testing.md](testing.md)."""
    in_place = {"task_always_eager": True, "redislock_eager": True}
    task = guide.configured(redislock_url=NOBODY, **in_place).unique(sync)
    try:
        task.delay(7)
    except LockUnavailable as error:
        guide.say(error)
    with hold(task, 7):
        pass

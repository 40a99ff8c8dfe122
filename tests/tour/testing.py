"""Testing.

`celery_redislock.testing`.
"""

from celery_redislock.testing import hold
from tests.tour.guide import Guide
from tests.tour.stop import stop

__all__: list[str] = []


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

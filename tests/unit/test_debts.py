"""What is owed to a lock server."""

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.debts import Debts, NotYet


@pytest.mark.parametrize(
    ("end", "left"),
    [(None, 0), (LockUnavailable("memory", "release", "it is away"), 1), (NotYet("it runs"), 1)],
    ids=["paid", "away", "not yet"],
)
def test_a_hold_is_owed_until_it_has_been_given_back(end: Exception | None, left: int) -> None:
    """Who counts while it is being paid must not think that nothing is owed."""
    debts = Debts(lambda: 0.0)
    counted: list[int] = []

    def release() -> None:
        counted.append(len(debts))
        if end is not None:
            raise end

    debts.add(release, within=10.0, what="a hold")
    debts.pay_one()

    assert counted == [1]
    assert len(debts) == left

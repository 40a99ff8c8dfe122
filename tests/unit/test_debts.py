"""What is owed to a lock server."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.debts import Debts, NotYet
from tests.clocks import ManualClock


def test_what_is_owed_is_given_back_behind_the_moment_it_was_owed() -> None:
    """Law 2: its request may be on its way still, and would take the hold after its release."""
    clock = ManualClock()
    since: list[float] = []
    releases: list[list[float]] = []

    @contextmanager
    def behind(moment: float) -> Iterator[None]:
        since.append(moment)
        yield
        since.pop()

    debts = Debts(clock, behind)
    clock.advance(5.0)
    owed = clock.now
    debts.add(lambda: releases.append([*since]), within=100.0, what="a hold", token="mine")  # noqa: S106  not a password
    clock.advance(5.0)

    release = debts.release_of("mine")
    assert release is not None
    release()
    debts.pay_one()

    assert releases == [[owed], [owed]]


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

"""What the tests of the lock room may use: stores by a clock that stands still."""

import pytest

from celery_redislock.locks import Lock
from tests.clocks import ManualClock
from tests.scripted import Driven, FailingStore, ScriptedRenewer, lock_on


@pytest.fixture
def store(clock: ManualClock) -> FailingStore:
    """Locks in memory, by that clock."""
    return FailingStore(clock=clock)


@pytest.fixture
def lock(store: FailingStore, clock: ManualClock) -> Lock:
    """A lock of that store."""
    return lock_on(store, clock)


@pytest.fixture
def renewer(clock: ManualClock) -> ScriptedRenewer:
    """A store that answers renewals as it is told, by that clock."""
    return ScriptedRenewer(clock)


@pytest.fixture
def watchdog(renewer: ScriptedRenewer) -> Driven:
    """A watchdog of that store, without a thread."""
    return Driven(renewer)

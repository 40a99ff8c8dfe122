"""The end of a run, interrupted by a signal's handler (a soft time limit) wherever Python lets one in."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from celery.app.trace import trace_task_ret
from celery.exceptions import Reject

from celery_redislock.locks import watchdog
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.request import LockRequest
from celery_redislock.support import Support
from tests.interrupts import Interrupt
from tests.tiers import slow
from tests.unit.shop import Shop

KEY = "account:7"


def returns(_task: Any) -> None:
    pass


def fails(_task: Any) -> None:
    raise ValueError


def retries(task: Any) -> None:
    task.retry(countdown=50)


def goes_back(_task: Any) -> None:
    raise Reject(requeue=True)


Ending = Callable[[Any], None]


@pytest.fixture(autouse=True)
def _short_lived_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point is tried in a shop of its own, whose watchdog need not stay."""
    monkeypatch.setattr(watchdog, "LINGER", 0.1)


def _interrupted(ending: Ending) -> Iterator[tuple[int, Shop]]:
    """One run for each point from the end of its body on, interrupted there."""
    for point in count(1):
        shop, interrupt = Shop(), Interrupt(point)

        def sync(self: Any, account_id: int, interrupt: Interrupt = interrupt) -> None:
            try:
                ending(self)
            finally:
                interrupt.arm()

        shop.unique(sync, bind=True, lock_key=KEY, acks_late=True).delay(7)
        request = shop.receive()
        try:
            _trace(shop, request)
        finally:
            interrupt.disarm()
        if not interrupt.has_struck:
            assert point > 20, "the end was hardly seen"
            return
        yield point, shop


@pytest.mark.parametrize("ending", [returns, slow(fails), slow(retries), slow(goes_back)])
def test_what_it_held_is_renewed_no_more(ending: Ending) -> None:
    """Law 4. The child lives on: what it went on renewing, nobody could release before it ends."""
    for point, shop in _interrupted(ending):
        watched = [watch.lease for watch in watchdog_of(shop.store)._schedule._watched.values()]
        assert not any(lease.held for lease in watched if not isinstance(lease, Support)), point


@pytest.mark.parametrize("ending", [returns, slow(fails), slow(retries)])
def test_what_it_held_is_given_back_or_owed_or_belongs_to_a_message(ending: Ending) -> None:
    for point, shop in _interrupted(ending):
        hold = shop.held().get(KEY)
        owed = watchdog_of(shop.store).owes
        is_claim = hold is not None and hold.about["state"] == "queued"
        assert hold is None or owed or (is_claim and shop.messages()), point


def _trace(shop: Shop, request: LockRequest) -> None:
    """Do what a pool child does."""
    args = (request.request_dict, request.body, request.content_type, request.content_encoding)
    trace_task_ret(request.type, request.id, *args, app=shop.app)

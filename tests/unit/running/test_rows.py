"""A row is all that a scope needs, and a row with one function on each side all that a strategy needs."""

from typing import Any

import pytest

from celery_redislock.declaring.scopes import SCOPES, STRATEGIES, Scope
from celery_redislock.publishing import duplicate as at_publish
from celery_redislock.running import duplicate as at_start
from tests.unit.shop import KEY, Shop


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_a_task_is_locked_when_its_scopes_row_says_so(shop: Shop, scope: Scope) -> None:
    """The table of scopes: held from publish or not, while the body runs or not, until the row's end."""
    while_running: list[Any] = []
    period = {"lock_period": 60} if scope.claim == "period" else {}
    task = shop.noting(
        while_running,
        lambda _task: [state for _, state in shop.states()],
        lock=scope.name,
        lock_key=KEY,
        **period,
    )
    task.delay()
    after_publish = list(shop.held())
    shop.run()
    after_run = list(shop.held())

    claimed = f"queued:{KEY}" if scope.claims_beside else KEY
    assert after_publish == ([claimed] if scope.claim else [])
    (states,) = while_running
    assert (states == ["running"]) is scope.lease
    assert bool(states) is (scope.lease or scope.claim == "period")
    assert after_run == ([KEY] if scope.claim == "period" else [])


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_a_scope_has_a_strategy_for_each_side_on_which_it_locks(scope: Scope) -> None:
    """A side without a strategy could not decide about a duplicate."""
    assert (scope.client in STRATEGIES) is bool(scope.claim)
    assert scope.server in STRATEGIES


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_a_scope_holds_something(scope: Scope) -> None:
    """A claim that lasts until the end becomes a lease; a claim beside a lease ends at the start."""
    assert scope.claim or scope.lease
    assert scope.lease or scope.claim != "end"
    assert scope.claims_beside is (scope.lease and scope.claim == "start")


def test_a_strategy_has_a_function_at_publish_and_on_the_worker() -> None:
    """One that lacks a side would end a publish, or a run, with a KeyError."""
    assert set(at_publish.STRATEGIES) == set(STRATEGIES)
    assert set(at_start.STRATEGIES) == set(STRATEGIES)

"""``SingletonTask`` as its users meet it: calls, results, handles."""

import json
import logging
import pickle
from typing import Any

import pytest
from celery import Celery, _state, shared_task

from celery_redislock import DuplicateTask, SingletonTask
from celery_redislock.declaring import scopes
from celery_redislock.publishing import duplicate as at_publish
from celery_redislock.publishing.results import LockEagerResult, LockResult
from celery_redislock.running import duplicate as at_start
from celery_redislock.testing import hold
from tests.unit.shop import KEY, Shop, body

# --- ways to declare -------------------------------------------------------------------------


def test_a_class_based_task_is_unique_and_its_init_runs_once(shop: Shop) -> None:
    """An ``__init__`` may do real work, and checking options must not repeat it."""
    made = []

    class Sync(SingletonTask):
        name = "shop.class"

        def __init__(self) -> None:
            made.append(self)

        def run(self, account_id: int) -> int:
            return account_id

    task = shop.app.register_task(Sync())

    first = task.delay(7)

    assert task.delay(account_id=7).id == first.id
    assert not task.delay(8).is_duplicate
    assert shop.run(shop.receive(shop.messages()[0])) == 7
    assert len(made) == 1


def test_a_shared_task_is_unique(shop: Shop, monkeypatch: Any) -> None:
    """``@shared_task(base=SingletonTask)`` works like ``@app.task``."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())  # or every later test's app would have it
    declared = shared_task(base=SingletonTask, name=f"shop.shared.{shop.queue}")(body)
    task = shop.app.tasks[declared.name]
    assert [task.delay(7).is_duplicate, task.delay(7).is_duplicate] == [False, True]


def test_a_duplicate_is_an_expected_error(shop: Shop) -> None:
    """Celery logs an error in ``throws`` in one INFO line, without a traceback."""
    assert shop.unique(body).throws == (DuplicateTask,)
    for throws in (KeyError, (KeyError,)):
        assert shop.unique(body, name=f"shop.{throws}", throws=throws).throws == (KeyError, DuplicateTask)


def test_a_task_pickles_by_its_name_and_a_missing_attribute_is_an_error() -> None:
    """As of Celery's own: what the class lends of Celery's Django base hides no mistake."""
    app = Celery("shop", broker="memory://")
    task = app.task(name="shop.pickled", base=SingletonTask, shared=False, lazy=False)(body)
    assert pickle.loads(pickle.dumps(task)) is task  # noqa: S301  our own bytes
    with pytest.raises(AttributeError, match="object has no attribute 'nonsense'"):
        _ = task.nonsense


def test_every_strategy_can_be_carried_out_on_each_side_it_is_offered_for() -> None:
    """A name that ``on_conflict`` accepts never fails at the first duplicate."""
    for name, row in scopes.STRATEGIES.items():
        assert name in at_publish.STRATEGIES or "client" not in row.sides
        assert name in at_start.STRATEGIES or "server" not in row.sides


# --- results ---------------------------------------------------------------------------------


def test_every_result_knows_whether_it_is_a_duplicate(shop: Shop) -> None:
    """However the task is published, and where nothing is locked as well."""
    task = shop.unique(body)
    results = [task.delay(7), task.apply_async((7,)), task.apply_async((7,), lock=None)]
    results += [task.s(8).apply_async(), task.AsyncResult("x"), task.apply((7,))]
    assert [result.is_duplicate for result in results] == [False, True, False, False, False, False]
    assert [type(result) for result in results] == [LockResult] * 5 + [LockEagerResult]


@pytest.mark.parametrize("is_duplicate", [True, False])
@pytest.mark.parametrize("call", [lambda task: task.delay(7), lambda task: task.apply((7,))])
def test_a_result_shows_and_pickles_what_it_knows(shop: Shop, call: Any, *, is_duplicate: bool) -> None:
    """``is_duplicate`` survives a pickle, and is seen in a shell; as a string it is Celery's, the id."""
    result = call(shop.unique(body))
    result.is_duplicate = is_duplicate
    again = pickle.loads(pickle.dumps(result))  # noqa: S301  our own bytes
    assert (again.id, again.is_duplicate, type(again)) == (result.id, is_duplicate, type(result))
    shown = f"<{type(result).__name__}: {result.id}{' (duplicate)' if is_duplicate else ''}>"
    assert (repr(again), str(again)) == (shown, result.id)


# --- the handle ------------------------------------------------------------------------------


def test_a_handle_names_the_holder_with_all_its_facts(shop: Shop) -> None:
    """``lock_for(...).holder()``: owner, state, task, host, process, age, time left, token."""
    task = shop.unique(body, lock_key="account:{account_id}")
    handle = task.lock_for(account_id=7)
    assert handle.holder() is None
    result = task.delay(7)
    holder = handle.holder()
    assert (handle.key, repr(handle)) == ("account:7", "<LockHandle 'account:7' of shop.sync>")
    assert (holder.owner, holder.state, holder.task) == (result.id, "queued", "shop.sync")
    assert holder.remaining == pytest.approx(3600, abs=1)
    assert holder.token.startswith(f"{result.id}/")
    assert [type(fact) for fact in (holder.host, holder.pid, holder.since)] == [str, int, float]


@pytest.mark.parametrize("state", ["foreign", "running", "queued", "period"])
def test_a_handle_says_what_kind_of_holder_it_is(shop: Shop, state: str) -> None:
    """Another program's lock, a run, a claim, or a period: its run is over, and it refuses the next one."""
    task = shop.unique(body, lock_key=KEY)
    facts = "{}" if state == "foreign" else json.dumps({"state": "running" if state == "period" else state})
    shop.store.acquire(KEY, "somebody", 30, facts=facts, period=30 if state == "period" else None)
    if state == "period":
        shop.store.release(KEY, "somebody")
    holder = task.lock_for(7).holder()
    assert (holder.state, holder.remaining) == (state, pytest.approx(30, abs=1))


def test_a_forced_release_names_its_reason_and_ends_the_period_too(shop: Shop, caplog: Any) -> None:
    """Law 3: an operator's act is explicit and audited."""
    task = shop.unique(body, lock_key="account:7", lock_period=50)
    result = task.delay(7)
    victim = task.lock_for(7).release(reason="purged")
    assert victim.owner == result.id
    assert task.lock_for(7).holder() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == f"released 'account:7' by force from {result.id!r} (queued): 'purged'"
    assert task.lock_for(7).release(reason="again") is None


@pytest.mark.parametrize(
    ("running", "only", "taken"),
    [(True, None, True), (True, "queued", False), (False, "queued", True), (False, None, True)],
)
def test_only_queued_never_takes_a_runs_lock(shop: Shop, only: Any, *, running: bool, taken: bool) -> None:
    """Without ``only`` a forced release takes the lock from a run, too; misspelt it takes nothing (law 3)."""
    task = shop.unique(body, lock_key="account:7")
    with hold(task, 7, task_id="first", running=running):
        for wrong in ("queud", "running", "", True):
            with pytest.raises(ValueError, match=f"only is {wrong!r}; give 'queued'"):
                task.lock_for(7).release(reason="x", only=wrong)
        assert shop.held()
        victim = task.lock_for(7).release(reason="x", only=only)
        assert (victim is not None, shop.held() == {}) == (taken, taken)


def test_a_holder_that_came_in_between_keeps_the_lock(shop: Shop, monkeypatch: Any) -> None:
    """Law 3: a forced release takes the lock from the holder that was seen, and from no other."""
    task = shop.unique(body, lock_key="account:7")
    task.delay(7)
    looked = shop.store.holders

    def overtaken(name: str) -> Any:
        seen = looked(name)
        monkeypatch.setattr(shop.store, "holders", looked)
        shop.store.force_release(name)
        shop.store.acquire(name, "newcomer/x", 30, facts='{"state": "running"}')
        return seen

    monkeypatch.setattr(shop.store, "holders", overtaken)

    assert task.lock_for(7).release(reason="x") is None
    assert shop.held()["account:7"].owner == "newcomer"

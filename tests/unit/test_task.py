"""``SingletonTask`` as its users meet it: calls, results, handles."""

import logging
import pickle
from typing import Any

import pytest
from celery import Celery, shared_task
from celery.result import AsyncResult

from celery_redislock import DuplicateTask, SingletonTask
from celery_redislock.conflict import choose, jittered, put_off_delay
from celery_redislock.publishing.results import LockEagerResult, LockResult
from celery_redislock.testing import hold, locks_off, memory_locks
from tests.unit.shop import Shop


def body(account_id: int = 7, amount: int = 0) -> int:
    return account_id + amount


# --- ways to declare -------------------------------------------------------------------------


def test_a_class_based_task_is_unique(shop: Shop) -> None:
    class Sync(SingletonTask):
        name = "shop.class"

        def run(self, account_id: int) -> int:
            return account_id

    task = shop.app.register_task(Sync())

    first = task.delay(7)

    assert task.delay(account_id=7).id == first.id
    assert not task.delay(8).is_duplicate
    assert shop.run(shop.receive(shop.messages()[0])) == 7


def test_a_shared_task_is_unique(shop: Shop) -> None:
    declared = shared_task(base=SingletonTask, name=f"shop.shared.{shop.queue}")(body)
    task = shop.app.tasks[declared.name]

    assert not task.delay(7).is_duplicate
    assert task.delay(7).is_duplicate


def test_a_task_classs_init_runs_once(shop: Shop) -> None:
    """It may do real work, and checking options must not repeat it."""
    made = []

    class Sync(SingletonTask):
        name = "shop.class"

        def __init__(self) -> None:
            made.append(self)

        def run(self) -> None: ...

    shop.app.register_task(Sync())

    assert len(made) == 1


def test_duplicates_are_expected_and_logged_without_a_traceback(shop: Shop) -> None:
    """``throws``: one INFO line."""
    mine = shop.unique(body, throws=(KeyError,))
    single = shop.unique(body, name="shop.single", throws=KeyError)
    plain = shop.unique(body, name="shop.plain")

    assert mine.throws == (KeyError, DuplicateTask)
    assert single.throws == (KeyError, DuplicateTask)
    assert plain.throws == (DuplicateTask,)


def test_a_missing_attribute_is_an_error_as_ever(shop: Shop) -> None:
    task = shop.unique(body)

    with pytest.raises(AttributeError, match="object has no attribute 'nonsense'"):
        _ = task.nonsense


def test_a_task_pickles_by_its_name() -> None:
    app = Celery("shop", broker="memory://")
    task = app.task(name="shop.pickled", base=SingletonTask, shared=False, lazy=False)(body)

    assert pickle.loads(pickle.dumps(task)) is task  # noqa: S301  our own bytes


# --- results ---------------------------------------------------------------------------------


def test_every_publish_returns_a_result_that_knows_whether_it_is_a_duplicate(shop: Shop) -> None:
    task = shop.unique(body)
    results = [
        task.delay(7),
        task.apply_async((7,)),
        task.apply_async((7,), lock=None),
        task.s(8).apply_async(),
        task.AsyncResult("x"),
        task.apply((7,)),
    ]

    assert [result.is_duplicate for result in results] == [False, True, False, False, False, False]
    assert [type(result) for result in results] == [LockResult] * 5 + [LockEagerResult]


def test_switched_off_the_result_is_no_duplicate(shop: Shop) -> None:
    with locks_off():
        assert not shop.unique(body).delay(7).is_duplicate


@pytest.mark.parametrize("is_duplicate", [True, False])
def test_a_result_pickles_with_what_it_knows(shop: Shop, *, is_duplicate: bool) -> None:
    result = shop.unique(body).delay(7)
    result.is_duplicate = is_duplicate

    again = pickle.loads(pickle.dumps(result))  # noqa: S301  our own bytes

    assert (again.id, again.is_duplicate, type(again)) == (result.id, is_duplicate, LockResult)


def test_a_result_is_celerys_in_every_other_way(shop: Shop) -> None:
    task = shop.unique(body)
    result = task.delay(7)

    shop.run()

    assert isinstance(result, AsyncResult)
    assert (result.app, result.backend) == (shop.app, task.backend)
    assert (result.get(timeout=1), result.state) == (7, "SUCCESS")
    assert result == AsyncResult(result.id, app=shop.app)
    assert result.as_tuple() == ((result.id, None), None)


# --- the handle ------------------------------------------------------------------------------


def test_a_handle_tells_the_holder(shop: Shop) -> None:
    task = shop.unique(body, lock_key="account:{account_id}")
    handle = task.lock_for(account_id=7)
    assert handle.holder() is None
    result = task.delay(7)

    holder = handle.holder()

    assert handle.key == "account:7"
    assert repr(handle) == "<LockHandle 'account:7' of shop.sync>"
    assert (holder.owner, holder.state, holder.task) == (result.id, "queued", "shop.sync")
    assert holder.remaining == pytest.approx(3600, abs=1)
    assert holder.token.startswith(f"{result.id}/")
    assert isinstance(holder.host, str)
    assert isinstance(holder.pid, int)
    assert isinstance(holder.since, float)


@pytest.mark.parametrize(
    ("about", "state"), [({}, "foreign"), ({"state": "running"}, "running"), ({"state": "queued"}, "queued")]
)
def test_a_handle_tells_what_kind_of_holder_it_is(shop: Shop, about: dict[str, str], state: str) -> None:
    task = shop.unique(body, lock_key="account:7")
    shop.store.acquire("account:7", "somebody", 30, about=about)

    assert task.lock_for(7).holder().state == state


def test_a_handle_tells_a_window(shop: Shop) -> None:
    task = shop.unique(body, lock_key="account:7", lock_period=50)
    task.delay(7)
    shop.run()

    holder = task.lock_for(7).holder()

    assert (holder.state, holder.remaining) == ("window", pytest.approx(50, abs=1))


def test_a_forced_release_names_its_reason_and_frees_window_and_hold(shop: Shop, caplog: Any) -> None:
    """An operator's act: explicit and audited (law 3)."""
    task = shop.unique(body, lock_key="account:7", lock_period=50)
    result = task.delay(7)

    victim = task.lock_for(7).release(reason="purged")

    assert victim.owner == result.id
    assert task.lock_for(7).holder() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == f"released 'account:7' by force from {result.id} (queued): purged"
    assert task.lock_for(7).release(reason="again") is None


def test_a_runs_lock_can_be_taken_away_too(shop: Shop) -> None:
    task = shop.unique(body, lock_key="account:7")

    with hold(task, 7, task_id="first", running=True):
        assert task.lock_for(7).release(reason="x").owner == "first"
        assert shop.held() == {}


def test_only_queued_never_takes_a_runs_lock(shop: Shop) -> None:
    task = shop.unique(body, lock_key="account:7")

    with hold(task, 7, running=True):
        assert task.lock_for(7).release(reason="x", only="queued") is None
        assert shop.held()
    with hold(task, 7, task_id="first", running=False):
        assert task.lock_for(7).release(reason="x", only="queued").owner == "first"
    assert shop.held() == {}


@pytest.mark.parametrize("only", ["queud", "running", "", True])
def test_what_is_not_known_takes_nothing_from_anybody(shop: Shop, only: Any) -> None:
    """Law 3: this parameter is what stands between a run and an operator's slip."""
    task = shop.unique(body, lock_key="account:7")

    with hold(task, 7):
        with pytest.raises(ValueError, match=f"only is {only!r}; give 'queued'"):
            task.lock_for(7).release(reason="x", only=only)
        assert shop.held()


def test_a_holder_that_came_in_between_keeps_the_lock(shop: Shop, monkeypatch: Any) -> None:
    task = shop.unique(body, lock_key="account:7")
    task.delay(7)
    looked = shop.store.inspect

    def overtaken(name: str) -> Any:
        seen = looked(name)
        monkeypatch.setattr(shop.store, "inspect", looked)
        shop.store.force_release(name)
        shop.store.acquire(name, "newcomer/x", 30, about={"state": "running"})
        return seen

    monkeypatch.setattr(shop.store, "inspect", overtaken)

    assert task.lock_for(7).release(reason="x") is None
    assert shop.held()["account:7"].owner == "newcomer"


# --- strategies' small parts -----------------------------------------------------------------


def test_delays_are_spread_by_a_fifth() -> None:
    """Many duplicates must not come back at once."""
    delays = [jittered(10.0) for _ in range(500)]

    assert min(delays) >= 8.0
    assert max(delays) <= 12.0
    assert max(delays) - min(delays) > 2.0


def test_a_put_off_delay_is_bounded_however_often() -> None:
    assert put_off_delay(0, longest=5) <= 0.6
    assert put_off_delay(10**6, longest=5) <= 6.0


def test_strategies_are_named_once() -> None:
    from celery_redislock.conflict import _NAMES
    from celery_redislock.declaring.scopes import STRATEGIES

    assert set(STRATEGIES) == _NAMES
    assert callable(choose)


# --- for users' tests ------------------------------------------------------------------------


def test_memory_locks_need_no_server_and_leave_nothing(monkeypatch: Any) -> None:
    app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://")
    task = app.task(name="shop.sync", base=SingletonTask, shared=False, lazy=False)(body)

    with memory_locks(app) as outer:
        assert not task.delay(7).is_duplicate
        with memory_locks(app) as inner:
            assert not task.delay(7).is_duplicate
            assert task.delay(7).is_duplicate
            assert len(inner.names()) == 1
        assert task.delay(7).is_duplicate
        assert len(outer.names()) == 1

    with pytest.raises(ValueError, match="neither the broker"):
        task.delay(7)


@pytest.mark.parametrize("before", [None, "1", "0"])
def test_locks_off_puts_the_switch_back(monkeypatch: Any, before: str | None) -> None:
    import os

    if before is None:
        monkeypatch.delenv("REDISLOCK_ENABLED", raising=False)
    else:
        monkeypatch.setenv("REDISLOCK_ENABLED", before)

    with locks_off():
        assert os.environ["REDISLOCK_ENABLED"] == "0"

    assert os.environ.get("REDISLOCK_ENABLED") == before


def test_hold_refuses_what_is_held(shop: Shop) -> None:
    task = shop.unique(body)

    with hold(task, 7) as key, pytest.raises(AssertionError, match="is held already"), hold(task, 7):
        pass

    assert key
    assert shop.held() == {}

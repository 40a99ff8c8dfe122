"""What bad input gets: a typed error that says what happened, with which values, and what to do."""

import json
import pickle
import re
from typing import Any

import pytest
from celery import Celery

from celery_redislock import (
    DuplicateTask,
    LockBusy,
    LockKeyError,
    LockLost,
    LockOptionError,
    LockUnavailable,
    RedisLockError,
    SingletonTask,
)
from celery_redislock.conflict import log_skip
from celery_redislock.connection import use_store
from celery_redislock.guard import Guard
from celery_redislock.locks.values import Hold
from celery_redislock.work import Work
from tests.unit.shop import Shop

ERRORS = [
    DuplicateTask("account:7", "t1", 12.5),
    LockBusy("account:7", "host:1:2", 12.5),
    LockLost("account:7", "taken away", 17),
    LockLost("account:7", "taken away"),
    LockUnavailable("redis://h:6379/0", "acquire", "Connection refused"),
    LockOptionError("shop.sync", ["lock_ttl is -1; give seconds", "lock_tll is no option"]),
    LockKeyError("shop.sync", "argument 'x' (set) cannot be part of a key"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
class TestEachError:
    def test_it_pickles_with_its_facts(self, error: RedisLockError) -> None:
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes

        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))

    def test_it_travels_through_celerys_json_results(self, error: RedisLockError) -> None:
        backend = Shop().app.backend

        stored = json.loads(json.dumps(backend.prepare_exception(error, "json")))
        again = backend.exception_to_python(stored)

        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))

    def test_it_is_one_of_ours_and_says_its_facts(self, error: RedisLockError) -> None:
        assert isinstance(error, RedisLockError)
        for fact in vars(error).values():
            for part in fact if isinstance(fact, list) else [fact]:
                assert part is None or str(part) in str(error) or part == error.args[-1]


def test_a_wrong_value_is_also_a_value_error() -> None:
    """Code that catches what libraries usually raise goes on working."""
    assert issubclass(LockOptionError, ValueError)
    assert issubclass(LockKeyError, ValueError)


# --- the tour --------------------------------------------------------------------------------


def body(account_id: int = 7, amount: int = 0) -> int:
    return account_id + amount


def bad_task(shop: Shop, **options: Any) -> RedisLockError:
    with pytest.raises(RedisLockError) as raised:
        shop.unique(body, **options)
    return raised.value


def bad_call(shop: Shop, task: Any, *args: Any, **options: Any) -> Exception:
    with pytest.raises(RedisLockError) as raised:
        task.apply_async(args, **options)
    assert shop.messages() == []
    assert shop.held() == {}
    return raised.value


def test_an_unknown_option(shop: Shop) -> None:
    assert str(bad_task(shop, lock_tll=5)) == "shop.sync: lock_tll is no option; did you mean lock_ttl?"
    error = bad_call(shop, shop.unique(body, name="shop.second"), 7, lock_tll=5)
    assert str(error) == "shop.second.apply_async: lock_tll is no option; did you mean lock_ttl?"


def test_contradictory_options(shop: Shop) -> None:
    error = bad_task(shop, lock="while_executing", on_conflict={"client": "skip"})

    assert isinstance(error, LockOptionError)
    assert str(error) == (
        "shop.sync: on_conflict names the client side, which lock='while_executing' does not have: "
        "it takes no lock at publish; leave it out"
    )


def test_a_template_with_a_parameter_the_task_does_not_have(shop: Shop) -> None:
    said = (
        "lock_key names the parameter 'acount_id', which the task does not have; did you mean 'account_id'?"
    )

    assert str(bad_task(shop, lock_key="account:{acount_id}")) == f"shop.sync: {said}"
    error = bad_call(shop, shop.unique(body, name="shop.second"), 7, lock_key="account:{acount_id}")
    assert str(error) == f"shop.second.apply_async: {said}"


def test_a_parameters_name_as_a_text(shop: Shop) -> None:
    """One lock for all accounts, by a pair of missing braces."""
    error = bad_task(shop, lock_key="account_id")

    assert "did you mean ('account_id',) or 'account_id:{account_id}'?" in str(error)


def test_an_argument_that_cannot_be_serialised(shop: Shop) -> None:
    error = bad_call(shop, shop.unique(body), 7, {1, 2})

    assert isinstance(error, LockKeyError)
    assert str(error).startswith("shop.sync: argument 'amount' (set) cannot be part of a key: ")
    assert "name the arguments that matter with lock_key=" in str(error)


def test_an_argument_that_names_nothing(shop: Shop) -> None:
    error = bad_call(shop, shop.unique(body, lock_key="account:{account_id}"), None)

    assert isinstance(error, LockKeyError)
    assert "account_id" in str(error)
    assert "None" in str(error)


@pytest.fixture
def nothing_owed(monkeypatch: Any) -> None:
    """What could not be given back is not tried again behind the next tests' backs."""
    monkeypatch.setattr(Guard, "give_back_later", lambda *_, **__: None)


def test_a_server_that_refuses_connections(nothing_owed: None) -> None:
    """At once, not after a timeout; the publish has published nothing."""
    shop = Shop(redislock_url="redis://bob:hunter2@127.0.0.1:1/3")
    use_store(shop.app, None)
    task = shop.unique(body)

    with pytest.raises(LockUnavailable) as raised:
        task.delay(7)

    assert raised.value.server == "redis://127.0.0.1:1/3"
    assert raised.value.operation == "acquire"
    assert "refused" in raised.value.reason.lower()
    assert "redislock_on_lock_error" in str(raised.value)
    assert re.search(r"shop\.sync\[[0-9a-f-]{36}\] was not published", str(raised.value))
    assert "hunter2" not in str(raised.value)
    assert shop.messages() == []


def test_a_server_that_refuses_connections_and_a_task_that_runs_all_the_same(nothing_owed: None) -> None:
    shop = Shop(redislock_url="redis://127.0.0.1:1/3", redislock_on_lock_error="run")
    use_store(shop.app, None)

    assert not shop.unique(body).delay(7).is_duplicate
    assert len(shop.messages()) == 1


def test_a_url_with_an_unknown_scheme() -> None:
    app = Celery("shop", set_as_current=False, broker="memory://")
    app.conf.redislock_url = "rdis://:hunter2@h/0"
    task = app.task(name="shop.sync", base=SingletonTask, shared=False, lazy=False)(body)

    with pytest.raises(LockOptionError) as raised:
        task.delay(7)

    assert str(raised.value) == (
        "redislock_url: 'rdis://***@h/0' has the unknown scheme 'rdis'; use one of redis://, "
        "redis+socket://, rediss://, sentinel://, unix://, valkey://, valkeys://"
    )
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "wait",
        "replace",
        "cancel",
        "coalesce",
    ],
)
def test_a_strategy_that_does_not_exist_yet(shop: Shop, wrong: str) -> None:
    error = bad_task(shop, on_conflict=wrong)

    assert f"on_conflict is {wrong!r}, which is not yet supported; meanwhile " in str(error)


def test_an_unreadable_switch(shop: Shop, monkeypatch: Any) -> None:
    task = shop.unique(body)
    monkeypatch.setenv("REDISLOCK_ENABLED", "perhaps")

    error = bad_call(shop, task, 7)

    assert "REDISLOCK_ENABLED is 'perhaps' in the environment; give one of 0, false" in str(error)


@pytest.mark.parametrize("error", [DuplicateTask, LockBusy], ids=lambda error: error.__name__)
def test_a_hold_without_an_end_is_said_to_have_none(error: Any) -> None:
    """Another program's lock may never expire; "inf s unless renewed" says little."""
    assert "with no end" in str(error("key", "somebody", float("inf")))
    assert "for another 4.2 s unless renewed" in str(error("key", "somebody", 4.2))


@pytest.mark.parametrize(
    ("about", "is_window", "expires_in", "said"),
    [
        ({"state": "running", "since": 0.0}, False, 3.0, "running, for "),
        ({"state": "running", "since": 0.0}, False, 3.0, "; expires in 3.0 s unless renewed)"),
        ({"since": 0.0}, True, 3.0, "; expires in 3.0 s)"),
        ({"state": "window"}, False, 3.0, "(its window has not passed; expires in 3.0 s)"),
        ({}, False, float("inf"), "(a foreign lock; expires never)"),
    ],
)
def test_the_line_of_a_skipped_task_tells_what_is_known_of_the_holder(
    caplog: Any, about: dict[str, Any], is_window: bool, expires_in: float, said: str
) -> None:
    """A window is never renewed, and another program does not say since when it holds."""
    hold = Hold("key", "somebody", about, expires_in, is_window)

    with caplog.at_level("INFO", logger="celery_redislock"):
        log_skip(Work("key", "shop.sync", "t1", ""), hold, side="client")

    assert said in caplog.text

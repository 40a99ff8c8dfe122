"""What bad input gets: a typed error that says what happened, with which values, and what to do."""

import json
import math
import pickle
from typing import Any

import pytest

from celery_redislock import (
    DuplicateTask,
    LockBusy,
    LockKeyError,
    LockLost,
    LockOptionError,
    LockUnavailable,
    RedisLockError,
)
from celery_redislock.conflict import log_skip
from celery_redislock.connection import use_store
from celery_redislock.guard import Guard
from celery_redislock.locks.values import Hold
from celery_redislock.work import Work
from tests.unit.shop import Shop

ERRORS = [
    DuplicateTask("account:7", "t1", 12.5),
    DuplicateTask("account:7", "t1", 12.5, True),
    DuplicateTask("account:7", "t1", math.inf),
    LockBusy("account:7", "host:1:2", 12.5),
    LockBusy("account:7", "host:1:2", math.inf),
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
                said = "no end" if part == math.inf else str(part)
                assert part is None or said in str(error) or part == error.args[-1]


def test_a_wrong_value_is_also_a_value_error() -> None:
    """Code that catches what libraries usually raise goes on working."""
    assert issubclass(LockOptionError, ValueError)
    assert issubclass(LockKeyError, ValueError)


# --- facts ------------------------------------------------------------------------------------


def body(account_id: int = 7) -> int:
    return account_id


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
    assert shop.messages() == []


def test_a_server_that_refuses_connections_and_a_task_that_runs_all_the_same(nothing_owed: None) -> None:
    shop = Shop(redislock_url="redis://127.0.0.1:1/3", redislock_on_lock_error="run")
    use_store(shop.app, None)

    assert not shop.unique(body).delay(7).is_duplicate
    assert len(shop.messages()) == 1


def test_a_switch_that_became_unreadable_keeps_a_task_back(shop: Shop, monkeypatch: Any) -> None:
    task = shop.unique(body)
    monkeypatch.setenv("REDISLOCK_ENABLED", "perhaps")

    with pytest.raises(LockOptionError, match="REDISLOCK_ENABLED is 'perhaps' in the environment"):
        task.delay(7)

    assert (shop.messages(), shop.held()) == ([], {})


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

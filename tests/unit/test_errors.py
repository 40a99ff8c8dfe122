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
from celery_redislock.exceptions import LockNotHeld
from tests.unit.shop import Shop, body

ERRORS = [
    DuplicateTask("account:7", "t1", 12.5),
    DuplicateTask("account:7", "t1", 12.5, True),
    DuplicateTask("account:7", "t1", math.inf),
    DuplicateTask("account:7", "t1", 12.5, True, "FAILURE", 0.0),
    DuplicateTask("idem:7", "t1", 12.5, True, has_other_arguments=True),
    DuplicateTask("api:7", "t1", 12.5, is_rate=True),
    LockBusy("account:7", "host:1:2", 12.5),
    LockBusy("account:7", "host:1:2", math.inf),
    LockBusy("account:7", "t1", 12.5, 60.5),
    LockLost("account:7", "taken away", 17),
    LockLost("account:7", "taken away"),
    LockNotHeld("account:7", "task"),
    LockUnavailable("redis://h:6379/0", "acquire", "Connection refused"),
    LockOptionError("shop.sync", ["lock_ttl is -1; give seconds", "lock_tll is no option"]),
    LockKeyError("shop.sync", "argument 'x' (set) cannot be part of a key"),
]


@pytest.mark.parametrize("way", ["pickle", "json"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_travels_with_its_facts(error: RedisLockError, way: str) -> None:
    """Through a pickle, and through Celery's result backends, which rebuild it from its ``args``."""
    if way == "pickle":
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    else:
        backend = Shop().app.backend
        again = backend.exception_to_python(json.loads(json.dumps(backend.prepare_exception(error, "json"))))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    assert (*vars(again).values(),) == again.args
    assert getattr(again, "retry_after", None) == getattr(error, "retry_after", None)


@pytest.mark.parametrize(("lock", "seconds"), [("until_expired", 120), ("until_executed", None)])
def test_a_duplicate_knows_when_to_come_again(shop: Shop, lock: str, seconds: int | None) -> None:
    """A period has an end, in whole seconds as HTTP has them; nobody knows when a task ends."""
    task = shop.unique(body, lock=lock, lock_period=120.0, on_conflict="raise")
    task.delay(7)
    with pytest.raises(DuplicateTask) as raised:
        task.delay(7)
    assert raised.value.retry_after == seconds
    by_another_program = DuplicateTask("k", "t1", math.inf, is_period=True)
    assert by_another_program.retry_after is None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_errors_text_has_every_fact(error: RedisLockError) -> None:
    """What happened, with which values: nobody has to look into the attributes."""
    for name, fact in vars(error).items():
        if name in {"is_period", "is_rate", "has_other_arguments", "fence"}:
            continue  # said in words, or only there for a program
        if name in {"state", "ended_at", "waited"} and fact is None:
            continue
        for part in fact if isinstance(fact, list) else [fact]:
            said = "1970-01-01 00:00:00 UTC" if name == "ended_at" else str(part)
            assert ("no end" if part == math.inf else said) in str(error)


def test_an_error_can_be_made_with_one_text() -> None:
    """As a test does that mocks a lock: it says that text, and travels as the others do."""
    for kind in {type(error) for error in ERRORS}:
        error: Any = kind("Worker is stopping")  # type: ignore[call-arg]
        assert str(error) == str(pickle.loads(pickle.dumps(error))) == "Worker is stopping"  # noqa: S301


def test_an_errors_repr_is_its_text() -> None:
    """It is what Celery logs of a task that failed, and what Flower shows; who reads that knows no fields."""
    text = "duplicate of task t1, which holds 'account:7' (for another 24.4 s unless renewed); wait for"
    shown = repr(DuplicateTask("account:7", "t1", 24.355))
    assert shown.startswith(f'DuplicateTask("{text}')
    assert repr(LockBusy("Worker is stopping")) == "LockBusy('Worker is stopping')"


def test_an_error_of_somebodys_own_says_what_it_says() -> None:
    """A class of a project that inherits from ours, with another constructor, and no facts but a text."""

    class StockBusy(LockBusy):
        def __init__(self, shop: str, since: float) -> None:
            super().__init__(f"the stock of {shop} is being counted, for {since:g} s now")

    assert str(StockBusy("Bern", 3.0)) == "the stock of Bern is being counted, for 3 s now"


@pytest.mark.parametrize("known", [False, True])
def test_a_remark_changes_nothing_of_what_is_known_of_a_request(known: bool) -> None:
    """Who catches it decides by that whether something may have been taken."""
    error = LockUnavailable("redis://h:6379/0", "acquire", "Connection refused.")
    error.was_sent = error.was_refused = known
    remarked = error.with_remark("shop.sync was not published")
    assert (remarked.was_sent, remarked.was_refused) == (known, known)
    assert remarked.reason == "Connection refused (shop.sync was not published)"


# --- where they are raised ---------------------------------------------------------------------


def test_a_run_that_finds_a_key_of_another_kind_fails_visibly(shop: Shop) -> None:
    """Law 2: a message that nobody claimed is no duplicate of what is no lock; it is not dropped."""
    task = shop.unique(body)
    shop.app.send_task(task.name, task_id="t1")
    shop.store.has_wrong_type(task.name)
    assert isinstance(shop.run(), LockKeyError)
    assert shop.state("t1") == "FAILURE"


def test_a_switch_that_became_unreadable_keeps_a_task_back(shop: Shop, monkeypatch: Any) -> None:
    """Neither on nor off is a guess to make."""
    task = shop.unique(body)
    monkeypatch.setenv("REDISLOCK_ENABLED", "perhaps")
    with pytest.raises(LockOptionError, match="REDISLOCK_ENABLED is 'perhaps' in the environment"):
        task.delay(7)
    assert (shop.messages(), shop.held()) == ([], {})

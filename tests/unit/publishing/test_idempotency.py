"""A key given with the call, in ``until_expired``: it stands for one job, and so for one set of arguments."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from celery.exceptions import Ignore

from celery_redislock import DuplicateTask
from celery_redislock.publishing.message import Message
from tests.unit.shop import Shop, body, carried

#: The scope and the time of an idempotency key.
FOR_A_DAY: dict[str, Any] = {"lock": "until_expired", "lock_period": 86400.0}
KEY = "idem:8f3c"


def call(task: Any, *args: Any, key: object = KEY, **kwargs: Any) -> Any:
    """Call under an idempotency key, as a view does for a request that has one."""
    return task.apply_async(args, kwargs, lock_key=key)


def unclaimed(task_id: str) -> Message:
    """The header of such a call that was published while the lock server was away."""
    return Message(KEY, f"{task_id}/x", has_own_key=True)


@pytest.mark.parametrize("given", [{}, {"on_conflict": "skip"}, {"on_conflict": "raise"}], ids=str)
@pytest.mark.parametrize("key", [KEY, lambda _: KEY], ids=["text", "callable"])
def test_other_arguments_under_the_key_are_refused(shop: Shop, given: dict[str, Any], key: object) -> None:
    """Skipped, the caller would take another job's result for its own. The first job keeps its key."""
    task = shop.unique(body, **FOR_A_DAY, **given)
    first = call(task, 7, 5)
    with pytest.raises(DuplicateTask) as raised:
        call(task, 7, 700, key=key)
    error = raised.value
    assert (error.has_other_arguments, error.task_id, error.key) == (True, first.id, KEY)
    assert error.retry_after == 86400
    assert f"duplicate of task {first.id}, which was called under the same lock_key" in str(error)
    assert [message.headers["id"] for message in shop.messages()] == [first.id]
    assert [hold.owner for hold in shop.held().values()] == [first.id]


@pytest.mark.parametrize("strategy", ["skip", "raise"])
def test_the_same_arguments_under_the_key_are_an_ordinary_duplicate(shop: Shop, strategy: str) -> None:
    """A request that is repeated gets the first one's task, however its call is spelled."""
    task = shop.unique(body, on_conflict=strategy, **FOR_A_DAY)
    first = call(task, 7)
    with pytest.raises(DuplicateTask) if strategy == "raise" else nullcontext() as raised:
        again = call(task, amount=0, account_id=7)
    if raised is None:
        assert (again.id, again.is_duplicate) == (first.id, True)
    else:
        assert not raised.value.has_other_arguments


@pytest.mark.parametrize("amount", [5, 700])
@pytest.mark.parametrize("answer", ["skip", "raise"])
def test_a_callable_is_told_and_decides(shop: Shop, amount: int, answer: str) -> None:
    """Who writes one has read of other arguments, and may drop the call."""
    told = []

    def decide(conflict: Any) -> str:
        told.append(conflict.has_other_arguments)
        return answer

    task = shop.unique(body, on_conflict=decide, **FOR_A_DAY)
    first = call(task, 7, 5)
    with pytest.raises(DuplicateTask) if answer == "raise" else nullcontext() as raised:
        assert call(task, 7, amount).id == first.id
    assert told == [amount == 700]
    if raised is not None:
        assert raised.value.has_other_arguments == (amount == 700)


@pytest.mark.parametrize(
    ("declared", "asked"),
    [
        ({**FOR_A_DAY, "lock_key": KEY}, {}),
        (FOR_A_DAY, {"lock_key": ("account_id",)}),
        ({"lock": "until_executed"}, {"lock_key": KEY}),
        ({"lock": "until_executed", "lock_period": 60.0}, {"lock_key": KEY}),
        ({"lock": "until_executing"}, {"lock_key": KEY}),
        (FOR_A_DAY, {"lock_key": KEY, "lock": "until_executed"}),
    ],
    ids=str,
)
def test_a_key_that_is_no_idempotency_key_drops_calls_with_other_arguments(
    shop: Shop, declared: dict[str, Any], asked: dict[str, Any]
) -> None:
    """A resource, a throttle, parameters that count: other arguments are meant to meet there."""
    task = shop.unique(body, **declared)
    first = task.apply_async((7, 5), **asked)
    assert task.apply_async((7, 700), **asked).id == first.id
    (hold,) = shop.held().values()
    assert len(hold.facts.get("args", "")) in {0, 8}


def test_the_digest_is_of_all_arguments_and_takes_twenty_bytes(shop: Shop) -> None:
    """Large and nested ones count, too: a basket is what such a job is about."""

    def buy(basket: list[dict[str, object]]) -> None: ...

    task = shop.unique(buy, **FOR_A_DAY)
    lines = [{"article": f"tea {number}", "amount": 1} for number in range(500)]
    call(task, lines)
    (hold,) = shop.held().values()
    assert call(task, [dict(reversed(line.items())) for line in lines]).is_duplicate
    with pytest.raises(DuplicateTask):
        call(task, [*lines[:-1], {"article": "tea 499", "amount": 2}])

    digest = f',"args":"{hold.facts["args"]}"'
    assert hold.text.decode().endswith(digest + "}")
    assert len(digest) == 20


class Unencodable:
    """What only pickle sends."""

    def __json__(self) -> object:
        raise ZeroDivisionError


@pytest.mark.parametrize("make", [lambda: {1}, Unencodable], ids=["a set", "an object that raises"])
@pytest.mark.parametrize("is_first", [True, False])
def test_arguments_without_a_digest_make_an_ordinary_duplicate(
    shop: Shop, make: Callable[[], object], *, is_first: bool
) -> None:
    """The publish does not fail for them, whichever of the two calls has them."""
    shop.app.conf.update(task_serializer="pickle", accept_content=["pickle"])
    task = shop.unique(body, **FOR_A_DAY)
    first, second = (make(), 7) if is_first else (7, make())
    result = call(task, first)
    assert call(task, second).id == result.id


@pytest.mark.parametrize(("amount", "error"), [(5, Ignore), (700, DuplicateTask)])
def test_a_message_without_a_claim_is_refused_on_the_worker(
    shop: Shop, amount: int, error: type[Exception]
) -> None:
    """Published while the lock server was away. Its caller has an id of its own, and sees a failure there.

    As ``REVOKED``, it would be called a duplicate of a job that it is not.
    """
    task = shop.unique(body, **FOR_A_DAY)
    with shop.running(task, task_id="first", header=unclaimed("first"), args=(7, 5)):
        assert task(7, 5) == 12
    second = shop.running(task, task_id="second", header=unclaimed("second"), args=(7, amount))
    with second, pytest.raises(error, match=r"duplicate of (task )?first") as raised:
        task(7, amount)
    assert getattr(raised.value, "has_other_arguments", False) == (amount == 700)


def test_a_message_without_a_claim_meets_that_of_a_publish(shop: Shop) -> None:
    """Publisher and worker tell the same of the same arguments."""
    task = shop.unique(body, **FOR_A_DAY)
    first = call(task, 7, 5)
    assert carried(shop.message()).has_own_key
    (hold,) = shop.held().values()
    old = hold.text.decode().replace(f'"since":{hold.facts["since"]:.3f}', f'"since":{time.time() - 3600}')
    shop.store.release(KEY, hold.token)
    shop.store.acquire(KEY, hold.token, 86400.0, facts=old)
    for amount, error in ((5, Ignore), (700, DuplicateTask)):
        second = shop.running(task, task_id="second", header=unclaimed("second"), args=(7, amount))
        with second, pytest.raises(error, match=first.id):
            task(7, amount)


def test_in_place_the_key_stands_for_one_job_too(shop: Shop) -> None:
    """Eager mode with ``redislock_eager``, as in a project's tests."""
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    task = shop.unique(body, **FOR_A_DAY)
    assert call(task, 7, 5).get() == 12
    assert call(task, 7, 5).is_duplicate
    with pytest.raises(DuplicateTask) as raised:
        call(task, 7, 700)
    assert raised.value.has_other_arguments

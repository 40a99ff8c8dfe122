"""One call: its key, its options, how long its claim lives, and what its message carries."""

from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from celery_redislock import LockKeyError, LockOptionError
from celery_redislock.publishing.message import HEADER, Message
from tests.unit.shop import Shop, body, carried


def test_a_new_task_id_is_a_random_uuid_as_celery_makes_it(shop: Shop) -> None:
    """Programs store task ids in columns of that type."""
    task = shop.unique(body)
    ids = [task.delay(number).id for number in range(50)]
    assert len(set(ids)) == 50
    assert {(str(UUID(one)) == one, UUID(one).version, UUID(one).variant) for one in ids} == {
        (True, 4, RFC_4122)
    }


def aware(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def naive(seconds: float) -> datetime:
    return aware(seconds).replace(tzinfo=None)


def text(seconds: float) -> str:
    return aware(seconds).isoformat()


@pytest.mark.parametrize(
    ("declared", "options", "expected"),
    [
        ({}, {}, 100),
        ({}, {"countdown": 50}, 150),
        ({}, {"countdown": 0}, 100),
        ({}, {"countdown": -5}, 100),
        ({}, {"eta": (aware, 50)}, 150),
        ({}, {"eta": (naive, 50)}, 150),
        ({}, {"eta": (text, 50)}, 150),
        ({}, {"eta": (aware, -50)}, 100),
        ({}, {"expires": 60}, 60),
        ({}, {"expires": 500}, 100),
        ({}, {"expires": 0}, 1),
        ({}, {"expires": (aware, 60)}, 60),
        ({}, {"expires": (text, 60)}, 60),
        ({}, {"expires": (aware, -60)}, 1),
        ({"expires": 60}, {}, 60),
        ({"expires": 60}, {"expires": None}, 100),
        ({}, {"countdown": 50, "expires": 120}, 120),
        ({}, {"countdown": 50, "lock_queue_ttl": 10}, 60),
        ({"lock": "until_expired", "lock_period": 30}, {"countdown": 200, "expires": 10}, 30),
    ],
)
def test_a_claim_outlives_its_delay_by_the_queue_ttl_but_not_its_expiry(
    shop: Shop, declared: dict[str, Any], options: dict[str, Any], expected: float
) -> None:
    """Law 2: a claim whose message is gone ends by itself. For ``until_expired`` it lives for the period."""
    task = shop.unique(body, lock_queue_ttl=100, **declared)
    given = {
        name: value[0](value[1]) if isinstance(value, tuple) else value for name, value in options.items()
    }
    task.apply_async((7,), **given)
    claim = shop.holder(task.lock_for(7).key)
    assert claim is not None
    assert claim.expires_in == pytest.approx(expected, abs=0.9)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda task: task.delay(1, 2, 3), TypeError),
        (lambda task: task.delay(nonsense=1), TypeError),
        (lambda task: task.delay({1, 2}), LockKeyError),
        (lambda task: task.delay(object()), LockKeyError),
        (lambda task: task.apply_async((1,), lock_tll=5), LockOptionError),
        (lambda task: task.apply_async((1,), lock_ttl=-5), LockOptionError),
        (lambda task: task.apply_async((1,), lock_key="x:{nobody}"), LockOptionError),
        (lambda task: task.apply_async((None,), lock_key="x:{account_id}"), LockKeyError),
        (lambda task: task.apply_async((1,), lock="until_expired"), LockOptionError),
        (lambda task: task.apply_async((1,), on_conflict="queue"), LockOptionError),
    ],
)
def test_what_cannot_be_honoured_touches_nothing(shop: Shop, call: Any, error: type[Exception]) -> None:
    """Nothing is half-done: no request to the lock server, no message."""
    task = shop.unique(body)
    with pytest.raises(error):
        call(task)
    assert (shop.store.calls, shop.messages()) == ([], [])


@pytest.mark.parametrize(
    ("declared", "options", "expected"),
    [
        ("until_executed", {"lock": None}, Message(None, "")),
        ("until_executed", {"lock": False}, Message(None, "")),
        ("while_executing", {}, Message("account:7", "")),
        (None, {}, None),
        (None, {"lock": "while_executing"}, Message("account:7", "", options={"lock": "while_executing"})),
    ],
)
def test_a_call_that_claims_nothing_asks_nothing_and_its_header_says_what_the_worker_does(
    shop: Shop, declared: Any, options: dict[str, Any], expected: Message | None
) -> None:
    """A task without a lock is published as Celery does, without a header."""
    result = shop.unique(body, lock=declared, lock_key="account:7").apply_async((7,), **options)
    header = Message.loads(shop.message().headers.get(HEADER))
    assert (header and header._replace(token="")) == expected
    assert (result.is_duplicate, shop.store.calls) == (False, [])


def test_options_of_a_call_travel_but_a_callable_and_never_become_properties(shop: Shop) -> None:
    """Celery would make a message property of a keyword it does not know. A callable decides here only."""
    task = shop.unique(body)
    shop.store.acquire("account:7", "somebody/x", 30, facts="{}")
    result = task.apply_async(
        (7,),
        lock_ttl=60,
        on_conflict={"server": "wait", "client": lambda _conflict: "wait"},
        lock_key="account:{account_id}",
    )

    message = shop.message()
    header = carried(message)
    assert (result.is_duplicate, header.key, header.has_own_key) == (False, "account:7", True)
    assert header.options == {"lock_ttl": 60.0, "on_conflict": {"server": "wait"}}
    assert not [name for name in message.properties if "lock" in name or "conflict" in name]


@pytest.mark.parametrize(
    "of_another",
    [
        pytest.param(
            Message("account:7", "parent/n", claimed=True, options={"lock_ttl": 9.0}).dumps(), id="parent"
        ),
        pytest.param(Message("account:6", "same/n", claimed=True).dumps(), id="another key"),
        pytest.param("{nonsense", id="unreadable"),
    ],
)
def test_a_header_of_another_message_lends_no_claim(shop: Shop, of_another: str) -> None:
    """A child that copies its parent's headers claims for itself; so does a replacement with another key."""
    task = shop.unique(body, lock_key="account:{account_id}")
    task.apply_async((7,), task_id="same", headers={HEADER: of_another})
    header = carried(shop.message())
    ((key, claim),) = shop.held().items()
    assert (header.key, header.claimed, header.options) == (key, True, {}) == ("account:7", True, {})
    assert (claim.owner, claim.token) == ("same", header.token)
    assert header.token != "same/n"


@pytest.mark.parametrize(("lock", "claimed"), [("until_executed", True), ("while_executing", False)])
def test_a_retry_published_by_a_main_process_has_its_token(shop: Shop, lock: str, *, claimed: bool) -> None:
    """Law 7: for a lost child the lease was turned into that claim; it asks nothing and is no duplicate."""
    task = shop.unique(body, lock=lock, lock_key="account:{account_id}")
    of_main_process = Message("account:7", "same/new", claimed=claimed)
    shop.store.acquire("account:7", "same/new", 5, facts="{}")
    shop.store.calls.clear()
    task.apply_async((7,), task_id="same", headers={HEADER: of_main_process.dumps()}, retries=1)
    header = carried(shop.message())
    assert (header.token, header.claimed, header.must_run) == ("same/new", claimed, True)
    assert shop.store.calls == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lock_ttl": 60, "lock_key": "account:{account_id}"}, ("account:7", True, {"lock_ttl": 60.0})),
        ({"lock": None}, (None, False, {})),
    ],
)
def test_a_calls_options_and_key_outlast_it(shop: Shop, options: Any, expected: tuple[Any, ...]) -> None:
    """A retry is the same call."""
    task = shop.unique(body)
    task.apply_async((7,), task_id="same", **options)
    first = shop.message().headers[HEADER]
    shop.store.force_release("account:7")
    task.apply_async((7,), task_id="same", headers={HEADER: first}, retries=1)
    header = carried(shop.message())
    assert (header.key, header.has_own_key, header.options) == expected

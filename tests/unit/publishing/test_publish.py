"""Publishing: a claim first, then the message; and what a refusal means."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError

from celery_redislock import (
    DuplicateTask,
    LockKeyError,
    LockOptionError,
    LockUnavailable,
    lock_acquired,
    lock_conflict,
)
from celery_redislock.locks import Lock
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.testing import hold, locks_off
from tests.unit.shop import Down, Shop, debts


def body(account_id: int = 1, amount: int = 0) -> int:
    return account_id + amount


def pack() -> None: ...


def header_of(message: Any) -> Message:
    header = Message.loads(message.headers.get(HEADER))
    assert header is not None
    return header


# --- claim, then send ------------------------------------------------------------------------


def test_the_claim_is_there_before_the_message(shop: Shop) -> None:
    """Law 1: a message on its way without its claim could be overtaken by a duplicate."""
    task = shop.unique(body)
    seen = []
    sending = task.app.send_task

    def send(*args: Any, **kwargs: Any) -> Any:
        seen.append(shop.held())
        return sending(*args, **kwargs)

    shop.app.send_task = send

    result = task.delay(7)

    (held,) = seen
    (claim,) = held.values()
    assert claim.owner == result.id
    assert claim.about["state"] == "queued"
    assert not result.is_duplicate


def test_the_message_carries_key_and_token_of_its_claim(shop: Shop) -> None:
    task = shop.unique(body)
    before = time.time()

    result = task.delay(7)

    header = header_of(shop.message())
    ((key, claim),) = shop.held().items()
    assert (header.key, header.token, header.claimed) == (key, claim.token, True)
    assert header.token.startswith(f"{result.id}/")
    assert claim.about["message"] == header.token
    assert before - 0.001 <= header.published_at <= time.time()
    assert not header.must_run
    assert (header.options, header.has_own_key, header.waits_for, header.put_off) == ({}, False, None, 0)


def test_a_claim_takes_one_request(shop: Shop) -> None:
    """Law 10."""
    shop.unique(body).delay(7)

    assert shop.store.calls == ["acquire"]


def test_the_users_own_headers_stay(shop: Shop) -> None:
    mine = {"trace": "abc"}

    shop.unique(body).apply_async((7,), headers=mine)

    assert shop.message().headers["trace"] == "abc"
    assert mine == {"trace": "abc"}


def test_the_fixed_task_id_is_the_owner(shop: Shop) -> None:
    result = shop.unique(body).apply_async((7,), task_id="mine")

    assert result.id == "mine"
    assert [claim.owner for claim in shop.held().values()] == ["mine"]


def test_an_accepted_publish_is_announced(shop: Shop) -> None:
    task, heard = shop.unique(body), []

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((sender, facts["task_id"], facts["key"], facts["lease"]))

    lock_acquired.connect(listen, sender=task)

    result = task.delay(7)

    assert heard == [(task, result.id, *shop.held(), None)]


# --- how long a claim lives ------------------------------------------------------------------


def in_seconds(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, 100, id=""),
        pytest.param({"countdown": 50}, 150, id="countdown 50"),
        pytest.param({"countdown": 0.5}, 100.5, id="countdown 0.5"),
        pytest.param({"countdown": 0}, 100, id="countdown 0"),
        pytest.param({"countdown": -5}, 100, id="countdown -5"),
        pytest.param({"eta": lambda: in_seconds(50)}, 150, id="eta in_seconds(50)"),
        pytest.param(
            {"eta": lambda: in_seconds(50).astimezone(timezone(timedelta(hours=5)))},
            150,
            id="eta in_seconds(50).astimezone(timezone(timedelta(hours=5)))",
        ),
        pytest.param(
            {"eta": lambda: in_seconds(50).replace(tzinfo=None)},
            150,
            id="eta in_seconds(50).replace(tzinfo=None)",
        ),
        pytest.param({"eta": lambda: in_seconds(50).isoformat()}, 150, id="eta in_seconds(50).isoformat()"),
        pytest.param({"eta": lambda: in_seconds(-50)}, 100, id="eta in_seconds(-50)"),
        pytest.param({"expires": 60}, 60, id="expires 60"),
        pytest.param({"expires": 60.5}, 60.5, id="expires 60.5"),
        pytest.param({"expires": 500}, 100, id="expires 500"),
        pytest.param({"expires": lambda: in_seconds(60)}, 60, id="expires in_seconds(60)"),
        pytest.param(
            {"expires": lambda: in_seconds(60).replace(tzinfo=None)},
            60,
            id="expires in_seconds(60).replace(tzinfo=None)",
        ),
        pytest.param(
            {"expires": lambda: in_seconds(60).isoformat()}, 60, id="expires in_seconds(60).isoformat()"
        ),
        pytest.param({"expires": 0}, 1, id="expires 0"),
        pytest.param({"expires": lambda: in_seconds(-60)}, 1, id="expires in_seconds(-60)"),
        pytest.param({"countdown": 50, "expires": 120}, 120, id="countdown 50, expires 120"),
        pytest.param({"countdown": 50, "lock_queue_ttl": 10}, 60, id="countdown 50, lock_queue_ttl 10"),
    ],
)
def test_a_claim_outlives_its_delay_by_the_queue_ttl_but_not_its_expiry(
    shop: Shop, options: dict[str, Any], expected: float
) -> None:
    task = shop.unique(body, lock_queue_ttl=100)
    given = {name: value() if callable(value) else value for name, value in options.items()}

    task.apply_async((7,), **given)

    (claim,) = shop.held().values()
    assert claim.expires_in == pytest.approx(expected, abs=0.9)


def test_the_tasks_own_expiry_caps_its_claims(shop: Shop) -> None:
    shop.unique(body, expires=60).delay(7)

    (claim,) = shop.held().values()
    assert claim.expires_in == pytest.approx(60, abs=0.9)


def test_until_expired_claims_for_its_period(shop: Shop) -> None:
    """Whatever countdown, expiry and queue ttl: the window counts from acceptance."""
    shop.unique(body, lock="until_expired", lock_period=50).apply_async((7,), countdown=200, expires=10)

    (claim,) = shop.held().values()
    assert claim.expires_in == pytest.approx(50, abs=0.9)


def test_a_period_refuses_after_the_claim_has_gone(shop: Shop) -> None:
    task = shop.unique(body, lock_period=50)
    first = task.delay(7)
    shop.run()

    second = task.delay(7)

    assert shop.held() == {}
    assert (second.is_duplicate, second.id) == (True, first.id)


# --- a publish that fails --------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("gone"), KeyboardInterrupt(), Down()], ids=repr)
def test_a_failed_publish_gives_claim_and_window_back(shop: Shop, error: BaseException) -> None:
    """Law 2: no message is on its way, so nothing may stand in the next one's way."""
    task = shop.unique(body, lock_period=50)
    sending = shop.app.send_task

    def fail(*_: Any, **__: Any) -> None:
        raise error

    shop.app.send_task = fail

    with pytest.raises(type(error)) as raised:
        task.delay(7)

    assert raised.value is error
    assert shop.held() == {}
    shop.app.send_task = sending
    assert not task.delay(7).is_duplicate


def test_a_failed_publish_without_a_server_owes_its_claim(shop: Shop) -> None:
    """Law 9: what cannot be given back now is given back later; the publish's own error is told."""
    task = shop.unique(body)

    def fail(*_: Any, **__: Any) -> None:
        shop.store.failures = float("inf")
        raise OSError("gone")

    shop.app.send_task = fail

    with pytest.raises(OSError, match="gone"):
        task.delay(7)

    assert watchdog_of(shop.store).owes == 1


def test_an_argument_the_serializer_refuses_leaves_nothing(shop: Shop) -> None:
    task = shop.unique(body, lock_key="account:{account_id}")

    with pytest.raises(Exception, match="not JSON serializable"):
        task.delay(7, amount=object())

    assert shop.held() == {}
    assert shop.messages() == []


# --- what is refused before any claim --------------------------------------------------------


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
        (lambda task: task.apply_async((1,), on_conflict="wait"), LockOptionError),
    ],
)
def test_what_cannot_be_honoured_touches_nothing(shop: Shop, call: Any, error: type[Exception]) -> None:
    """Nothing is half-done: no request to the lock server, no message."""
    task = shop.unique(body)

    with pytest.raises(error):
        call(task)

    assert shop.store.calls == []
    assert shop.messages() == []


def test_an_untyped_task_is_claimed_whatever_its_arguments(shop: Shop) -> None:
    """``typing=False``: Celery publishes it unchecked, and so do we."""
    task = shop.unique(body, typing=False)

    task.delay(1, 2, 3)

    assert task.delay(1, 2, 3).is_duplicate
    assert not task.delay(1, 2, 4).is_duplicate


# --- one key ---------------------------------------------------------------------------------


def test_positional_keyword_and_default_are_one_key(shop: Shop) -> None:
    task = shop.unique(body)
    first = task.delay(1, 0)

    others = [task.delay(), task.delay(1), task.delay(account_id=1), task.delay(amount=0, account_id=1)]

    assert [result.id for result in others] == [first.id] * 4
    assert not task.delay(2).is_duplicate
    assert not task.delay(account_id=3).is_duplicate
    assert task.delay(3).is_duplicate
    assert not task.delay(3, amount=1).is_duplicate


def test_models_and_their_dumps_are_one_key(shop: Shop) -> None:
    """Celery dumps pydantic models while publishing, after the key was needed."""
    pydantic: Any = pytest.importorskip("pydantic")
    from celery import Task

    if not hasattr(Task, "_dump_pydantic_arguments"):
        pytest.skip("this Celery does not dump models")

    order_type = pydantic.create_model("Order", id=(int, ...))

    def ship(order: Any) -> None: ...

    ship.__annotations__ = {"order": order_type}
    task = shop.unique(ship, pydantic=True)

    first = task.delay(order_type(id=3))

    assert task.delay({"id": 3}).id == first.id
    assert not task.delay(order_type(id=4)).is_duplicate


# --- refused ---------------------------------------------------------------------------------


def test_a_skipped_publish_returns_the_holders_result(shop: Shop) -> None:
    task = shop.unique(body)
    first = task.delay(7)
    shop.messages()

    second = task.delay(7)

    assert (second.id, second.is_duplicate, type(second)) == (first.id, True, type(first))
    assert shop.messages() == []


def test_a_skip_writes_one_line_that_names_the_holder(shop: Shop, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "celery_redislock")
    task = shop.unique(body, lock_key="account:{account_id}")
    first = task.delay(7)

    task.delay(7)

    (line,) = caplog.messages
    assert line.startswith("skipped shop.sync[")
    assert "] at publish: " in line
    assert f"'account:7' is held by {first.id} (queued, for 0." in line


def test_raise_names_the_holder(shop: Shop) -> None:
    task = shop.unique(body, lock_key="account:{account_id}", on_conflict="raise")
    first = task.delay(7)
    shop.messages()

    with pytest.raises(DuplicateTask) as refusal:
        task.delay(7)

    assert (refusal.value.task_id, refusal.value.key) == (first.id, "account:7")
    assert refusal.value.expires_in == pytest.approx(3600, abs=1)
    assert shop.messages() == []


def test_retry_publishes_without_a_claim(shop: Shop) -> None:
    """The worker decides; the holder's claim stays the holder's."""
    task = shop.unique(body, on_conflict="retry")
    first = task.delay(7)
    shop.messages()

    second = task.delay(7)

    header = header_of(shop.message())
    assert (second.is_duplicate, second.id == first.id) == (False, False)
    assert (header.claimed, header.key) == (False, *shop.held())
    assert [claim.owner for claim in shop.held().values()] == [first.id]


@pytest.mark.parametrize("answer", ["skip", "retry", "raise"])
def test_a_callable_decides(shop: Shop, answer: str) -> None:
    asked = []

    def decide(conflict: Any) -> str:
        asked.append(conflict)
        return answer

    task = shop.unique(body, on_conflict=decide, lock_key="account:{account_id}")
    first = task.delay(7, amount=1)
    shop.messages()

    try:
        outcome = task.apply_async((7,), {"amount": 2}, task_id="second").is_duplicate
    except DuplicateTask as error:
        outcome = error.task_id

    assert outcome == {"skip": True, "retry": False, "raise": first.id}[answer]
    (conflict,) = asked
    assert (conflict.task, conflict.args, conflict.kwargs) == (task, (7,), {"amount": 2})
    assert (conflict.task_id, conflict.key, conflict.holder) == ("second", "account:7", first.id)
    assert (conflict.side, conflict.expires_in) == ("client", pytest.approx(3600, abs=1))


@pytest.mark.parametrize("answer", ["wait", "", None, True, 3])
def test_a_callables_wrong_answer_is_an_error_that_names_the_right_ones(shop: Shop, answer: object) -> None:
    task = shop.unique(body, on_conflict=lambda _conflict: answer)
    task.delay(7)
    shop.messages()

    with pytest.raises(LockOptionError, match=r"returned .*; return one of raise, retry, skip"):
        task.delay(7)

    assert shop.messages() == []


def test_a_conflict_is_announced_with_what_is_done(shop: Shop) -> None:
    task, heard = shop.unique(body), []

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((sender, facts["side"], facts["strategy"], facts["holder"].owner, facts["task_id"]))

    lock_conflict.connect(listen, sender=task)
    first = task.delay(7)

    task.apply_async((7,), task_id="second")

    assert heard == [(task, "client", "skip", first.id, "second")]


@pytest.mark.parametrize(
    ("options", "is_eager", "happens"),
    [
        ({}, False, ["skip"]),
        ({"on_conflict": "retry"}, False, ["retry"]),
        ({"group_id": "g"}, False, ["retry"]),
        ({"retries": 1}, False, ["retry"]),
        ({"on_conflict": "retry"}, True, ["raise"]),
        ({"group_id": "g"}, True, ["skip"]),
    ],
    ids=str,
)
def test_a_conflict_at_publish_is_announced_with_what_really_happens(
    shop: Shop, options: dict[str, Any], *, is_eager: bool, happens: list[str]
) -> None:
    """``retry``: published without a claim, and the worker decides. In eager mode that is asked at once."""
    shop.app.conf.update(task_always_eager=is_eager, redislock_eager=True)
    task, heard = shop.unique(body), []

    def listen(strategy: str, **_: Any) -> None:
        heard.append(strategy)

    lock_conflict.connect(listen, sender=task)

    with hold(task, 7), suppress(DuplicateTask):
        task.apply_async((7,), **options)

    assert heard == happens


def test_a_fixed_id_that_was_skipped_is_ready_and_says_why(shop: Shop) -> None:
    """Who waits for that id must not wait for ever."""
    task = shop.unique(body)
    first = task.delay(7)

    task.apply_async((7,), task_id="mine")

    assert shop.state("mine") == "REVOKED"
    with pytest.raises(Exception, match=f"duplicate of {first.id}"):
        task.AsyncResult("mine").get(timeout=1)


@pytest.mark.parametrize("state", ["STARTED", "RETRY", "SUCCESS", "FAILURE"])
def test_a_job_of_that_id_elsewhere_keeps_its_state(shop: Shop, state: str) -> None:
    """The refused call is not that job: it is under way, or has left its outcome."""
    task = shop.unique(body)
    task.delay(7)
    outcome = ValueError("x") if state in {"RETRY", "FAILURE"} else 1
    shop.app.backend.store_result("mine", outcome, state)

    task.apply_async((7,), task_id="mine")

    assert shop.state("mine") == state


@pytest.mark.parametrize("backend", ["rpc://", "disabled://"])
def test_where_states_cannot_be_read_none_is_written_for_a_skip(backend: str, caplog: Any) -> None:
    """``rpc://`` has nobody to send it to, and would raise."""
    task = Shop(result_backend=backend).unique(body)
    first = task.delay(7)

    assert task.apply_async((7,), task_id="mine").id == first.id
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_backend_that_cannot_be_asked_does_not_fail_a_skip(
    shop: Shop, monkeypatch: Any, caplog: Any
) -> None:
    task = shop.unique(body)
    first = task.delay(7)

    def fail(*_: Any, **__: Any) -> None:
        message = "gone"
        raise OSError(message)

    monkeypatch.setattr(task.backend, "get_task_meta", fail)

    assert task.apply_async((7,), task_id="mine").id == first.id
    assert f"'mine' is a duplicate of {first.id}, and so not published" in caplog.text
    monkeypatch.undo()
    assert shop.state("mine") == "PENDING"


@pytest.mark.parametrize("options", [{}, {"task_id": "same"}, {"task_id": "mine", "ignore_result": True}])
def test_no_other_state_is_written_for_a_skip(shop: Shop, options: dict[str, Any]) -> None:
    """Not for a made-up id, never for the holder's own, and not where results are ignored."""
    task = shop.unique(body)
    task.apply_async((7,), task_id="same")

    task.apply_async((7,), **options)

    assert shop.state("same") == "PENDING"
    assert shop.state("mine") == "PENDING"


@pytest.mark.parametrize("meets", ["queued", "running"])
@pytest.mark.parametrize(
    ("of_holder", "of_call", "ignored"),
    [(True, True, True), (False, True, True), (True, False, True), (False, False, False)],
)
def test_a_skipped_publish_is_waited_for_only_where_its_result_is_kept(
    shop: Shop, meets: str, *, of_holder: bool, of_call: bool, ignored: bool
) -> None:
    """Nobody stores what ``get()`` would wait for where the call ignores results, or the holder does."""
    met: list[Any] = []

    def meet(account_id: int) -> None:
        if meets == "running":
            met.append(task.apply_async((7,), ignore_result=of_call))

    task = shop.unique(meet)
    task.apply_async((7,), ignore_result=of_holder)
    if meets == "queued":
        met.append(task.apply_async((7,), ignore_result=of_call))
    shop.run()

    (second,) = met
    assert (second.is_duplicate, second.ignored) == (True, ignored)
    if ignored:
        assert second.get(timeout=1) is None


def test_another_task_with_the_same_key_may_ignore_its_results(shop: Shop) -> None:
    """The result of a skipped call is the holder's, whatever the call's own task does with results."""
    quiet = shop.unique(body, name="shop.quiet", lock_key="account:7", ignore_result=True)
    task = shop.unique(body, lock_key="account:7")
    quiet.delay(7)

    assert task.delay(7).get(timeout=1) is None


def test_a_call_refused_by_a_plain_lock_waits_for_no_task(shop: Shop) -> None:
    """Its holder is no task, and nobody will ever store a result under its name; a fixed id is told so."""
    task = shop.unique(body, lock_key="nightly import")
    with Lock(shop.store, "nightly import", owner="a script"):
        second = task.delay(7)
        task.apply_async((7,), task_id="mine")

    assert (second.is_duplicate, second.state) == (True, "REVOKED")
    assert shop.state("mine") == "REVOKED"
    with pytest.raises(TaskRevokedError, match="duplicate of a script"):
        second.get(timeout=1)


@pytest.mark.parametrize(
    ("lock_key", "account_id"),
    [("account:{account_id}", "a:b c"), ("nightly import", 7), (None, 7), ("x" * 300, 7), ("50%", 7)],
)
def test_a_plain_lock_excludes_a_task_by_its_key(shop: Shop, lock_key: Any, account_id: Any) -> None:
    """``task.lock_for(...).key`` names the lock for everybody; a text without fields does so by itself."""
    task = shop.unique(body, lock_key=lock_key)
    names = [task.lock_for(account_id).key]
    if lock_key is not None and not {"{", "%"} & set(lock_key):
        names.append(lock_key)

    for name in names:
        with Lock(shop.store, name):
            assert task.delay(account_id).is_duplicate
        with hold(task, account_id):
            assert not Lock(shop.store, name).acquire(timeout=0)


# --- workflows -------------------------------------------------------------------------------


def links(shop: Shop) -> dict[str, Any]:
    """Every way to publish the task so that somebody waits for it."""
    task = shop.app.tasks["shop.sync"]
    other = shop.app.tasks["shop.other"]
    return {
        "group": lambda: group(task.si(7), other.si()).apply_async(),
        "chord header": lambda: chord([task.si(7), other.si()], other.si()).apply_async(),
        "chain's first": lambda: chain(task.si(7), other.si()).apply_async(),
        "chain's last": lambda: task.apply_async((7,), chain=[]),
        "link": lambda: task.apply_async((7,), link=other.si()),
        "link_error": lambda: task.apply_async((7,), link_error=other.si()),
        "a link itself": lambda: task.apply_async((7,), parent_id="p", root_id="r"),
        "a retry": lambda: task.apply_async((7,), retries=1),
    }


AWAITED = [
    "group",
    "chord header",
    "chain's first",
    "chain's last",
    "link",
    "link_error",
    "a link itself",
    "a retry",
]


@pytest.mark.parametrize("way", AWAITED)
@pytest.mark.parametrize("strategy", ["skip", "raise"])
def test_whom_somebody_waits_for_is_published_without_a_claim(shop: Shop, way: str, strategy: str) -> None:
    """Law 6: a swallowed member hangs its workflow; the worker decides."""
    task = shop.unique(body, on_conflict=strategy)
    shop.unique(pack, name="shop.other", lock=None)
    first = task.delay(7)
    shop.messages()

    links(shop)[way]()

    (header,) = [header_of(message) for message in shop.messages() if message.headers["task"] == "shop.sync"]
    assert not header.claimed
    assert header.must_run == (way != "a retry")
    assert [claim.owner for claim in shop.held().values()] == [first.id]


def test_a_workflows_first_of_its_key_claims(shop: Shop) -> None:
    task = shop.unique(body)

    group(task.si(7), task.si(8)).apply_async()

    headers = [header_of(message) for message in shop.messages()]
    assert [(header.claimed, header.must_run) for header in headers] == [(True, True)] * 2


# --- the lock server is away -----------------------------------------------------------------


def test_without_a_lock_server_the_publish_raises(shop: Shop) -> None:
    """Law 9; the claim it may have taken all the same is given back later."""
    task = shop.unique(body)
    shop.store.failures = 1

    with pytest.raises(LockUnavailable):
        task.delay(7)

    assert shop.messages() == []
    assert watchdog_of(shop.store).owes == 1


@pytest.mark.parametrize("way", AWAITED)
def test_without_a_lock_server_whom_somebody_waits_for_is_published_without_a_claim(
    shop: Shop, monkeypatch: Any, caplog: Any, way: str
) -> None:
    """Laws 2, 6 and 7: raised in the midst of a chord or a retry, it breaks what is on its way already."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, on_lock_error="raise")
    shop.unique(pack, name="shop.other", lock=None)
    shop.store.failures = float("inf")

    links(shop)[way]()

    (header,) = [header_of(message) for message in shop.messages() if message.headers["task"] == "shop.sync"]
    assert not header.claimed
    assert header.must_run == (way != "a retry")
    assert f"publishing {task.name}[" in caplog.text
    assert len(owed) == 1


@contextmanager
def granted_and_then(shop: Shop, monkeypatch: Any, error: BaseException) -> Iterator[Any]:
    """Grant what is asked for, and raise this instead of saying so."""
    acquire = shop.store.acquire

    def interrupted(*args: Any, **kwargs: Any) -> None:
        acquire(*args, **kwargs)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(shop.store, "acquire", interrupted)
        yield patch


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), SoftTimeLimitExceeded(), Down()], ids=repr
)
def test_a_claim_whose_answer_nobody_waited_for_is_given_back(
    shop: Shop, monkeypatch: Any, error: BaseException
) -> None:
    """Laws 2 and 4: it was granted, and no message is on its way that would ever take it over."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock_period=50)

    with granted_and_then(shop, monkeypatch, error), pytest.raises(type(error)) as raised:
        task.delay(7)

    assert raised.value is error
    assert (len(shop.held()), shop.messages()) == (1, [])
    (give_back,) = owed
    give_back()
    assert shop.held() == {}
    assert not task.delay(7).is_duplicate


@pytest.mark.parametrize("lock", ["until_executed", "until_executing", "until_expired"])
def test_a_claim_whose_answer_got_lost_does_not_stand_in_its_own_messages_way(
    shop: Shop, monkeypatch: Any, lock: str
) -> None:
    """Law 2: the publisher was not told of it, and may end before it has given it back."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock=lock, lock_period=50, on_lock_error="run")

    with granted_and_then(shop, monkeypatch, LockUnavailable("memory", "acquire", "no answer")):
        task.delay(7)
    message = shop.message()

    assert len(shop.held()) == 1
    assert not header_of(message).claimed
    assert shop.run(shop.receive(message)) == 7
    assert shop.messages() == []
    assert shop.held() == {} or lock == "until_expired"
    for give_back in owed:
        give_back()
    assert task.delay(7).is_duplicate  # within its window


def test_a_claim_whose_answer_got_lost_is_given_back_where_its_message_cannot_be_sent(
    shop: Shop, monkeypatch: Any
) -> None:
    """Law 2: with its window: nothing will run under it."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock="until_expired", lock_period=50, on_lock_error="run")

    def fail(*_: Any, **__: Any) -> None:
        raise Down

    with granted_and_then(shop, monkeypatch, LockUnavailable("memory", "acquire", "no answer")) as patch:
        patch.setattr(shop.app, "send_task", fail)
        with pytest.raises(Down):
            task.delay(7)
    for give_back in owed:
        give_back()

    assert not task.delay(7).is_duplicate


def test_run_publishes_without_a_claim_and_says_so(shop: Shop, caplog: Any) -> None:
    task = shop.unique(body, on_lock_error="run")
    shop.store.failures = 1

    result = task.delay(7)

    header = header_of(shop.message())
    assert (result.is_duplicate, header.claimed, shop.held()) == (False, False, {})
    assert "without a claim" in caplog.text


def test_a_key_of_another_kind_is_told_and_nothing_sent(shop: Shop) -> None:
    task = shop.unique(body, on_lock_error="run")
    shop.store.has_wrong_type("shop.sync")

    with pytest.raises(LockKeyError, match="holds a list, not a lock"):
        task.delay(7)

    assert shop.messages() == []


# --- options of one call ---------------------------------------------------------------------


@pytest.mark.parametrize("off", [None, False])
def test_lock_none_takes_no_lock_anywhere_and_says_so_in_the_header(shop: Shop, off: object) -> None:
    task = shop.unique(body)
    first = task.delay(7)
    shop.messages()

    second = task.apply_async((7,), lock=off)

    header = header_of(shop.message())
    assert (header.key, header.claimed, second.is_duplicate) == (None, False, False)
    assert second.id != first.id
    assert shop.store.calls == ["acquire"]


def test_a_task_without_a_lock_is_published_as_celery_does(shop: Shop) -> None:
    task = shop.unique(body, lock=None)

    result = task.delay(7)

    assert HEADER not in shop.message().headers
    assert (result.is_duplicate, shop.store.calls) == (False, [])


def test_a_lock_can_be_asked_for_per_call(shop: Shop) -> None:
    task = shop.unique(body, lock=None)

    task.apply_async((7,), lock="until_executed")

    header = header_of(shop.message())
    assert (header.claimed, header.options) == (True, {"lock": "until_executed"})


def test_options_of_a_call_travel_and_never_become_properties(shop: Shop) -> None:
    task = shop.unique(body)

    task.apply_async((7,), lock_ttl=60, on_conflict={"server": "retry"}, lock_key="account:{account_id}")

    message = shop.message()
    header = header_of(message)
    assert header.options == {"lock_ttl": 60.0, "on_conflict": {"server": "retry"}}
    assert (header.key, header.has_own_key) == ("account:7", True)
    assert not [name for name in message.properties if "lock" in name or "conflict" in name]


def test_a_callable_of_a_call_decides_here_and_stays_here(shop: Shop) -> None:
    task = shop.unique(body)
    task.delay(7)
    shop.messages()

    result = task.apply_async((7,), on_conflict=lambda _conflict: "retry")

    header = header_of(shop.message())
    assert (result.is_duplicate, header.options) == (False, {})


def test_while_executing_claims_nothing_at_publish(shop: Shop) -> None:
    task = shop.unique(body, lock="while_executing")

    task.delay(7)

    header = header_of(shop.message())
    assert (header.claimed, shop.store.calls) == (False, [])
    assert header.key


# --- messages that carry a header already ----------------------------------------------------


def test_a_forwarded_header_of_another_id_is_no_hold(shop: Shop) -> None:
    """A child that copies its parent's headers claims for itself."""
    task = shop.unique(body)
    parent = Message("shop.sync:v1:x", "parent/nonce", claimed=True, options={"lock_ttl": 99.0})

    result = task.apply_async((7,), headers={HEADER: parent.dumps()})

    header = header_of(shop.message())
    assert header.claimed
    assert header.token.startswith(f"{result.id}/")
    assert header.options == {}
    assert [claim.owner for claim in shop.held().values()] == [result.id]


@pytest.mark.parametrize("lock", ["until_executed", "while_executing"])
def test_a_message_of_this_id_and_key_carries_its_own_hold(shop: Shop, lock: str) -> None:
    """What the worker's main process publishes for a lost child is no duplicate of itself."""
    task = shop.unique(body, lock=lock, lock_key="account:{account_id}", lock_queue_ttl=100)
    carried = Message("account:7", "same/old", claimed=True, must_run=True)
    shop.store.acquire("account:7", "same/old", 5, about={})

    result = task.apply_async(
        (7,), task_id="same", headers={HEADER: carried.dumps()}, retries=1, countdown=50
    )

    header = header_of(shop.message())
    assert (header.token, header.claimed, header.must_run) == ("same/old", True, True)
    assert not result.is_duplicate
    (claim,) = shop.held().values()
    assert claim.token == "same/old"
    assert claim.expires_in == pytest.approx(150, abs=0.9)


def test_a_carried_hold_that_cannot_be_renewed_is_published_all_the_same(shop: Shop, caplog: Any) -> None:
    """Law 7 before law 9: a retry is never lost for the lock server's sake."""
    task = shop.unique(body, lock_key="account:{account_id}")
    carried = Message("account:7", "same/old", claimed=True)
    shop.store.failures = 1

    task.apply_async((7,), task_id="same", headers={HEADER: carried.dumps()}, retries=1)

    assert header_of(shop.message()).token == "same/old"
    assert "without renewing its claim" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(1), SoftTimeLimitExceeded(), Down()], ids=repr)
def test_a_carried_hold_taken_by_a_publish_that_was_interrupted_is_given_back(
    shop: Shop, monkeypatch: Any, error: BaseException
) -> None:
    """Laws 2 and 4: no message will come for it."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock_key="account:{account_id}")
    carried = Message("account:7", "same/old", claimed=True)

    with granted_and_then(shop, monkeypatch, error), pytest.raises(type(error)):
        task.apply_async((7,), task_id="same", headers={HEADER: carried.dumps()}, retries=1)

    assert (len(shop.held()), shop.messages()) == (1, [])
    (give_back,) = owed
    give_back()
    assert shop.held() == {}


def test_a_message_of_this_id_and_another_key_takes_its_own_lock(shop: Shop) -> None:
    task = shop.unique(body, lock_key="account:{account_id}")
    carried = Message("account:6", "same/old", claimed=True)

    task.apply_async((7,), task_id="same", headers={HEADER: carried.dumps()})

    header = header_of(shop.message())
    assert (header.key, header.claimed, header.token != "same/old") == ("account:7", True, True)


def test_options_and_key_of_a_call_survive_its_retry(shop: Shop) -> None:
    task = shop.unique(body)
    task.apply_async((7,), task_id="same", lock_ttl=60, lock_key="account:{account_id}")
    first = shop.message()
    shop.store.force_release("account:7")

    task.apply_async((7,), task_id="same", headers={HEADER: first.headers[HEADER]}, retries=1)

    header = header_of(shop.message())
    assert (header.key, header.has_own_key, header.options) == ("account:7", True, {"lock_ttl": 60.0})


def test_lock_none_survives_a_retry(shop: Shop) -> None:
    task = shop.unique(body)
    task.apply_async((7,), task_id="same", lock=None)
    first = shop.message()

    task.apply_async((7,), task_id="same", headers={HEADER: first.headers[HEADER]}, retries=1)

    assert header_of(shop.message()).key is None
    assert shop.store.calls == []


def test_an_unreadable_header_counts_as_none(shop: Shop) -> None:
    task = shop.unique(body)

    task.apply_async((7,), task_id="same", headers={HEADER: "{nonsense"})

    assert header_of(shop.message()).claimed


# --- beat, switches, eager -------------------------------------------------------------------


def test_what_beat_publishes_is_claimed(shop: Shop) -> None:
    """Beat gives a producer and headers; two beats publish once."""
    task = shop.unique(body)
    entry = {"headers": {"periodic_task_name": "p"}}
    with shop.app.amqp.producer_pool.acquire(block=True) as producer:
        results = [task.apply_async((7,), {}, producer=producer, **entry) for _ in range(2)]

    message = shop.message()
    assert message.headers["periodic_task_name"] == "p"
    assert [result.is_duplicate for result in results] == [False, True]


@pytest.mark.parametrize("way", ["setting", "environment"])
def test_switched_off_everything_is_published(shop: Shop, way: str) -> None:
    task = shop.unique(body)
    if way == "setting":
        shop.app.conf.redislock_enabled = False
        results = [task.delay(7), task.apply_async((7,), lock_ttl=5)]
    else:
        with locks_off():
            results = [task.delay(7), task.apply_async((7,), lock_ttl=5)]

    messages = shop.messages()
    assert [result.is_duplicate for result in results] == [False, False]
    assert [HEADER in message.headers for message in messages] == [False, False]
    assert shop.store.calls == []


def test_eager_mode_takes_no_lock(shop: Shop) -> None:
    shop.app.conf.task_always_eager = True
    task = shop.unique(body)

    with hold(task, 7):
        calls = len(shop.store.calls)
        result = task.delay(7)

    assert (result.get(), result.is_duplicate) == (7, False)
    assert len(shop.store.calls) == calls + 1  # the release of the test's own hold


def test_eager_mode_with_locks_finds_duplicates(shop: Shop) -> None:
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    task = shop.unique(body)

    with hold(task, 7, task_id="first"):
        refused = task.delay(7)
    accepted = task.delay(7)

    assert (refused.id, refused.is_duplicate) == ("first", True)
    assert (accepted.get(), accepted.is_duplicate) == (7, False)
    assert shop.held() == {}


@pytest.mark.parametrize("strategy", ["raise", "retry"])
def test_eager_mode_raises_where_nobody_would_come_back(shop: Shop, strategy: str) -> None:
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    task = shop.unique(body, on_conflict=strategy)

    with hold(task, 7), pytest.raises(DuplicateTask):
        task.delay(7)


def test_eager_mode_goes_by_the_calls_own_options(shop: Shop) -> None:
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    seen = []

    def look(account_id: int) -> None:
        seen.append({name: round(held.expires_in) for name, held in shop.held().items()})

    task = shop.unique(look)

    task.apply_async((7,), lock_key="account:{account_id}", lock_ttl=90)

    assert seen == [{"account:7": 90}]
    assert shop.held() == {}


def test_eager_mode_runs_without_a_server_where_that_is_asked_for(shop: Shop, caplog: Any) -> None:
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    task = shop.unique(body, on_lock_error="run")
    shop.store.failures = 2

    assert task.delay(7).get() == 7

    assert "could not ask who holds" in caplog.text
    assert "without its lock" in caplog.text


def test_eager_mode_raises_without_a_server(shop: Shop) -> None:
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    shop.store.failures = 1

    with pytest.raises(LockUnavailable):
        shop.unique(body).delay(7)


def test_a_task_skipped_as_a_duplicate_of_its_own_run_is_warned_about(shop: Shop, caplog: Any) -> None:
    """The likeliest mistake with this package must not be silent."""
    results = []

    def again(account_id: int) -> None:
        results.append(shop.app.tasks["shop.sync"].delay(account_id))

    task = shop.unique(again)
    first = task.delay(7)

    shop.run()

    assert results == [first]
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "published itself from inside its own run" in warning.message
    assert "lock='until_executing'" in warning.message


def test_a_duplicate_of_another_programs_lock_has_an_end_to_wait_for(shop: Shop) -> None:
    """There is no task of that name, and ``get()`` would wait for it for ever."""
    task = shop.unique(body)
    shop.store.acquire(task.lock_for(7).key, "somebody", 30, about={})

    result = task.delay(7)

    assert (result.is_duplicate, result.id, result.state) == (True, "somebody", "REVOKED")
    with pytest.raises(TaskRevokedError, match="duplicate of somebody"):
        result.get()
    assert shop.messages() == []

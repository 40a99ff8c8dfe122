"""The worker's main process: it knows each run's token, renews, and settles for children that died.

What is left of a message however it ends: ``tests/unit/running/test_lives.py``.
"""

import gc
import os
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.imports import symbol_by_name
from celery.worker import request as celery_request

from celery_redislock import SingletonTask
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.lease import boottime
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing import promote
from celery_redislock.publishing.message import HEADER
from celery_redislock.receiving import line, parking, sweep
from celery_redislock.receiving.request import LockRequest
from celery_redislock.running.delivery import RECEIPT
from celery_redislock.store.store import Entry
from celery_redislock.testing import hold
from tests.unit.shop import (
    ANOTHER_PROCESS,
    KEY,
    SCOPES,
    Shop,
    body,
    carried,
    debts,
    einfo,
    revoke,
    turned_clock,
)

LOST = WorkerLostError("killed")

since_5_7 = pytest.mark.skipif(
    not hasattr(celery_request.Request, "_worker_lost_info"), reason="this Celery does not know it"
)


def delivered(shop: Shop, call: Any = None, **options: Any) -> LockRequest:
    """Publish a message of a unique task, and receive it."""
    task = shop.unique(body, **{"lock_key": KEY, **options})
    task.apply_async((7,), task_id="t1", **(call or {}))
    return shop.receive()


def started(shop: Shop, call: Any = None, *, pid: int = ANOTHER_PROCESS, **options: Any) -> LockRequest:
    """Let a child run its body, and do nothing more; it was accepted."""

    def sync(account_id: int) -> int:
        shop.die_here()
        return account_id

    task = shop.unique(sync, **{"lock_key": KEY, **options})
    task.apply_async((7,), task_id="t1", **(call or {}))
    request = shop.receive()
    shop.begin(request, pid=pid)
    return request


def token_of(request: LockRequest) -> str:
    """Return the identity of a request's message."""
    return carried(request.message).token


def test_every_delivery_is_a_run_with_a_token_of_its_own_that_leaks_into_no_message(shop: Shop) -> None:
    """Law 1: a redelivery is another run. At the top level its token would leak into a retry's headers."""
    tokens: list[str] = []

    def sync(self: Any, account_id: int) -> None:
        (hold,) = shop.held().values()
        tokens.append(hold.token)
        if len(tokens) == 2:
            raise self.retry(countdown=0)

    shop.unique(sync, bind=True, lock_key=KEY).apply_async((7,), task_id="t1")
    message = shop.message()
    headers = dict(message.headers)
    properties = dict(message.properties)
    of_celery = {"properties", "reply_to", "correlation_id", "hostname", "delivery_info", "args", "kwargs"}
    request = shop.receive(message)
    shop.run(request)
    shop.run(shop.receive(message, redelivered=True))

    assert isinstance(request, symbol_by_name(SingletonTask.Request))
    assert set(request.request_dict) == {*headers, *of_celery}
    assert (message.headers, message.properties) == (headers, properties)
    assert set(shop.message().headers) == set(headers)
    assert [token.partition("/")[0] for token in tokens] == ["t1", "t1"]
    assert len({*tokens, carried(message).token}) == 3


@pytest.mark.parametrize(
    ("options", "call", "ttl", "seconds"),
    [
        ({}, {}, 100, [1, 35, 69, 103, 137, 171, 205, 239]),
        ({"lock": "until_executing"}, {}, 100, [1, 35, 69, 103, 137, 171, 205, 239]),
        ({}, {"countdown": 200}, 300, [1, 101, 201]),
        ({}, {"lock_queue_ttl": 300}, 300, [1, 101, 201]),
        # Until it expires, and no longer than it may run.
        ({}, {"expires": 180}, 100, [1, 35, 69, 103, 137, 171]),
        # Once: what cannot run any more refuses nobody, however long it waits here for its turn.
        ({}, {"expires": 60}, 60, [1]),
        ({}, {"expires": 60, "countdown": 90}, 60, [1]),
        ({}, {"expires": -1, "countdown": 50}, None, []),
        # Nothing is claimed, or a period, which ends by itself.
        (SCOPES["until_expired"], {}, None, []),
        (SCOPES["while_executing"], {}, None, []),
        ({"lock": None}, {}, None, []),
        ({}, {"lock": None}, None, []),
    ],
    ids=str,
)
def test_the_claim_of_a_waiting_message_is_renewed_as_long_as_it_can_run(
    shop: Shop, monkeypatch: Any, options: Any, call: Any, ttl: float | None, seconds: list[int]
) -> None:
    """Law 2: soon first, as it may have waited in its queue until little of its claim was left."""
    let_pass = turned_clock(shop, monkeypatch)
    kept = delivered(shop, call, **{"lock_queue_ttl": 100, **options})
    claims = {(KEY, token) for token, _ in shop.states()}
    shop.store.calls.clear()
    shop.renewed()
    renewed = let_pass(250)
    assert ([second for second, _ in renewed], kept.id) == (seconds, "t1")
    assert {(term.name, term.token) for _, term in renewed} <= claims
    assert [term.ttl for _, term in renewed] == pytest.approx([ttl] * len(seconds), abs=1)
    assert shop.store.calls == ["renew"] * len(seconds)


def test_the_claim_of_a_message_that_the_pool_has_is_renewed_whenever_it_expires(shop: Shop) -> None:
    """It runs in its turn, however late: pools of threads and of greenlets take all that is received."""
    request = delivered(shop, {"expires": 60}, lock_queue_ttl=100)
    request._apply_result = lambda: None
    lease = shop.renewed()[token_of(request)]
    assert (lease.term.ttl, lease.max_hold) == (100, float("inf"))


def test_what_has_a_short_ttl_is_renewed_at_once(shop: Shop, monkeypatch: Any) -> None:
    """Law 1: it would not live until others that were received with it have lasted."""
    firsts: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(watchdog_of(shop.store), "watch", lambda _lease, *, first, **_: firsts.append(first))
        kept = delivered(shop, {"lock_ttl": 0.6}, lock_queue_ttl=6)
    assert firsts == [0.5]
    kept.on_accepted(ANOTHER_PROCESS, time.monotonic())
    (lease,) = shop.renewed_already().values()
    assert lease.token != token_of(kept)
    assert lease.due - boottime() < 0.3


def test_what_is_switched_off_asks_nothing(shop: Shop) -> None:
    """``redislock_enabled``: neither while it waits nor for a dead child."""
    shop.app.conf.redislock_enabled = False
    request = delivered(shop)
    request.on_accepted(ANOTHER_PROCESS, time.monotonic())
    request.on_failure(einfo(LOST))
    assert (shop.renewed(), shop.store.calls) == ({}, [])


@pytest.mark.parametrize("pool", ["threads", "greenlets"])
def test_in_pools_of_one_process_the_lease_is_renewed_once(shop: Shop, monkeypatch: Any, pool: str) -> None:
    """Greenlets give their identity for a process id. Another process is known as one beside them, too."""
    greenlet = object()
    monkeypatch.setitem(sys.modules, "greenlet", SimpleNamespace(getcurrent=lambda: greenlet))
    here = started(shop, pid=os.getpid() if pool == "threads" else id(greenlet))
    assert shop.renewed() == {}
    elsewhere = shop.receive(here.message)
    elsewhere.on_accepted(ANOTHER_PROCESS, time.monotonic())
    assert list(shop.renewed()) == [elsewhere.request_dict["properties"][RECEIPT].token]


@pytest.mark.parametrize("end", ["its result is in", "its result is gone", "the request is gone"])
def test_a_lease_is_renewed_until_the_pool_has_the_result(shop: Shop, end: str) -> None:
    """Not only until ``revoke(terminate=True)``: Celery forgets the request then, and its body goes on."""
    request = started(shop)
    (renewal,) = shop.renewed().values()
    result: Any = SimpleNamespace(ready=lambda: False, terminate=lambda _signal: None)
    request._apply_result = lambda: result
    request.terminate(SimpleNamespace(terminate_job=lambda *_: None))
    assert renewal.held
    if end == "its result is in":
        result = SimpleNamespace(ready=lambda: True)
    elif end == "its result is gone":
        result = None
    else:
        celery_request.task_ready(request)
        del request
        gc.collect()

    assert not renewal.held


def test_a_claim_is_renewed_until_its_message_is_accepted(shop: Shop) -> None:
    """The thread pool refers to no result of its own while the message waits in its queue."""
    request = delivered(shop)
    renewal = shop.renewed()[token_of(request)]
    request._apply_result = weakref.ref(type("Result", (), {})())
    assert renewal.held
    request.on_accepted(os.getpid(), time.monotonic())
    assert not renewal.held


def test_the_main_process_announces_no_loss(shop: Shop, monkeypatch: Any, caplog: Any) -> None:
    """Its request may come before the child has started, or after it has ended."""
    let_pass = turned_clock(shop, monkeypatch)
    _request = started(shop, time_limit=100)
    (renewal,) = shop.renewed().values()
    renewal.learn(None, 0.0, 0.0, ttl=30.0)
    renewal.miss_deadline("no answer in time")
    assert renewal.held
    let_pass(120)  # longer than it may be held
    said = [record for record in caplog.records if record.name == "celery_redislock"]
    assert (renewal.held, renewal.lost, said, shop.renewed()) == (False, False, [], {})


def test_while_the_server_is_away_revoked_messages_do_not_wait_for_it(shop: Shop, monkeypatch: Any) -> None:
    """Law 9: over a thousand of them the main process would miss its heartbeats."""
    request = delivered(shop)
    owed = debts(shop, monkeypatch)
    monkeypatch.setattr(watchdog_of(shop.store), "is_server_away", True)
    shop.store.calls.clear()
    revoke(request)
    assert (shop.store.calls, len(owed)) == ([], 1)
    owed[0]()
    assert shop.held() == {}


@since_5_7
@pytest.mark.parametrize("scope", SCOPES)
def test_a_lost_childs_retry_carries_what_its_message_was_told(shop: Shop, scope: str) -> None:
    """Law 7: it must run, with the options of its call, under a claim that outlives its countdown."""
    options = {**SCOPES[scope], "retry_on_worker_lost": True, "default_retry_delay": 500}
    request = started(shop, {"lock_ttl": 90}, lock_queue_ttl=100, **options)
    request.on_failure(einfo(LOST))

    message = shop.message()
    header = carried(message)
    holds = scope in {"until_executed", "while_executing"}
    assert (message.headers["id"], message.headers["retries"]) == ("t1", 1)
    assert (header.claimed, header.must_run, header.options) == (True, True, {"lock_ttl": 90.0})
    assert (header.token == token_of(request)) is not holds
    if holds:
        claim = shop.holder(KEY)
        assert claim is not None
        assert (claim.token, claim.expires_in) == (header.token, pytest.approx(600, abs=2))


@since_5_7
def test_a_claim_made_late_for_a_lost_childs_retry_does_not_block_it(shop: Shop, monkeypatch: Any) -> None:
    """Laws 7 and 9: the retry does not carry its token, and takes it over by its task id."""
    owed = debts(shop, monkeypatch)
    request = started(shop, retry_on_worker_lost=True, max_retries=3)
    shop.store.failures = 1
    request.on_failure(einfo(LOST))
    for convert in owed:
        convert()
    assert [state for _, state in shop.states()] == ["queued"]
    shop.run()
    assert shop.held() == {}


@pytest.mark.parametrize("is_stored", [False, pytest.param(True, marks=since_5_7)])
@pytest.mark.parametrize("option", ["reject_on_worker_lost", "retry_on_worker_lost"])
def test_a_lease_becomes_no_claim_where_another_has_the_key_or_success_is_stored(
    shop: Shop, option: str, *, is_stored: bool
) -> None:
    """Law 3: the other one keeps it. Law 4: Celery runs nothing again after a success by another run."""
    if is_stored:
        shop.app.backend.store_result("t1", 7, "SUCCESS")
    request = started(shop, acks_late=True, **{option: True})
    if not is_stored:
        shop.store.force_release(KEY)
        shop.store.acquire(KEY, "other/x", 30, facts="{}")
    request.on_failure(einfo(LOST))
    assert shop.states() == ([] if is_stored else [("other/x", None)])
    if is_stored:
        assert (shop.messages(), shop.acks) == ([], ["ack"])


def test_trouble_with_the_server_does_not_stop_the_main_process(shop: Shop, caplog: Any) -> None:
    """Law 9: it serves every other task."""
    request = started(shop)
    shop.store.has_wrong_type(KEY)
    request.on_failure(einfo(LOST))
    assert shop.state("t1") == "FAILURE"
    assert "holds a list, not a lock" in caplog.text


def test_a_lease_that_cannot_be_shortened_is_warned_of(shop: Shop, caplog: Any) -> None:
    """Law 4: after a hard limit it expires ``lock_ttl`` after its last renewal."""
    request = started(shop)
    shop.store.failures = 1
    request.on_timeout(False, 100)
    assert "could not shorten the lease on 'account:7'" in caplog.text


@pytest.mark.parametrize("event", ["accepted", "accepted here", "over"])
@pytest.mark.parametrize("moment", ["before it looks", "before it begins", "after"])
def test_a_claim_whose_message_starts_or_ends_meanwhile_is_renewed_no_more(
    shop: Shop, monkeypatch: Any, event: str, moment: str
) -> None:
    """No renewal begins that nobody ends, and none is missed: the event loop waits for nobody."""
    request = delivered(shop)
    claim = token_of(request)
    happened: list[str] = []
    watchdog = watchdog_of(shop.store)
    watch = watchdog.watch

    def happen() -> None:
        if happened:
            return
        happened.append(event)
        if event == "over":
            revoke(request)
        else:
            request.on_accepted(ANOTHER_PROCESS if event == "accepted" else os.getpid(), time.monotonic())

    def happen_first(*args: Any, **kwargs: Any) -> None:
        happen()
        watch(*args, **kwargs)

    if moment == "before it looks":
        happen()
    elif moment == "before it begins":
        monkeypatch.setattr(watchdog, "watch", happen_first)
    shop.renewed()
    happen()

    renewed = shop.renewed()
    assert claim not in renewed
    assert len(renewed) == (event == "accepted")


def test_a_lease_is_renewed_although_the_thread_looked_as_it_was_accepted(shop: Shop) -> None:
    """The thread saw the message started, and not yet that another process has it."""
    shop.unique(body, lock_key=KEY).apply_async((7,), task_id="t1")
    request = shop.receive(on_ack=shop.renewed)
    request.on_accepted(ANOTHER_PROCESS, time.monotonic())
    assert [token != token_of(request) for token in shop.renewed()] == [True]


@pytest.mark.parametrize("end", [Terminated(15), TimeLimitExceeded(100)], ids=repr)
def test_a_run_that_ends_as_renewal_begins_gets_none(shop: Shop, monkeypatch: Any, end: Exception) -> None:
    """Law 4: a lease that was shortened for a dying child is not made longer again."""
    let_pass = turned_clock(shop, monkeypatch)
    request = started(shop)
    watchdog = watchdog_of(shop.store)
    watch = watchdog.watch

    def end_first(*args: Any, **kwargs: Any) -> None:
        request.on_failure(einfo(end), return_ok=True)
        watch(*args, **kwargs)

    monkeypatch.setattr(watchdog, "watch", end_first)
    assert (shop.renewed(), let_pass(40)) == ({}, [])


def test_a_run_that_others_wait_behind_keeps_its_lease_at_a_hard_time_limit(shop: Shop) -> None:
    """Law 5: never free before the body has really ended; who was parked behind it waits until then."""
    request = started(shop)
    line.wake_at_end(request)
    before = shop.holder(KEY)
    request.on_failure(einfo(TimeLimitExceeded(100)), return_ok=True)
    assert before is not None
    assert (holder := shop.holder(KEY)) is not None
    assert holder.token == before.token


def handed(shop: Shop, **options: Any) -> LockRequest:
    """Receive a message that has waited in line, and was handed its lock."""
    shop.unique(body, **{"lock_key": KEY, "lock": "while_executing", **options}).apply_async(
        (7,), task_id="t1"
    )
    message = shop.message()
    header = carried(message)._replace(parked_at=time.time())
    message.headers[HEADER] = header.dumps()
    shop.store.acquire(KEY, header.token, 60.0, facts='{"state":"queued","line":1}')
    return shop.receive(message)


def test_the_turn_of_a_message_in_hand_is_renewed(shop: Shop) -> None:
    """It may wait here for longer than a minute, behind others in the pool."""
    request = handed(shop)
    assert token_of(request) in shop.renewed()


each_claim = pytest.mark.parametrize(
    ("lock", "name"),
    [("until_executed", KEY), ("until_executing", KEY), ("until_and_while_executing", "queued:" + KEY)],
)


def parked_at_publish(shop: Shop, lock: str, name: str = KEY, **options: Any) -> LockRequest:
    """Receive a message that was parked when it was published, and was handed the lock of this name."""
    shop.unique(body, lock_key=KEY, lock=lock, on_conflict="wait", **options).apply_async((7,), task_id="t1")
    message = shop.message()
    header = carried(message)._replace(parked_at=time.time(), claimed="lock_period" not in options)
    message.headers[HEADER] = header.dumps()
    for held in shop.held():
        shop.store.release(held, header.token, opened_by=header.token)
    shop.store.acquire(name, header.token, 3600.0, facts='{"state":"queued","line":1}')
    return shop.receive(message)


@pytest.mark.parametrize(
    ("lock", "renewed"),
    [
        ("until_executed", {(KEY, 35.0)}),
        ("until_executing", {(KEY, 35.0), ("message:", 35.0)}),
        ("until_and_while_executing", {("queued:" + KEY, 35.0), (KEY, 35.0)}),
    ],
)
def test_one_that_was_parked_at_publish_keeps_its_claim_while_it_is_in_hand(
    shop: Shop, lock: str, renewed: set[tuple[str, float]]
) -> None:
    """And beside it the lock in whose line it may have waited as a run.

    For as long as a hand-off lasts: if this process is killed, the message is sent again soon.
    """
    request = parked_at_publish(shop, lock)
    leases = shop.renewed().values()
    token = carried(request.message).token
    assert {(lease.key.partition("t1/")[0], lease.term.ttl) for lease in leases} == renewed
    assert {lease.term.token for lease in leases} == {token}
    request.on_accepted(ANOTHER_PROCESS, time.monotonic())
    assert not any(lease.term.token == token for lease in shop.renewed_already().values())


@each_claim
@pytest.mark.parametrize("end", ["started", "revoked", "dead child"])
def test_however_one_ends_that_was_parked_at_publish_the_next_one_is_promoted(
    shop: Shop, lock: str, name: str, end: str
) -> None:
    """Once, in the step that ends its claim."""
    request = parked_at_publish(shop, lock, name)
    shop.store.park(name, "next/1", Entry("push", "q", 30.0, '{"state":"queued","line":1}', "x"), nonce="n")
    if end == "started":
        shop.run(request)
    elif end == "revoked":
        revoke(request)
    else:
        request.on_accepted(ANOTHER_PROCESS, time.monotonic())
        request.on_failure(einfo(LOST), return_ok=True)
    assert list(shop.store.queues["q"]) == ["x"]
    assert [hold.token for hold in shop.held().values()] == ["next/1"]


@each_claim
@pytest.mark.parametrize("has_passed", [True, False])
def test_one_that_was_parked_at_publish_begins_its_period_when_it_starts(
    shop: Shop, lock: str, name: str, *, has_passed: bool
) -> None:
    """Its turn is no acceptance. One that waits for the period keeps its place before those behind it."""
    promote.install(shop.app, shop.store)
    request = parked_at_publish(shop, lock, name, lock_period=60.0)
    if not has_passed:
        shop.store._periods[name] = (b"another/1\0{}", boottime() + 60.0)
        shop.store.park(name, "next/1", Entry("hold", "", 60.0, '{"line":1}'), nonce="n", band=2 * 255 + 1)
    shop.run(request)
    if has_passed:
        assert shop.store.periods() == [name]
        return
    assert (shop.states(), shop.messages()) == ([], [])
    assert [waiter.id for waiter in shop.store.waiting(name)[1]] == [token_of(request), "next/1"]


@pytest.mark.parametrize("end", ["done", "put off", "revoked"])
def test_one_that_does_not_run_leaves_its_turn_to_the_next(shop: Shop, monkeypatch: Any, end: str) -> None:
    """Else its key would be held for a minute by nobody."""
    request = handed(shop, lock_period=60.0 if end == "put off" else None)
    token = token_of(request)
    if end == "done":
        shop.store.mark_done(KEY, token, 60.0)
    if end == "put off":
        shop.store._periods[KEY] = (b"another/1\0{}", boottime() + 60.0)
    if end == "revoked":
        revoke(request)
    else:
        shop.run(request)
    assert shop.states() == []


def told(error: Exception | None) -> Callable[[LockRequest], None]:
    """Tell the main process how a child has ended."""
    outcome = (False, None, 0.1) if error is None else (True, einfo(error), 0.1)
    return lambda request: request.on_success(outcome)


def told_without_an_outcome(request: LockRequest) -> None:
    """As on threads after SystemExit."""
    with pytest.raises(TypeError):
        request.on_success(einfo(SystemExit()))


def told_of_a_limit_alone(request: LockRequest) -> None:
    """As on gevent."""
    request.on_timeout(False, 1.0)


TOLD: dict[str, Callable[[LockRequest], None]] = {
    "returned": told(None),
    "failed": told(ValueError("failed")),
    "retried": told(Retry(when=5)),
    "ignored": told(Ignore()),
    "rejected": told(Reject("not wanted")),
    "requeued": told(Reject("not now", requeue=True)),
    "SystemExit": told_without_an_outcome,
    "hard limit": told_of_a_limit_alone,
}


@pytest.mark.parametrize("is_parked_first", [True, False])
@pytest.mark.parametrize(
    ("end", "options", "comes_again"),
    [
        *((end, {"acks_late": late}, late and end == "requeued") for end in TOLD for late in (False, True)),
        ("hard limit", {"acks_late": True, "acks_on_failure_or_timeout": False}, True),
    ],
    ids=str,
)
def test_a_run_that_had_ended_when_the_next_was_parked_leaves_a_claim_only_if_it_comes_again(
    shop: Shop, end: str, options: dict[str, Any], *, comes_again: bool, is_parked_first: bool
) -> None:
    """The claim that is made for one that is about to begin is released when its end is heard of.

    With threads and greenlets that may be before it is known that another one waits behind it. One that was
    acknowledged when it began cannot be requeued.
    """
    request = delivered(shop, lock="while_executing", **options)
    token, _, facts = line.claim_ahead(request).partition("\0")
    request.on_accepted(os.getpid(), time.monotonic())
    shop.child(request)
    shop.store.acquire(KEY, token, 10.0, facts=facts)
    steps = [partial(line.wake_at_end, request), partial(TOLD[end], request)]
    for step in steps if is_parked_first else reversed(steps):
        step()
    assert [held for held, _ in shop.states()] == [token] * comes_again


@pytest.mark.parametrize("is_refused_first", [True, False])
def test_a_message_whose_parking_is_unanswered_runs_once(
    shop: Shop, monkeypatch: Any, *, is_refused_first: bool
) -> None:
    """Law 9: it may be parked, and is published, or run, beside that; whoever comes second does nothing."""
    promote.install(shop.app, shop.store)
    runs: list[int] = []
    task = shop.noting(runs, lambda task: task.request.retries, lock_key=KEY, lock="while_executing")
    park = shop.store.park

    def unanswered(*args: Any, **more: Any) -> Any:
        park(*args, **more)
        raise LockUnavailable("memory", "park", "no answer in time")

    monkeypatch.setattr(shop.store, "park", unanswered)
    task.delay(7)
    if is_refused_first:
        with hold(task, 7):
            shop.run()
    else:
        consumer = SimpleNamespace(hostname="here", connection_errors=(), event_dispatcher=None)
        message = shop.message()
        line.is_parked(KEY)
        with hold(task, 7):
            assert not parking._park_received(task, consumer, message, KEY)
        shop.run(shop.receive(message))
    while messages := shop.messages():
        for message in messages:
            shop.run(shop.receive(message))
        shop.store.sweep()

    assert runs == [0]
    assert shop.states() == []


def test_one_that_has_waited_leaves_a_mark_for_a_while(shop: Shop) -> None:
    """The answer to its parking may have been lost, and its message been published beside that."""
    request = handed(shop)
    token = token_of(request)
    shop.run(request)
    assert shop.store.marks() == {(KEY, token): "done"}
    shop.store.let_pass(400.0)
    assert shop.store.marks() == {}


@pytest.mark.parametrize(
    ("declared", "asked", "looks"),
    [
        ({"lock_rate": "1/s"}, {}, True),
        ({}, {"lock_rate": "1/s"}, True),
        ({"lock": "while_executing", "lock_period": 9}, {}, True),
        ({}, {"lock_period": 9}, True),
        ({"lock_period": 9}, {}, False),
        ({}, {"lock_ttl": 60}, False),
        ({}, {}, False),
    ],
)
def test_the_end_of_a_run_with_a_rate_or_a_period_lets_lines_be_looked_at_at_once(
    shop: Shop, declared: dict[str, Any], asked: dict[str, Any], looks: bool
) -> None:
    """The next one may start sooner than the sweep knows: nobody polls for that. Else none looks."""
    shop.unique(body, **declared).apply_async((7,), **asked)
    assert (shop.receive().at_end is sweep.look_soon) is looks


@pytest.mark.parametrize(
    ("options", "looks"), [({"lock_period": 9}, True), ({"lock_rate": "1/s"}, True), ({}, False)]
)
def test_the_end_that_wakes_the_next_in_line_lets_lines_be_looked_at_if_that_waits_for_a_time(
    shop: Shop, monkeypatch: Any, options: dict[str, Any], looks: bool
) -> None:
    """Of a task whose messages are parked behind it, this is what is done at its end."""
    rung: list[bool] = []
    monkeypatch.setattr(line, "look_soon", lambda: rung.append(True))
    shop.unique(body, lock="while_executing", **options).delay(7)
    request = shop.receive()
    line.wake_at_end(request)
    shop.run(request)
    assert rung == [True] * looks

"""The worker's main process: it knows each run's token, renews, and settles for children that died."""

import gc
import json
import math
import os
import signal
import sys
import time
import weakref
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject
from celery.utils.imports import symbol_by_name
from celery.worker import request as celery_request
from celery.worker.strategy import default

from celery_redislock import SingletonTask
from celery_redislock.locks.clock import boottime
from celery_redislock.locks.process import name_of
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER
from celery_redislock.receiving import request as receiving
from celery_redislock.receiving.line import LINE
from celery_redislock.receiving.request import DYING_TTL, LockRequest
from celery_redislock.running.run import FROM_MAIN_PROCESS
from tests.unit.shop import KEY, SCOPES, Shop, body, carried, debts, einfo

#: A process id nobody has.
ANOTHER_PROCESS = 2**22 + 1
#: Celery treats a child that exits like one that was killed, and knows ``retry_on_worker_lost``.
EXIT_IS_LOSS = hasattr(celery_request.Request, "_worker_lost_info")
LOST = WorkerLostError("killed")
HOLDING = {"until_executed", "while_executing"}


def delivered(shop: Shop, call: Any = None, **options: Any) -> LockRequest:
    """Publish a message of a unique task, and receive it."""
    task = shop.unique(body, **{"lock_key": KEY, **options})
    task.apply_async((7,), task_id="t1", **(call or {}))
    return shop.receive()


def token_of(request: LockRequest) -> str:
    """Return the identity of a request's message."""
    return carried(request.message).token


def started(shop: Shop, request: LockRequest, *, pid: int = ANOTHER_PROCESS) -> None:
    """Do what a child does before it dies: the claim becomes a lease, and the main process learns of it."""
    lock, running, options = request._what_is_locked()  # type: ignore[misc]  # it is locked
    claim = token_of(request) if HEADER in request.message.headers else None
    if running is lock or request.task.acks_late:
        about = running.facts("running", claim)
        shop.store.acquire(running.key, request._run_token, 30, facts=about, instead_of=claim)
    if options.scope.ends == "start" and claim:  # type: ignore[union-attr]  # as above
        shop.store.release(KEY, claim)
    request.on_accepted(pid, time.monotonic())


def lasts() -> None:
    """Let what is in line be there for long enough: what one look finds, the next takes out."""
    LINE.look()
    LINE.look()


def watched(shop: Shop, token: str) -> Any:
    """Return the renewal of a hold that has lasted, ``None`` if it is not renewed."""
    lasts()
    renewal = watchdog_of(shop.store)._watched.get(token)
    return renewal if renewal is not None and renewal.held else None


# --- receipt ---------------------------------------------------------------------------------


def test_every_delivery_has_a_token_of_its_own_which_travels_in_a_copy_of_the_properties(shop: Shop) -> None:
    """Law 1: a redelivery is another run. At the top level it would leak into a retry's headers."""
    request = delivered(shop)
    message = request.message
    names = {*message.headers, "properties", "reply_to", "correlation_id", "hostname", "delivery_info"}

    token, received_at, serializer, process = request.request_dict["properties"][FROM_MAIN_PROCESS]

    assert isinstance(request, symbol_by_name(SingletonTask.Request))
    assert token == request._run_token != shop.receive(message)._run_token
    assert token.startswith("t1/")
    assert time.time() - received_at < 60
    assert (serializer, process) == ("json", name_of(os.getpid()))
    assert FROM_MAIN_PROCESS not in message.properties
    assert set(request.request_dict) == names | {"args", "kwargs"}


@pytest.mark.parametrize(
    ("lock", "countdown", "retries"),
    [
        ("until_executed", None, False),
        ("until_executing", 200, False),
        ("until_executed", 10, True),
        ("while_executing", 10, True),
    ],
)
def test_the_claim_of_a_waiting_message_is_renewed(
    shop: Shop, lock: str, countdown: int | None, *, retries: bool
) -> None:
    """Prefetched, for its ETA, or a retry (law 7), whatever scope that holds its key by."""

    def again(self: Any, account_id: int) -> None:
        raise self.retry(countdown=countdown)

    task = shop.unique(again, bind=True, lock_key=KEY, lock=lock, lock_queue_ttl=100)
    task.apply_async((7,), countdown=None if retries else countdown)
    if retries:
        shop.run()

    request = shop.receive()

    assert watched(shop, token_of(request)).term.ttl == pytest.approx(100 + (countdown or 0), abs=1)


@pytest.mark.parametrize("countdown", [None, 90])
def test_the_claim_of_a_waiting_message_is_renewed_once_if_the_message_expires_before_it(
    shop: Shop, monkeypatch: Any, countdown: int | None
) -> None:
    """Law 2: what cannot run any more refuses nobody, however long it waits here for its turn."""
    task = shop.unique(body, lock_key=KEY, lock_queue_ttl=100)
    task.apply_async((7,), countdown=countdown, expires=60)
    request = shop.receive()
    shop.store.calls.clear()

    lease, watchdog = watched(shop, token_of(request)), watchdog_of(shop.store)
    now = lease.since
    monkeypatch.setattr(watchdog, "_clock", lambda: now)
    monkeypatch.setattr(receiving, "boottime", lambda: now)
    for second in range(90):
        now = lease.since + second
        watchdog._do_what_is_due()

    assert lease.term.ttl == pytest.approx(60, abs=1)
    assert shop.store.calls.count("renew") == 1


def test_the_claim_of_a_message_that_expires_late_is_renewed_as_any_other(shop: Shop) -> None:
    """It may outlive its claim in a worker that is busy; when it has expired nobody renews that any more."""
    shop.unique(body, lock_key=KEY, lock_queue_ttl=100).apply_async((7,), expires=200)
    request = shop.receive()

    lease = watched(shop, token_of(request))

    assert (lease.term.ttl, lease.max_hold) == (100.0, pytest.approx(200, abs=1))


def test_the_claim_of_a_message_that_the_pool_has_is_renewed_whenever_it_expires(shop: Shop) -> None:
    """It runs in its turn, however late: pools of threads and of greenlets take all that is received."""
    shop.unique(body, lock_key=KEY, lock_queue_ttl=100).apply_async((7,), expires=60)
    request = shop.receive()
    request._apply_result = lambda: None

    lease = watched(shop, token_of(request))

    assert (lease.term.ttl, lease.max_hold) == (100.0, math.inf)


def test_the_claim_of_a_message_that_has_expired_is_not_renewed(shop: Shop) -> None:
    """Its worker drops it when its turn comes."""
    shop.unique(body, lock_key=KEY).apply_async((7,), expires=-1, countdown=50)
    request = shop.receive()

    assert watched(shop, token_of(request)) is None
    assert shop.states() == [(token_of(request), "queued")]


@pytest.mark.parametrize(
    "options",
    [
        SCOPES["until_expired"],
        SCOPES["while_executing"],
        {"lock": None},
        {"call": {"lock": None}},
        {"call": {}, "enabled": False},
    ],
    ids=str,
)
def test_no_other_claim_is_renewed_and_what_locks_nothing_asks_nothing(
    shop: Shop, options: dict[str, Any]
) -> None:
    """A period ends by itself; what holds nothing has nothing to renew."""
    given = dict(options)
    shop.app.conf.redislock_enabled = given.pop("enabled", True)
    request = delivered(shop, **given)
    shop.store.calls.clear()

    request.on_accepted(os.getpid(), time.monotonic())
    if given.get("lock") not in {"until_expired", "while_executing"}:
        request.on_failure(einfo(LOST))
    lasts()

    assert not watchdog_of(shop.store)._watched
    assert shop.store.calls == []


def test_a_wrongly_declared_task_is_received_and_left_to_the_child(shop: Shop) -> None:
    """The main process serves every other task as well."""
    task = shop.unique(body, lock_key=KEY)
    task.delay(7)
    task.lock_ttl = "long"

    shop.receive()._announce_revoked("revoked", False, None, False)

    assert shop.acks == ["ack"]


# --- renewal of the lease --------------------------------------------------------------------


@pytest.mark.parametrize("acks_late", [False, True])
@pytest.mark.parametrize("scope", SCOPES)
def test_the_lease_of_another_process_is_renewed_here_too(shop: Shop, scope: str, *, acks_late: bool) -> None:
    """A child that keeps the interpreter in C code cannot; in scopes without one, the message's lease."""
    request = delivered(shop, time_limit=100, acks_late=acks_late, **SCOPES[scope])

    started(shop, request)

    watch = watched(shop, request._run_token)
    assert watched(shop, token_of(request)) is None
    assert (watch is not None) == (scope in HOLDING or acks_late)
    if watch is not None:
        name = KEY if scope in HOLDING else f"message:{token_of(request)}"
        assert (watch.key, watch.term.ttl, watch.max_hold) == (name, 30.0, 110.0)


@pytest.mark.parametrize("pool", ["threads", "greenlets"])
def test_in_pools_of_one_process_the_lease_is_renewed_once(shop: Shop, monkeypatch: Any, pool: str) -> None:
    """Greenlets give their identity for a process id. Another process is known as one beside them, too."""
    greenlet = object()
    monkeypatch.setitem(sys.modules, "greenlet", SimpleNamespace(getcurrent=lambda: greenlet))
    request = delivered(shop)

    started(shop, request, pid=os.getpid() if pool == "threads" else id(greenlet))

    assert watched(shop, request._run_token) is None
    request.on_accepted(ANOTHER_PROCESS, time.monotonic())
    assert watched(shop, request._run_token) is not None


@pytest.mark.parametrize("end", ["its result is in", "its result is gone", "the request is gone"])
def test_a_lease_is_renewed_until_the_pool_has_the_result(shop: Shop, end: str) -> None:
    """Not only until ``revoke(terminate=True)``: Celery forgets the request then, and its body goes on."""
    request = delivered(shop)
    started(shop, request)
    renewal = watched(shop, request._run_token)
    result: Any = SimpleNamespace(ready=lambda: False)
    request._apply_result = lambda: result
    request._announce_revoked("terminated", True, 15, False)
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
    renewal = watched(shop, token_of(request))
    request._apply_result = weakref.ref(type("Result", (), {})())

    assert renewal.held
    request.on_accepted(os.getpid(), time.monotonic())
    assert not renewal.held


def test_the_main_process_announces_no_loss(shop: Shop, caplog: Any) -> None:
    """Its request may come before the child has started, or after it has ended."""
    request = delivered(shop)
    started(shop, request)
    renewal = watched(shop, request._run_token)

    renewal.learn(None, 0.0, 0.0)
    renewal.miss_deadline("no answer in time")
    assert renewal.held
    renewal.max_hold = 0.0
    watchdog_of(shop.store)._may_renew(renewal, boottime())

    said = [record for record in caplog.records if record.name == "celery_redislock"]
    assert (renewal.held, renewal.lost, said) == (False, False, [])
    assert watched(shop, request._run_token) is None


@pytest.mark.parametrize("key", ["\ud800", KEY])
def test_a_header_that_no_server_could_take_harms_nobody(shop: Shop, key: str) -> None:
    """Laws 1 and 3: each renewal it is part of would fail, and cost this process all its locks.

    The message runs as one without a header, by its task's own options.
    """
    shop.unique(body, lock_key=KEY).apply_async((7,), task_id="t1")
    message = shop.message()
    shop.store.force_release(KEY)
    token = "t1/x" if key != KEY else "t1/\ud800"
    header = {"v": 1, "k": key, "t": token, "c": 1, "o": {"lock_queue_ttl": 0.001}}
    message.headers[HEADER] = json.dumps(header)

    request = shop.receive(message)

    assert watched(shop, token) is None
    assert shop.run(request) == 7
    assert shop.held() == {}


# --- revoked, expired, rejected --------------------------------------------------------------


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("scope", ["until_executed", "until_executing", "until_expired"])
@pytest.mark.parametrize("still_locked", [True, False])
def test_a_message_that_is_revoked_before_it_ran_releases_claim_and_period_first(
    shop: Shop, scope: str, *, expired: bool, still_locked: bool
) -> None:
    """Laws 4 and 5; also where a deploy has switched the task's lock off meanwhile."""
    request = delivered(shop, **{**SCOPES[scope], "lock_period": 50})
    if not still_locked:
        request.task.lock = None
        request._locked = None
    seen = []
    storing = request.task.backend.mark_as_revoked

    def store(*args: Any, **kwargs: Any) -> Any:
        seen.append(shop.holder(KEY))
        return storing(*args, **kwargs)

    request.task.backend.mark_as_revoked = store
    request._announce_revoked("revoked", False, None, expired)

    assert seen == [None]
    assert watched(shop, token_of(request)) is None
    assert (shop.state("t1"), shop.store.marks()) == ("REVOKED", {})


@pytest.mark.parametrize("was", ["redelivered", "published again", "a retry"])
@pytest.mark.parametrize("scope", ["until_executed", "until_executing", "until_expired"])
def test_a_revoked_copy_or_retry_leaves_the_period_of_what_ran(shop: Shop, scope: str, was: str) -> None:
    """Laws 2 and 8: a copy may have run with success. A retry ends the period unless that is kept."""

    def sync(self: Any, account_id: int) -> None:
        if was == "a retry":
            raise self.retry(countdown=300)

    options = {**SCOPES[scope], "lock_period": 3000, "lock_period_on_failure": "keep"}
    if was != "a retry":
        del options["lock_period_on_failure"]
    task = shop.unique(sync, bind=True, lock_key=KEY, **options)
    task.apply_async((7,), task_id="t1")
    message = shop.message()
    shop.run(shop.receive(message))
    if was == "a retry":
        message = shop.message()
    elif was == "published again":
        message.headers[HEADER] = carried(message)._replace(was_delivered=True).dumps()

    shop.receive(message, redelivered=was == "redelivered")._announce_revoked("revoked", False, None, False)

    assert [state for _, state in shop.states()] == ["period"] * (scope == "until_expired")
    assert task.delay(7).is_duplicate


def test_a_redelivered_message_that_is_revoked_leaves_no_claim(shop: Shop) -> None:
    """Law 4: whether a copy of it runs or not, nothing will come for this claim."""
    shop.unique(body, lock_key=KEY).apply_async((7,), task_id="t1")

    shop.receive(redelivered=True)._announce_revoked("revoked", False, None, False)

    assert shop.held() == {}


def test_a_claim_its_publisher_did_not_learn_of_ends_with_its_revoked_message(shop: Shop) -> None:
    """Law 4: the message says that it has none, and the server has it all the same."""
    shop.unique(body, lock_key=KEY).apply_async((7,), task_id="t1")
    message = shop.message()
    message.headers[HEADER] = carried(message)._replace(claimed=False).dumps()

    shop.receive(message)._announce_revoked("revoked", False, None, False)

    assert shop.held() == {}


def test_while_the_server_is_away_revoked_messages_do_not_each_wait_for_it(
    shop: Shop, monkeypatch: Any
) -> None:
    """Law 9: over a thousand of them the main process would miss its heartbeats."""
    request = delivered(shop)
    owed = debts(shop, monkeypatch)
    monkeypatch.setattr(type(watchdog_of(shop.store)), "is_server_away", True)
    shop.store.calls.clear()

    request._announce_revoked("revoked", False, None, False)

    assert (shop.store.calls, len(owed)) == ([], 1)
    owed[0]()
    assert shop.held() == {}


def test_a_terminated_run_keeps_its_lease_until_its_body_has_ended(shop: Shop) -> None:
    """Law 5: the body may go on for seconds."""
    request = delivered(shop)
    started(shop, request)

    request._announce_revoked("terminated", True, signal.SIGTERM, False)
    assert shop.states() == [(request._run_token, "running")]
    request.on_failure(einfo(Terminated(signal.SIGTERM)))

    assert shop.held() == {}


@pytest.mark.parametrize("options", [{}, SCOPES["until_expired"], {"lock_period": 50}], ids=str)
def test_a_message_whose_eta_is_no_time_leaves_no_claim_and_no_period(
    shop: Shop, options: dict[str, Any]
) -> None:
    """Celery's strategy rejects it before any other hook."""
    task = shop.unique(body, lock_key=KEY, **options)
    no_time = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
    task.apply_async((7,), task_id="t1", eta=no_time)
    consumer = MagicMock(app=shop.app, hostname="here", event_dispatcher=None, disable_rate_limits=True)
    message = shop.message()

    default(task, shop.app, consumer)(
        message, None, lambda *_: None, lambda *_: shop.acks.append("reject"), []
    )

    assert shop.acks == ["reject"]
    assert shop.holder(KEY) is None
    assert watched(shop, carried(message).token) is None


@pytest.mark.parametrize("how", ["requeued", "rejected by its run"])
def test_a_message_that_is_requeued_or_has_run_keeps_what_it_holds(shop: Shop, how: str) -> None:
    """Law 7; and what was accepted stands for its period, however its run ends."""
    request = delivered(shop, **SCOPES["until_expired" if how != "requeued" else "until_executed"])

    if how == "requeued":
        request.reject(requeue=True)
    else:
        request.on_accepted(os.getpid(), time.monotonic())
        request.on_failure(einfo(Reject("not wanted", requeue=False)))

    assert len(shop.states()) == 1


# --- dead children ---------------------------------------------------------------------------

DEATHS = [LOST, Terminated(15), pytest.param(SystemExit(1), marks=pytest.mark.skipif(
    not EXIT_IS_LOSS, reason="this Celery cannot store such an error"))]  # fmt: skip


@pytest.mark.parametrize("error", DEATHS, ids=repr)
@pytest.mark.parametrize("has_started", [True, False])
@pytest.mark.parametrize("scope", SCOPES)
def test_what_a_dead_child_held_is_released_before_its_outcome_is_stored(
    shop: Shop, scope: str, error: BaseException, *, has_started: bool
) -> None:
    """Laws 4 and 5: claim or lease, whichever is there, and the period. It is settled once."""
    request = delivered(shop, acks_late=True, **SCOPES[scope])
    if has_started:
        started(shop, request)
    seen = []

    def store(*_: Any, **__: Any) -> None:
        seen.append(shop.states())

    request.task.backend.mark_as_failure = request.task.backend.mark_as_revoked = store
    request.on_failure(einfo(error))

    assert seen == [[]]
    shop.store.calls.clear()
    request.on_failure(einfo(error))
    assert shop.store.calls == []
    assert shop.store.marks() == {}


def test_an_ordinary_error_was_settled_by_the_child(shop: Shop) -> None:
    """Law 10: the main process asks nothing then."""
    request = delivered(shop)
    started(shop, request)
    shop.store.calls.clear()

    request.on_failure(einfo(ValueError("x")), return_ok=True)

    assert shop.states() == [(request._run_token, "running")]
    assert shop.store.calls == []


@pytest.mark.parametrize("error", DEATHS, ids=repr)
@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize("ignored", [True, False])
def test_a_requeued_message_finds_the_lease_as_its_claim(
    shop: Shop, error: BaseException, *, has_header: bool, ignored: bool
) -> None:
    """Law 7: after a loss, or a run cancelled for a lost connection, it is delivered again and runs."""
    task = shop.unique(body, lock_key=KEY, acks_late=True, reject_on_worker_lost=True, lock_queue_ttl=200)
    publish = (
        task.apply_async if has_header else lambda *args, **kw: shop.app.send_task(task.name, *args, **kw)
    )
    publish((7,), task_id="t1", ignore_result=ignored)
    message = shop.message()
    request = shop.receive(message)
    started(shop, request)
    request._already_cancelled = isinstance(error, Terminated)

    request.on_failure(einfo(error))

    (claim,) = shop.held().values()
    assert (claim.owner, claim.state, claim.facts.get("ignored", False)) == ("t1", "queued", ignored)
    assert not has_header or claim.token == carried(message).token
    assert claim.expires_in == pytest.approx(200, abs=0.9)
    assert shop.acks == ([] if isinstance(error, Terminated) else ["requeue"])
    shop.run(shop.receive(message, redelivered=True))
    assert (shop.acks[-1], shop.held(), shop.messages()) == ("ack", {}, [])


@pytest.mark.parametrize(
    "options",
    [
        {"acks_late": True},
        {"reject_on_worker_lost": True},
        {"acks_late": True, "reject_on_worker_lost": True, "retry_on_worker_lost": True, "max_retries": 0},
    ],
    ids=["not asked for", "acknowledged early", "after its last retry"],
)
def test_a_message_that_is_not_requeued_leaves_no_claim(shop: Shop, options: dict[str, Any]) -> None:
    """Law 4: nobody would take it over."""
    if "max_retries" in options and not EXIT_IS_LOSS:
        pytest.skip("this Celery does not know retry_on_worker_lost, and requeues it")
    request = delivered(shop, **options)
    started(shop, request)

    request.on_failure(einfo(LOST))

    assert (shop.acks[-1:], shop.held()) == (["ack"], {})


@pytest.mark.skipif(not EXIT_IS_LOSS, reason="this Celery does not know retry_on_worker_lost")
@pytest.mark.parametrize("max_retries", [3, 0])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_retry_for_a_lost_child_carries_the_claim(shop: Shop, scope: str, max_retries: int) -> None:
    """Law 7: made before Celery publishes it, so that it never blocks itself; after the last one, none."""
    options = {**SCOPES[scope], "retry_on_worker_lost": True, "max_retries": max_retries}
    request = delivered(shop, call={"lock_ttl": 90}, **options)
    started(shop, request)

    request.on_failure(einfo(LOST))

    messages, period = shop.messages(), [(token_of(request), "period")] * (scope == "until_expired")
    if not max_retries:
        assert (messages, shop.states()) == ([], [])  # the job has failed, and its period ends
        return
    (message,) = messages
    header = carried(message)
    assert (message.headers["id"], message.headers["retries"]) == ("t1", 1)
    assert (header.must_run, header.options) == (True, {"lock_ttl": 90.0})
    assert shop.states() == ([(header.token, "queued")] if scope in HOLDING else period)
    assert header.claimed
    assert (header.token == token_of(request)) == (scope not in HOLDING)
    shop.run(shop.receive(message))
    assert shop.states() == period


@pytest.mark.skipif(not EXIT_IS_LOSS, reason="this Celery does not know retry_on_worker_lost")
def test_a_claim_for_a_lost_childs_retry_lasts_beyond_its_countdown(shop: Shop) -> None:
    """``lock_queue_ttl``: a claim outlives its message's countdown by that."""
    request = delivered(shop, retry_on_worker_lost=True, default_retry_delay=500, lock_queue_ttl=100)
    started(shop, request)

    request.on_failure(einfo(LOST))

    claim = shop.holder(KEY)
    assert claim is not None
    assert 590 < claim.expires_in <= 600


@pytest.mark.skipif(not EXIT_IS_LOSS, reason="this Celery does not know retry_on_worker_lost")
def test_a_claim_that_was_made_late_for_a_lost_childs_retry_does_not_block_it(
    shop: Shop, monkeypatch: Any
) -> None:
    """Laws 7 and 9: the retry does not carry its token, and takes it over by its task id."""
    owed = debts(shop, monkeypatch)
    request = delivered(shop, retry_on_worker_lost=True, max_retries=3)
    started(shop, request)
    shop.store.failures = 1

    request.on_failure(einfo(LOST))
    for convert in owed:
        convert()
    assert [state for _, state in shop.states()] == ["queued"]
    shop.run()

    assert shop.held() == {}


@pytest.mark.parametrize("how", ["released by its run", "taken by somebody else", "another run's success"])
@pytest.mark.parametrize(
    "options", [{"reject_on_worker_lost": True}, {"retry_on_worker_lost": True}], ids=str
)
def test_a_lease_becomes_no_claim_where_it_is_gone_or_celery_acknowledges_its_message(
    shop: Shop, options: dict[str, Any], how: str
) -> None:
    """Law 3: nothing is acquired. Law 4: where SUCCESS is stored for the id, Celery runs nothing again."""
    if how == "another run's success" and not EXIT_IS_LOSS:
        pytest.skip("this Celery asks no backend then")
    request = delivered(shop, acks_late=True, **options)
    if how == "another run's success":
        shop.app.backend.store_result("t1", 7, "SUCCESS")
    started(shop, request)
    if how != "another run's success":
        shop.store.force_release(KEY)
    if how == "taken by somebody else":
        shop.store.acquire(KEY, "other/x", 30, facts="{}")

    request.on_failure(einfo(LOST))

    assert shop.states() == [("other/x", None)] * (how == "taken by somebody else")
    if how == "another run's success":
        assert (shop.messages(), shop.acks) == ([], ["ack"])


@pytest.mark.parametrize("trouble", ["away", "a list"])
def test_trouble_with_the_server_does_not_stop_the_main_process(
    shop: Shop, monkeypatch: Any, caplog: Any, trouble: str
) -> None:
    """Law 9: it serves every other task; what the server does not answer is owed."""
    owed = debts(shop, monkeypatch)
    request = delivered(shop)
    started(shop, request)
    if trouble == "away":
        shop.store.failures = float("inf")
    else:
        shop.store.has_wrong_type(KEY)

    request.on_failure(einfo(LOST))

    assert shop.state("t1") == "FAILURE"
    assert ("holds a list, not a lock" in caplog.text) == (trouble == "a list")
    shop.store.failures = 0
    for release in owed:
        release()
    assert (shop.held() == {}) == (trouble == "away")


# --- time limits -----------------------------------------------------------------------------

#: Every way to have a message that met its hard limit requeued.
REQUEUES = [{"acks_on_failure_or_timeout": False}]
if hasattr(SingletonTask, "acks_on_timeout"):
    REQUEUES.append({"acks_on_timeout": False})


def time_out(request: LockRequest) -> None:
    """Call both hooks of a hard limit: which of them comes differs between Celery 5.5 and 5.7."""
    request.on_timeout(False, 100)
    request.on_failure(einfo(TimeLimitExceeded(100)), return_ok=True)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_hard_limit_shortens_the_lease_and_releases_only_a_period(shop: Shop, scope: str) -> None:
    """Law 5: the hook comes before the child is dead, and freed at once two bodies would overlap."""
    request = delivered(shop, acks_late=True, **SCOPES[scope])
    started(shop, request)

    request.on_timeout(True, 50)  # the soft one changes nothing
    assert watched(shop, request._run_token) is not None
    time_out(request)

    leases = {hold.token: hold.expires_in for hold in shop.held().values()}
    assert leases[request._run_token] == pytest.approx(DYING_TTL, abs=0.9)
    assert watched(shop, request._run_token) is None
    assert set(leases) == {request._run_token}


@pytest.mark.parametrize("requeues", REQUEUES, ids=str)
def test_a_timed_out_message_that_is_requeued_runs_when_the_child_is_dead(
    shop: Shop, requeues: dict[str, bool]
) -> None:
    """Law 8: it waits for the lease of the first run, and is not done although that run has failed."""
    request = delivered(shop, acks_late=True, **requeues)
    started(shop, request)
    time_out(request)
    assert shop.acks == ["requeue"]

    assert isinstance(shop.run(shop.receive(request.message, redelivered=True)), Ignore)
    shop.store.let_pass(DYING_TTL + 1)

    assert shop.run() == 7
    assert shop.held() == {}


@pytest.mark.parametrize("requeues", [False, True])
def test_a_child_timed_out_before_it_started_leaves_a_claim_only_for_a_requeued_message(
    shop: Shop, *, requeues: bool
) -> None:
    """Laws 4 and 7: killed in ``before_start``."""
    request = delivered(shop, acks_late=True, acks_on_failure_or_timeout=not requeues)

    request.on_timeout(False, 100)

    assert [state for _, state in shop.states()] == ["queued"] * requeues


def test_a_lease_that_cannot_be_shortened_is_warned_of(shop: Shop, caplog: Any) -> None:
    """Law 4: it expires ``lock_ttl`` after its last renewal."""
    request = delivered(shop)
    started(shop, request)
    shop.store.failures = 1

    request.on_timeout(False, 100)

    assert "could not shorten the lease on 'account:7'" in caplog.text


def test_a_message_that_has_left_is_watched_no_more(shop: Shop) -> None:
    """Law 10: a worker keeps nothing of the messages it received before."""
    task = shop.unique(body, lock_key=KEY)
    for number in range(3):
        task.apply_async((number,))
        shop.run()

    assert watchdog_of(shop.store)._watched == {}


@pytest.mark.parametrize(
    ("call", "ttl", "at_once", "later"),
    [({}, 60, [], [1.0]), ({}, 6, [0.5], [0.5]), ({"lock_queue_ttl": 3}, 60, [0.25], [0.25])],
    ids=str,
)
def test_a_claim_is_renewed_soon_after_its_message_was_received(
    shop: Shop, monkeypatch: Any, call: dict[str, Any], ttl: int, at_once: list[float], later: list[float]
) -> None:
    """Law 2: the message may have waited in its queue until little of its claim was left.

    What has no time to stand in line is renewed at once.
    """
    firsts: list[float] = []
    watchdog = watchdog_of(shop.store)
    monkeypatch.setattr(watchdog, "watch", lambda _lease, *, first, **_: firsts.append(first))
    request = delivered(shop, call=call, lock_queue_ttl=ttl)

    assert firsts == at_once
    lasts()
    assert firsts == later
    assert request is not None


@pytest.mark.parametrize("options", [{"lock_ttl": 0.6}, {"call": {"lock_ttl": 0.6}}], ids=str)
def test_a_lease_of_a_short_ttl_is_renewed_at_once(shop: Shop, options: dict[str, Any]) -> None:
    """Law 1: it would not live until it has left the line."""
    request = delivered(shop, **options)

    started(shop, request)

    assert watchdog_of(shop.store)._watched[request._run_token].due - boottime() < 0.3


# --- what happens while the line's thread is at it -------------------------------------------


@pytest.mark.parametrize("event", ["accepted", "accepted here", "over"])
@pytest.mark.parametrize("moment", ["before it looks", "once it has looked", "before it begins", "after"])
def test_a_claim_whose_message_starts_or_ends_meanwhile_is_renewed_no_more(
    shop: Shop, monkeypatch: Any, event: str, moment: str
) -> None:
    """No renewal begins that nobody ends, and none is missed: the event loop waits for nobody."""
    request = delivered(shop)
    watchdog, happened = watchdog_of(shop.store), []

    def happen() -> None:
        if happened:
            return
        happened.append(event)
        if event == "over":
            request._end()
        else:
            request.on_accepted(ANOTHER_PROCESS if event == "accepted" else os.getpid(), time.monotonic())

    def before(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kw: (happen(), real(*args, **kw))[1])

    if moment == "before it looks":
        before(request, "leave_line")
    elif moment == "once it has looked":
        before(request, "_what_is_locked")
    elif moment == "before it begins":
        before(watchdog, "watch")
    lasts()
    happen()

    assert watched(shop, token_of(request)) is None
    assert (watched(shop, request._run_token) is not None) == (event == "accepted")


def test_a_lease_is_renewed_although_the_line_was_left_as_it_was_accepted(
    shop: Shop, monkeypatch: Any
) -> None:
    """The thread saw the message started, and not yet that another process has it."""
    request, module = delivered(shop), sys.modules[LockRequest.__module__]
    monkeypatch.setattr(module, "_is_another_process", lambda _pid: lasts() or True)

    request.on_accepted(ANOTHER_PROCESS, time.monotonic())

    assert watched(shop, request._run_token) is not None


def test_a_run_that_ends_as_its_renewal_begins_is_not_renewed(shop: Shop, monkeypatch: Any) -> None:
    """Law 4: a lease that was shortened for a dying child is not made longer again."""
    request = delivered(shop)
    started(shop, request)
    watchdog = watchdog_of(shop.store)
    watch = watchdog.watch

    def end_first(*args: Any, **kwargs: Any) -> None:
        request.on_timeout(False, 100)
        watch(*args, **kwargs)

    monkeypatch.setattr(watchdog, "watch", end_first)
    lasts()

    assert watched(shop, request._run_token) is None
    assert watchdog._may_renew(watchdog._watched[request._run_token], boottime()) is False
    assert watchdog._watched == {}

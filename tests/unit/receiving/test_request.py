"""The worker's main process: it knows each run's token, and acts for children that died."""

import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject
from celery.worker import request as celery_request
from celery.worker.strategy import default

from celery_redislock import SingletonTask
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.receiving.request import DYING_TTL, LockRequest
from tests.unit.shop import Shop, debts, einfo

KEY = "account:7"
#: Celery treats a child that exits like one that was killed.
EXIT_IS_LOSS = hasattr(celery_request.Request, "_worker_lost_info")


def body(account_id: int = 7) -> int:
    return account_id


def delivered(shop: Shop, **options: Any) -> LockRequest:
    """A message of a unique task, received."""
    call = options.pop("call", {})
    task = shop.unique(body, **{"lock_key": KEY, **options})
    task.apply_async((7,), task_id="t1", **call)
    return shop.receive()


def started(shop: Shop, request: LockRequest, *, pid: int | None = None) -> None:
    """What a child does before it dies: the claim becomes a lease, and the main process is told."""
    work = Work(KEY, "shop.sync", "t1", "digest")
    claim = request._header.token if request._header else None
    shop.store.acquire(KEY, request._run_token, 30, about=work.about("running"), instead_of=claim)
    request.on_accepted(pid if pid is not None else _no_process(), time.monotonic())


def _no_process() -> int:
    """A process id nobody has."""
    return 2**22 + 1


def held(shop: Shop) -> list[tuple[str, Any]]:
    return [(hold.token, hold.about.get("state")) for hold in shop.held().values()]


def watched(shop: Shop, token: str) -> Any:
    return watchdog_of(shop.store)._schedule._watched.get(token)


# --- receipt ---------------------------------------------------------------------------------


def test_every_delivery_has_a_token_of_its_own(shop: Shop) -> None:
    """A redelivery is another run: never two permits for one id (law 1)."""
    shop.unique(body, lock_key=KEY).apply_async((7,), task_id="t1")
    message = shop.message()

    first, second = shop.receive(message), shop.receive(message)

    assert first._run_token != second._run_token
    assert first._run_token.startswith("t1/")


def test_token_and_raw_message_travel_in_a_copy_of_the_properties(shop: Shop) -> None:
    """A top-level entry would leak into the headers of a retry's message."""
    shop.unique(body, lock_key=KEY).apply_async((7,), task_id="t1")
    message = shop.message()
    names = {*message.headers, "properties", "reply_to", "correlation_id", "hostname", "delivery_info"}

    request = shop.receive(message)

    given = request.request_dict["properties"][RAW]
    assert given["token"] == request._run_token
    assert given["body"] is message.body
    assert given["headers"] is message.headers
    assert RAW not in message.properties
    assert set(request.request_dict) == names | {"args", "kwargs"}


@pytest.mark.parametrize("lock", ["until_executed", "until_executing"])
def test_a_waiting_messages_claim_is_kept_alive(shop: Shop, lock: str) -> None:
    """Prefetched, or for its ETA: the worker has it in hand, so its claim must not run out."""
    request = delivered(shop, lock=lock, lock_queue_ttl=100)

    watch = watched(shop, request._header.token)  # type: ignore[union-attr]  # it has one
    assert watch.lease.term.ttl == 100
    assert watch.lease.held


@pytest.mark.parametrize("lock", ["until_executed", "while_executing"])
def test_a_waiting_retrys_claim_is_kept_alive(shop: Shop, lock: str) -> None:
    """Law 7: duplicates stay excluded while a retry waits, whatever scope it holds its key by."""

    def again(self: Any, account_id: int) -> None:
        raise self.retry(countdown=10)

    task = shop.unique(again, bind=True, lock_key=KEY, lock=lock, lock_queue_ttl=100)
    task.apply_async((7,), task_id="t1")
    shop.run()

    request = shop.receive()

    watch = watched(shop, request._header.token)  # type: ignore[union-attr]  # it has one
    assert watch is not None
    assert watch.lease.term.ttl == pytest.approx(110, abs=1)


@pytest.mark.parametrize(
    "options",
    [
        {"lock": "until_expired", "lock_period": 50},
        {"lock": "while_executing"},
        {"lock": None},
        {"call": {"lock": None}},
    ],
    ids=str,
)
def test_nothing_else_is_kept_alive(shop: Shop, options: dict[str, Any]) -> None:
    """A window must end by itself, and what holds nothing has nothing to renew."""
    request = delivered(shop, **options)

    assert request._support is None
    assert not watchdog_of(shop.store)._schedule


def test_switched_off_after_the_publish_nothing_is_kept_alive(shop: Shop) -> None:
    shop.unique(body, lock_key=KEY).delay(7)
    shop.app.conf.redislock_enabled = False

    assert shop.receive()._support is None


def test_a_wrongly_declared_task_is_received_and_left_to_the_child(shop: Shop) -> None:
    """The main process must not stumble over what it cannot tell."""
    task = shop.unique(body, lock_key=KEY)
    task.delay(7)
    task.lock_ttl = "long"

    request = shop.receive()
    request._announce_revoked("revoked", False, None, False)

    assert shop.acks == ["ack"]


def test_another_process_takes_over_from_the_claim(shop: Shop) -> None:
    """A child that keeps the interpreter in C code cannot renew: the main process does."""
    request = delivered(shop, time_limit=100)
    claim = request._header.token  # type: ignore[union-attr]  # it has one

    started(shop, request)

    watch = watched(shop, request._run_token)
    assert watched(shop, claim) is None or not watched(shop, claim).lease.held
    assert (watch.lease.term.ttl, watch.max_hold) == (30.0, 110.0)


def test_in_pools_of_one_process_the_lease_is_renewed_once(shop: Shop) -> None:
    request = delivered(shop)

    started(shop, request, pid=os.getpid())

    assert request._support is None
    assert watched(shop, request._run_token) is None


def in_greenlet(monkeypatch: Any) -> int:
    """Let this thread be in a greenlet; return what its pool gives for a process id."""
    greenlet = object()
    monkeypatch.setitem(sys.modules, "greenlet", SimpleNamespace(getcurrent=lambda: greenlet))
    return id(greenlet)


def test_in_pools_of_greenlets_the_lease_is_renewed_once_too(shop: Shop, monkeypatch: Any) -> None:
    """They give the identity of a greenlet for a process id."""
    request = delivered(shop)

    started(shop, request, pid=in_greenlet(monkeypatch))

    assert request._support is None
    assert watched(shop, request._run_token) is None


def test_beside_greenlets_another_process_is_known_as_one(shop: Shop, monkeypatch: Any) -> None:
    """A library may have imported greenlet in a worker of the prefork pool."""
    request = delivered(shop)
    in_greenlet(monkeypatch)

    started(shop, request)

    assert watched(shop, request._run_token) is not None


def test_renewing_ends_when_the_pool_has_the_result(shop: Shop) -> None:
    """Not at ``revoke(terminate=True)``, after which Celery forgets a request whose body goes on."""
    request = delivered(shop)
    started(shop, request)
    support = watched(shop, request._run_token).lease
    is_in = [False]

    class Result:
        def ready(self) -> bool:
            return is_in[0]

    result = Result()
    request._apply_result = lambda: result
    request._announce_revoked("terminated", True, 15, False)
    assert support.held
    is_in[0] = True

    assert not support.held


def test_a_claim_is_renewed_until_its_message_is_accepted(shop: Shop) -> None:
    """The thread pool refers to no result of its own while the message waits in its queue."""
    request = delivered(shop)
    support = watched(shop, request._header.token).lease  # type: ignore[union-attr]  # it has one

    class Result:
        """Has no ``ready``, as the thread pool's has none."""

    result = Result()
    request._apply_result = weakref.ref(result)
    assert support.held
    del result

    assert support.held
    request.on_accepted(os.getpid(), time.monotonic())
    assert not support.held


def test_a_lease_whose_result_is_gone_is_renewed_no_more(shop: Shop) -> None:
    """The prefork pool refers to a result until it is in."""
    request = delivered(shop)
    started(shop, request)

    request._apply_result = lambda: None

    assert not watched(shop, request._run_token).lease.held


def test_the_main_process_announces_no_loss(shop: Shop, caplog: Any) -> None:
    """It may come before the child has started, or after it has ended."""
    request = delivered(shop)
    started(shop, request)
    support = watched(shop, request._run_token).lease

    support.learn(None, 0.0, 0.0)
    assert support.held
    support.lose("it was held for longer than lock_max_hold")

    assert (support.held, support.lost, caplog.messages) == (False, False, [])


def test_a_request_that_is_gone_is_renewed_no_more(shop: Shop) -> None:
    import gc

    request = delivered(shop)
    started(shop, request)
    support = watched(shop, request._run_token).lease

    celery_request.task_ready(request)
    del request
    gc.collect()

    assert not support.held


# --- revoked, expired ------------------------------------------------------------------------


@pytest.mark.parametrize("expired", [False, True])
def test_a_message_revoked_before_it_ran_gives_claim_and_window_back(shop: Shop, *, expired: bool) -> None:
    request = delivered(shop, lock_period=50)

    request._announce_revoked("revoked", False, None, expired)

    assert shop.held() == {}
    assert shop.holder(KEY) is None
    assert request._support is None
    assert shop.state("t1") == "REVOKED"


@pytest.mark.parametrize("published_again", [False, True])
@pytest.mark.parametrize("options", [{"lock": "until_expired"}, {}], ids=str)
def test_a_late_copy_that_expired_leaves_the_window_of_what_ran(
    shop: Shop, options: dict[str, Any], *, published_again: bool
) -> None:
    """Laws 2 and 8: the job ran and stands for its window; its second copy has nothing to give back."""
    task = shop.unique(body, lock_key=KEY, lock_period=50, acks_late=True, **options)
    task.apply_async((7,), task_id="t1")
    message = shop.message()
    shop.run(shop.receive(message))
    if published_again:
        message.headers[HEADER] = Message.loads(message.headers[HEADER]).as_copy().dumps()  # type: ignore[union-attr]

    shop.receive(message, redelivered=not published_again)._announce_revoked("expired", False, None, True)

    assert task.delay(7).is_duplicate


def test_while_the_server_is_away_revoked_messages_do_not_each_wait_for_it(
    shop: Shop, monkeypatch: Any
) -> None:
    """Law 9: the worker's main process would miss its heartbeats over a thousand of them."""
    request = delivered(shop)
    owed = debts(shop, monkeypatch)
    monkeypatch.setattr(type(watchdog_of(shop.store)), "is_server_away", True)
    shop.store.calls.clear()

    request._announce_revoked("revoked", False, None, False)

    assert (shop.store.calls, len(owed)) == ([], 1)
    owed[0]()
    assert shop.held() == {}


def test_a_late_copy_leaves_the_window_also_where_its_lock_cannot_be_told(shop: Shop) -> None:
    """A worker with a wrong option knows no more of the task; its message says what the claim is."""
    task = shop.unique(body, lock="until_expired", lock_key=KEY, lock_period=50)
    task.apply_async((7,), task_id="t1")
    message = shop.message()
    shop.run(shop.receive(message))
    request = shop.receive(message, redelivered=True)
    request._locked = lambda: None  # type: ignore[method-assign]

    request._announce_revoked("revoked", False, None, False)

    assert task.delay(7).is_duplicate


def test_a_redelivered_message_that_was_revoked_gives_its_claim_back(shop: Shop) -> None:
    """Law 4: whether a copy of it runs or not, nothing will come for this claim."""
    shop.unique(body, lock_key=KEY).apply_async((7,), task_id="t1")

    shop.receive(redelivered=True)._announce_revoked("revoked", False, None, False)

    assert shop.held() == {}


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("lock", ["until_executed", "until_executing", "until_expired"])
def test_a_retry_that_is_revoked_leaves_the_window_of_the_run_before(
    shop: Shop, lock: str, *, expired: bool
) -> None:
    """It was accepted, and ran: the next one is due when ``lock_period`` has passed."""

    def again(self: Any, account_id: int) -> None:
        raise self.retry(countdown=300)

    task = shop.unique(again, bind=True, lock=lock, lock_period=3000, lock_key=KEY)
    task.apply_async((7,), task_id="t1")
    shop.run()

    shop.receive()._announce_revoked("revoked", False, None, expired)

    hold = shop.holder(KEY)
    assert hold is not None
    assert task.delay(7).is_duplicate
    assert [state for _, state in held(shop)] in ([], ["window"])


@pytest.mark.parametrize("expired", [False, True])
def test_a_message_whose_task_takes_no_lock_any_more_gives_its_claim_back(
    shop: Shop, *, expired: bool
) -> None:
    """Law 4, over a deploy: it was published under the old options."""
    request = delivered(shop)
    request.task.lock = None
    request._seen = None

    request._announce_revoked("revoked", False, None, expired)

    assert shop.held() == {}


def test_switched_off_nothing_is_given_back(shop: Shop, monkeypatch: Any) -> None:
    """No lock server is needed then."""
    request = delivered(shop)
    monkeypatch.setenv("REDISLOCK_ENABLED", "0")
    request._seen = None
    shop.store.calls.clear()

    request._announce_revoked("revoked", False, None, False)

    assert shop.store.calls == []


def test_the_lock_is_free_before_the_revocation_is_seen(shop: Shop) -> None:
    """Law 5, for the states the main process stores."""
    request = delivered(shop)
    seen = []
    storing = request.task.backend.mark_as_revoked

    def store(*args: Any, **kwargs: Any) -> Any:
        seen.append(shop.held())
        return storing(*args, **kwargs)

    request.task.backend.mark_as_revoked = store

    request._announce_revoked("revoked", False, None, False)

    assert seen == [{}]


def test_a_terminated_run_keeps_its_lease_until_its_body_has_ended(shop: Shop) -> None:
    """The body may go on for seconds."""
    request = delivered(shop)
    started(shop, request)

    request._announce_revoked("terminated", True, signal.SIGTERM, False)
    assert held(shop) == [(request._run_token, "running")]
    request.on_failure(einfo(Terminated(signal.SIGTERM)))

    assert shop.held() == {}


# --- rejected --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"lock": "until_expired", "lock_period": 50}, {"lock_period": 50}])
def test_a_message_whose_eta_is_no_time_gives_claim_and_window_back(
    shop: Shop, options: dict[str, Any]
) -> None:
    """Celery's strategy rejects it before any other hook."""
    task = shop.unique(body, **{"lock_key": KEY, **options})
    no_time = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
    task.apply_async((7,), task_id="t1", eta=no_time)
    assert shop.held()
    consumer = MagicMock(app=shop.app, hostname="here", event_dispatcher=None, disable_rate_limits=True)
    message = shop.message()

    default(task, shop.app, consumer)(
        message, None, lambda *_: None, lambda *_: shop.acks.append("reject"), []
    )

    assert shop.acks == ["reject"]
    assert (shop.held(), shop.holder(KEY)) == ({}, None)
    assert [watch for watch in watchdog_of(shop.store)._schedule._watched.values() if watch.lease.held] == []


def test_a_message_that_goes_back_to_its_queue_keeps_its_claim(shop: Shop) -> None:
    request = delivered(shop)

    request.reject(requeue=True)

    assert shop.acks == ["requeue"]
    assert [state for _, state in held(shop)] == ["queued"]


def test_a_run_that_rejects_its_message_has_settled_its_hold_itself(shop: Shop) -> None:
    """What was accepted stands for its window, however its run ends."""
    request = delivered(shop, lock="until_expired", lock_period=50)
    request.on_accepted(os.getpid(), time.monotonic())

    request.on_failure(einfo(Reject("not wanted", requeue=False)))

    assert shop.acks[-1:] == ["ack"]
    assert len(held(shop)) == 1


# --- dead children ---------------------------------------------------------------------------


def test_what_a_dead_child_held_is_free_before_its_failure_is_seen(shop: Shop) -> None:
    request = delivered(shop)
    started(shop, request)
    seen = []
    storing = request.task.backend.mark_as_failure

    def store(*args: Any, **kwargs: Any) -> Any:
        seen.append(shop.held())
        return storing(*args, **kwargs)

    request.task.backend.mark_as_failure = store

    request.on_failure(einfo(WorkerLostError("killed")))

    assert seen == [{}]
    assert shop.state("t1") == "FAILURE"


def test_a_child_that_died_before_it_started_leaves_no_claim(shop: Shop) -> None:
    request = delivered(shop)

    request.on_failure(einfo(WorkerLostError("killed")))

    assert shop.held() == {}


@pytest.mark.parametrize("is_timeout", [False, True])
def test_a_child_that_died_before_it_started_leaves_no_claim_of_the_scope_before_a_deploy(
    shop: Shop, *, is_timeout: bool
) -> None:
    """Law 4: a run of a window holds nothing, but its message was published under another scope."""
    request = delivered(shop)
    request.task.lock, request.task.lock_period = "until_expired", 50
    request._seen = None

    if is_timeout:
        request.on_timeout(False, 100)
    else:
        request.on_failure(einfo(WorkerLostError("killed")))

    assert shop.held() == {}


def test_an_ordinary_error_was_settled_by_the_child(shop: Shop) -> None:
    request = delivered(shop)
    started(shop, request)
    shop.store.calls.clear()

    request.on_failure(einfo(ValueError("x")), return_ok=True)

    assert held(shop) == [(request._run_token, "running")]
    assert shop.store.calls == []


@pytest.mark.parametrize("kind", ["lost", "exit"])
@pytest.mark.parametrize("acks_late", [True, False])
@pytest.mark.parametrize("requeues", [True, False])
def test_a_dead_childs_message_finds_its_claim_where_it_is_delivered_again(
    shop: Shop, *, kind: str, acks_late: bool, requeues: bool
) -> None:
    """Law 7: duplicates stay excluded while it goes back to its queue."""
    if kind == "exit" and not EXIT_IS_LOSS:
        pytest.skip("this Celery cannot store such an error")
    request = delivered(shop, acks_late=acks_late, reject_on_worker_lost=requeues, lock_queue_ttl=200)
    started(shop, request)
    error = WorkerLostError("killed") if kind == "lost" else SystemExit(1)

    request.on_failure(einfo(error))

    comes_back = acks_late and requeues
    assert shop.acks[-1:] == ["requeue" if comes_back else "ack"]
    claim = request._header.token  # type: ignore[union-attr]  # it has one
    assert held(shop) == ([(claim, "queued")] if comes_back else [])
    if comes_back:
        assert shop.held()[KEY].expires_in == pytest.approx(200, abs=0.9)


@pytest.mark.skipif(EXIT_IS_LOSS, reason="from Celery 5.7 on such a message is delivered again")
def test_a_cancelled_run_whose_exit_is_acknowledged_leaves_no_claim(shop: Shop) -> None:
    """No message would come that could use it."""
    request = delivered(shop, acks_late=True)
    started(shop, request)
    request._already_cancelled = True

    with suppress(Exception):  # before 5.7 the backend cannot encode such an error
        request.on_failure(einfo(SystemExit(15)))

    assert shop.held() == {}


@pytest.mark.parametrize("error", [Terminated(15), SystemExit(15)], ids=repr)
def test_a_run_cancelled_for_a_lost_connection_finds_its_claim_again(
    shop: Shop, error: BaseException
) -> None:
    """``worker_cancel_long_running_tasks_on_connection_loss``: unacknowledged, so it is delivered again."""
    if isinstance(error, SystemExit) and not EXIT_IS_LOSS:
        pytest.skip("this Celery fails such a run")
    request = delivered(shop, acks_late=True)
    started(shop, request)
    request._already_cancelled = True

    request.on_failure(einfo(error))

    assert held(shop) == [(request._header.token, "queued")]  # type: ignore[union-attr]  # it has one
    assert shop.acks == []


def test_a_requeued_message_without_a_header_keeps_the_key_for_itself(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY, acks_late=True, reject_on_worker_lost=True)
    shop.app.send_task("shop.sync", (7,), task_id="t1")
    message = shop.message()
    request = shop.receive(message)
    started(shop, request)

    request.on_failure(einfo(WorkerLostError("killed")))

    assert [(hold.owner, hold.about["state"]) for hold in shop.held().values()] == [("t1", "queued")]
    assert shop.run(shop.receive(message, redelivered=True)) == 7
    assert task.name == "shop.sync"


@pytest.mark.skipif(not EXIT_IS_LOSS, reason="this Celery does not know retry_on_worker_lost")
def test_a_retry_for_a_lost_child_carries_the_hold(shop: Shop) -> None:
    """The main process converts before Celery publishes, so the retry never blocks itself."""
    request = delivered(shop, retry_on_worker_lost=True, max_retries=3, call={"lock_ttl": 90})
    started(shop, request)

    request.on_failure(einfo(WorkerLostError("killed")))

    message = shop.message()
    header = Message.loads(message.headers[HEADER])
    assert header is not None
    assert (message.headers["id"], message.headers["retries"]) == ("t1", 1)
    assert held(shop) == [(header.token, "queued")]
    assert (header.claimed, header.options) == (True, {"lock_ttl": 90.0})
    assert shop.run(shop.receive(message)) == 7
    assert shop.held() == {}


@pytest.mark.skipif(EXIT_IS_LOSS, reason="this Celery knows retry_on_worker_lost")
def test_a_task_for_a_newer_celery_leaves_no_claim_for_a_retry_that_nobody_publishes(shop: Shop) -> None:
    request = delivered(shop, retry_on_worker_lost=True, max_retries=3)
    started(shop, request)

    request.on_failure(einfo(WorkerLostError("killed")))

    assert (shop.messages(), shop.held()) == ([], {})


@pytest.mark.skipif(not EXIT_IS_LOSS, reason="this Celery does not know retry_on_worker_lost")
def test_a_retry_for_a_lost_child_that_cannot_be_published_leaves_no_claim(shop: Shop) -> None:
    """Celery then gives the message up, or back to its queue, where it must find the key free."""
    request = delivered(shop, retry_on_worker_lost=True, max_retries=3)
    started(shop, request)

    def fail(*_: Any, **__: Any) -> None:
        message = "no broker"
        raise OSError(message)

    shop.app.send_task = fail

    request.on_failure(einfo(WorkerLostError("killed")))

    assert shop.held() == {}


@pytest.mark.skipif(not EXIT_IS_LOSS, reason="this Celery does not know retry_on_worker_lost")
def test_after_the_last_retry_for_a_lost_child_the_key_is_free(shop: Shop) -> None:
    request = delivered(shop, retry_on_worker_lost=True, max_retries=0)
    started(shop, request)

    request.on_failure(einfo(WorkerLostError("killed")))

    assert (shop.messages(), shop.held()) == ([], {})


@pytest.mark.skipif(not EXIT_IS_LOSS, reason="this Celery asks no backend then")
@pytest.mark.parametrize(
    "options", [{"reject_on_worker_lost": True}, {"retry_on_worker_lost": True}], ids=str
)
def test_a_child_lost_after_its_success_leaves_no_claim(shop: Shop, options: dict[str, Any]) -> None:
    """Celery acknowledges the message then: nobody would ever take that claim over."""
    request = delivered(shop, acks_late=True, **options)
    started(shop, request)
    shop.store.release(KEY, request._run_token)
    shop.app.backend.store_result("t1", 7, "SUCCESS")

    request.on_failure(einfo(WorkerLostError("killed")))

    assert (shop.messages(), shop.held()) == ([], {})


def test_whoever_took_the_key_meanwhile_keeps_it(shop: Shop) -> None:
    """Law 3."""
    request = delivered(shop, acks_late=True, reject_on_worker_lost=True)
    started(shop, request)
    shop.store.force_release(KEY)
    shop.store.acquire(KEY, "other/x", 30, about={})

    request.on_failure(einfo(WorkerLostError("killed")))

    assert held(shop) == [("other/x", None)]


def test_a_dead_child_is_settled_once(shop: Shop) -> None:
    request = delivered(shop)
    started(shop, request)
    request.on_failure(einfo(WorkerLostError("killed")))
    shop.store.calls.clear()

    request.on_failure(einfo(WorkerLostError("killed")))

    assert shop.store.calls == []


def test_without_a_lock_server_a_dead_childs_hold_is_owed(shop: Shop, monkeypatch: Any) -> None:
    request = delivered(shop)
    started(shop, request)
    owed = []
    monkeypatch.setattr(Guard, "give_back_later", lambda _self, _key, token, **_: owed.append(token))
    shop.store.failures = float("inf")

    request.on_failure(einfo(WorkerLostError("killed")))

    assert owed == [request._run_token, request._header.token]  # type: ignore[union-attr]
    assert shop.state("t1") == "FAILURE"


def test_a_key_of_another_kind_does_not_stop_the_main_process(shop: Shop, caplog: Any) -> None:
    """It serves every other task as well."""
    request = delivered(shop)
    started(shop, request)
    shop.store.has_wrong_type(KEY)

    request.on_failure(einfo(WorkerLostError("killed")))

    assert shop.state("t1") == "FAILURE"
    assert "holds a list, not a lock" in caplog.text


# --- time limits -----------------------------------------------------------------------------

#: Every way to have a message that met its hard limit go back to its queue.
REQUEUES = [{"acks_on_failure_or_timeout": False}]
if hasattr(SingletonTask, "acks_on_timeout"):
    REQUEUES.append({"acks_on_timeout": False})


@pytest.mark.parametrize("way", ["on_timeout", "on_failure"])
def test_a_hard_limit_frees_the_key_when_the_child_is_dead_and_no_sooner(
    shop: Shop, monkeypatch: Any, way: str
) -> None:
    """The hook comes before the child is dead: freed at once, two bodies would overlap."""
    later = debts(shop, monkeypatch)
    request = delivered(shop, time_limit=100)
    started(shop, request, pid=_parent())
    request.worker_pid = os.getpid()

    if way == "on_timeout":
        request.on_timeout(False, 100)
    else:
        request.on_failure(einfo(TimeLimitExceeded(100)))

    assert shop.state("t1") == "FAILURE"
    assert shop.held()[KEY].expires_in == pytest.approx(5, abs=0.9)
    (release,) = later
    with pytest.raises(Exception, match="has not ended yet"):
        release()
    assert held(shop) == [(request._run_token, "running")]
    monkeypatch.setattr(os, "kill", _nobody)
    release()
    assert shop.held() == {}


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="cannot look at a dead child without collecting it")
def test_a_child_that_is_dead_but_not_collected_holds_nothing_up(shop: Shop, monkeypatch: Any) -> None:
    """The pool collects its dead every five seconds: as long as the lease is left to the dying."""
    later = debts(shop, monkeypatch)
    request = delivered(shop, time_limit=100)
    with subprocess.Popen([sys.executable, "-S", "-E", "-c", ""]) as child:
        started(shop, request, pid=child.pid)
        request.on_timeout(False, 100)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        later[0]()

        assert shop.held() == {}
        assert child.wait() == 0


def _parent() -> int:
    return os.getppid()


def _nobody(*_: Any) -> None:
    raise ProcessLookupError


def test_a_short_lease_is_owed_for_as_long_as_it_was_left_to_the_dying(shop: Shop, monkeypatch: Any) -> None:
    """A pool may take seconds to collect a dead child, whose hold is not given up before that."""
    owed: list[float] = []
    monkeypatch.setattr(
        watchdog_of(shop.store), "release_later", lambda _release, within, **_: owed.append(within)
    )
    request = delivered(shop, lock_ttl=1)
    started(shop, request)

    request.on_timeout(False, 100)

    assert owed == [DYING_TTL]


def test_both_hooks_of_one_hard_limit_count_once(shop: Shop, monkeypatch: Any) -> None:
    """Which of them comes differs between Celery 5.5 and 5.7."""
    later = debts(shop, monkeypatch)
    request = delivered(shop)
    started(shop, request)

    request.on_timeout(False, 100)
    request.on_failure(einfo(TimeLimitExceeded(100)))

    assert len(later) == 1


def test_a_child_timed_out_before_it_started_leaves_no_claim(shop: Shop, monkeypatch: Any) -> None:
    later = debts(shop, monkeypatch)
    request = delivered(shop)
    request.worker_pid = None

    request.on_timeout(False, 100)
    later[0]()

    assert shop.held() == {}


def test_in_pools_of_greenlets_no_process_is_waited_for_after_a_hard_limit(
    shop: Shop, monkeypatch: Any
) -> None:
    """A greenlet's identity may be the number of a process that has nothing to do with it."""
    later = debts(shop, monkeypatch)
    request = delivered(shop)
    started(shop, request, pid=in_greenlet(monkeypatch))
    monkeypatch.setattr(os, "kill", lambda *_: None)

    request.on_timeout(False, 100)
    later[0]()

    assert shop.held() == {}


@pytest.mark.parametrize("requeues", REQUEUES, ids=str)
def test_a_timed_out_message_that_goes_back_finds_its_claim_and_runs_again(
    shop: Shop, monkeypatch: Any, requeues: dict[str, bool]
) -> None:
    """Law 7. Released instead, its next delivery would find the failure recorded, and do nothing."""
    later = debts(shop, monkeypatch)
    task = shop.unique(body, lock_key=KEY, acks_late=True, lock_queue_ttl=200, **requeues)
    task.apply_async((7,), task_id="t1")
    message = shop.message()
    request = shop.receive(message)
    started(shop, request)

    time_out(request)
    later[0]()

    assert shop.acks == ["requeue"]
    assert held(shop) == [(request._header.token, "queued")]  # type: ignore[union-attr]  # it has one
    assert shop.held()[KEY].expires_in == pytest.approx(200, abs=0.9)
    assert shop.state("t1") == "FAILURE"
    assert shop.run(shop.receive(message, redelivered=True)) == 7
    assert shop.held() == {}


@pytest.mark.parametrize("acks", [{"acks_late": True}, {"acks_late": False, **REQUEUES[0]}], ids=str)
def test_a_timed_out_message_that_never_comes_back_leaves_no_claim(
    shop: Shop, monkeypatch: Any, acks: dict[str, bool]
) -> None:
    later = debts(shop, monkeypatch)
    request = delivered(shop, **acks)
    started(shop, request)

    time_out(request)
    later[0]()

    assert shop.acks[-1:] == ["ack"]
    assert shop.held() == {}


def test_a_timed_out_message_whose_child_had_released_runs_again_and_leaves_no_claim(
    shop: Shop, monkeypatch: Any
) -> None:
    """SIGTERM ends most bodies: the message is back, and may be done, before its child is seen dead."""
    later = debts(shop, monkeypatch)
    task = shop.unique(body, lock_key=KEY, acks_late=True, **REQUEUES[0])
    task.apply_async((7,), task_id="t1")
    message = shop.message()
    request = shop.receive(message)
    started(shop, request)
    shop.store.release(KEY, request._run_token)

    time_out(request)

    assert isinstance(shop.run(shop.receive(message, redelivered=True)), Ignore)
    assert shop.run() == 7  # it has looked twice
    later[0]()
    assert shop.held() == {}


def test_a_timed_out_message_without_a_header_runs_again_although_it_was_put_off(
    shop: Shop, monkeypatch: Any
) -> None:
    """It is back before its child is dead: put off for that, it has its task id for an identity."""
    later = debts(shop, monkeypatch)
    shop.unique(body, lock_key=KEY, acks_late=True, **REQUEUES[0])
    shop.app.send_task("shop.sync", (7,), task_id="t1")
    message = shop.message()
    request = shop.receive(message)
    started(shop, request)
    time_out(request)
    assert isinstance(shop.run(shop.receive(message, redelivered=True)), Ignore)

    later[0]()

    assert [(hold.owner, hold.about["state"]) for hold in shop.held().values()] == [("t1", "queued")]
    assert shop.run() == 7
    assert shop.held() == {}


def time_out(request: LockRequest) -> None:
    """What the pool tells at a hard limit; which of the two gives the message back differs by version."""
    request.on_timeout(False, 100)
    request.on_failure(einfo(TimeLimitExceeded(100)), return_ok=True)


def test_a_soft_limit_changes_nothing(shop: Shop) -> None:
    request = delivered(shop)
    started(shop, request)

    request.on_timeout(True, 100)

    assert shop.held()[KEY].expires_in == pytest.approx(30, abs=0.9)


def test_a_lease_that_cannot_be_shortened_is_told(shop: Shop, monkeypatch: Any, caplog: Any) -> None:
    later = debts(shop, monkeypatch)
    request = delivered(shop)
    started(shop, request)
    shop.store.failures = 1

    request.on_timeout(False, 100)

    assert "could not shorten the lease on 'account:7'" in caplog.text
    assert len(later) == 1


@pytest.mark.parametrize("ignored", [True, False])
def test_a_claim_for_a_message_that_goes_back_tells_whether_its_result_is_ignored(
    shop: Shop, *, ignored: bool
) -> None:
    """Who is refused by it waits for that result, or does not."""
    options = {"acks_late": True, "reject_on_worker_lost": True, "call": {"ignore_result": ignored}}
    request = delivered(shop, **options)
    started(shop, request)

    request.on_failure(einfo(WorkerLostError("killed")))

    (claim,) = shop.held().values()
    assert (claim.about["state"], claim.about.get("ignored", False)) == ("queued", ignored)


# --- what holds nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"lock": None}, {"call": {"lock": None}}], ids=str)
def test_what_locks_nothing_asks_nothing(shop: Shop, options: dict[str, Any]) -> None:
    request = delivered(shop, **options)
    request.on_accepted(_no_process(), time.monotonic())
    request.on_failure(einfo(WorkerLostError("killed")))

    assert shop.store.calls == []


def test_until_executing_has_no_lease_to_renew_or_to_convert(shop: Shop) -> None:
    request = delivered(shop, lock="until_executing", acks_late=True, reject_on_worker_lost=True)
    request.on_accepted(_no_process(), time.monotonic())
    assert request._support is None
    shop.store.release(KEY, request._header.token)  # type: ignore[union-attr]  # as the child does

    request.on_failure(einfo(WorkerLostError("killed")))

    assert shop.held() == {}


def test_it_is_the_request_class_of_every_unique_task(shop: Shop) -> None:
    from celery.utils.imports import symbol_by_name

    assert symbol_by_name(SingletonTask.Request) is LockRequest
    assert isinstance(delivered(shop), LockRequest)

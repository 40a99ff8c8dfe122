"""How a run's end settles what it holds: continuations, copies put off, done marks."""

import os
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_postrun

from celery_redislock import lock_acquired
from celery_redislock.locks.memory import MemoryStore
from celery_redislock.locks.store import QUEUED
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.testing import hold
from tests.unit.shop import Down, Shop

KEY = "account:7"


def header_of(message: Any) -> Message:
    header = Message.loads(message.headers.get(HEADER))
    assert header is not None
    return header


def publishing(shop: Shop, steps: list[str]) -> None:
    """Write down each publish, with who holds the key at that moment."""
    sending = shop.app.send_task

    def send(*args: Any, **kwargs: Any) -> Any:
        held = shop.holder(KEY)
        steps.append(f"publish while {held.about['state'] if held else 'free'}")
        return sending(*args, **kwargs)

    shop.app.send_task = send


# --- continuations ---------------------------------------------------------------------------


def test_a_retry_is_published_after_the_body_has_unwound_and_the_lease_is_a_claim_again(shop: Shop) -> None:
    """Law 7. Converted earlier two bodies overlap, later there is a gap."""
    steps: list[str] = []

    def sync(self: Any, account_id: int) -> str:
        try:
            if self.request.retries == 0:
                self.retry(countdown=50, max_retries=1)
        finally:
            steps.append("unwound")
        return "done"

    task = shop.unique(sync, bind=True, lock_key=KEY, lock_queue_ttl=100)
    published = task.delay(7)
    request = shop.receive()
    publishing(shop, steps)

    outcome = shop.run(request)

    message = shop.message()
    assert steps == ["unwound", "publish while queued"]
    assert isinstance(outcome, Retry)
    assert (message.headers["id"], message.headers["retries"]) == (published.id, 1)
    assert header_of(message).claimed
    assert shop.held()[KEY].token == header_of(message).token
    assert shop.held()[KEY].expires_in == pytest.approx(150, abs=0.9)
    assert shop.run(shop.receive(message)) == "done"
    assert shop.held() == {}


def test_while_a_retry_waits_duplicates_stay_excluded(shop: Shop) -> None:
    def sync(self: Any, account_id: int) -> None:
        self.retry(countdown=50)

    task = shop.unique(sync, bind=True, lock_key=KEY)
    published = task.delay(7)
    shop.run()

    duplicate = task.delay(7)

    assert (duplicate.is_duplicate, duplicate.id) == (True, published.id)


def test_what_counts_is_that_a_continuation_was_published_not_how_the_body_ended(shop: Shop) -> None:
    """``retry(throw=False)`` returns a value and still goes on."""

    def sync(self: Any, account_id: int) -> str:
        self.retry(countdown=50, throw=False)
        return "for now"

    task = shop.unique(sync, bind=True, lock_key=KEY)
    published = task.delay(7)

    assert shop.run() == "for now"

    assert shop.held()[KEY].owner == published.id
    assert header_of(shop.message()).token == shop.held()[KEY].token


@pytest.mark.parametrize("redelivered", [False, True])
def test_what_goes_on_after_its_retry_does_not_drop_that(shop: Shop, *, redelivered: bool) -> None:
    """Law 2: the first body's outcome is stored when the retry is on its way, and is not the retry's."""
    runs: list[int] = []

    def sync(self: Any, account_id: int) -> str:
        runs.append(self.request.retries)
        if not self.request.retries:
            self.retry(countdown=0, throw=False)
        return "for now"

    task = shop.unique(sync, bind=True, lock_key=KEY, acks_late=True)
    task.delay(7)
    shop.run()
    shop.store.force_release(KEY)

    shop.run(redelivered=redelivered)
    for message in shop.messages():  # redelivered, it looks twice
        shop.run(shop.receive(message))

    assert runs == [0, 1]


@pytest.mark.parametrize("throw", [False, True])
def test_a_copy_of_a_retry_that_was_over_at_once_does_nothing(shop: Shop, *, throw: bool) -> None:
    """Law 8: what goes on after its retry has an outcome too, and the retry's is told from it."""
    runs: list[int] = []

    def sync(self: Any, account_id: int) -> None:
        runs.append(self.request.retries)
        if not self.request.retries:
            self.retry(countdown=0, throw=throw)

    task = shop.unique(sync, bind=True, lock_key=KEY, acks_late=True)
    task.delay(7)
    shop.run()
    retry = shop.message()
    shop.run(shop.receive(retry))

    shop.run(shop.receive(retry, redelivered=True))

    assert runs == [0, 1]
    assert shop.messages() == []


def test_a_retry_of_until_executing_has_a_claim_of_its_own(shop: Shop) -> None:
    """Law 3: what gives the claim of its first message back late must not end it."""

    def sync(self: Any, account_id: int) -> None:
        raise self.retry(countdown=300)

    task = shop.unique(sync, bind=True, lock="until_executing", lock_key=KEY)
    task.delay(7)
    first = shop.message()
    shop.run(shop.receive(first))

    shop.store.release(KEY, header_of(first).token)

    (claim,) = shop.held().values()
    assert claim.token == header_of(shop.message()).token
    assert task.delay(7).is_duplicate


def test_per_call_options_and_workflow_membership_survive_a_retry(shop: Shop) -> None:
    def sync(self: Any, account_id: int) -> None:
        self.retry(countdown=50)

    task = shop.unique(sync, bind=True)
    task.apply_async((7,), lock_key=KEY, lock_ttl=90, chain=[])
    before = shop.message()

    shop.run(shop.receive(before))

    header = header_of(shop.message())
    assert (header.key, header.has_own_key, header.options) == (KEY, True, {"lock_ttl": 90.0})
    assert header.must_run
    assert header.token != header_of(before).token


def test_a_plain_tasks_retry_is_no_workflow_member(shop: Shop) -> None:
    """Its message carries ids of root and parent like a link's; nobody waits for it all the same."""

    def sync(self: Any, account_id: int) -> None:
        self.retry(countdown=50)

    shop.unique(sync, bind=True, lock_key=KEY).delay(7)
    shop.run()

    assert not header_of(shop.message()).must_run


@pytest.mark.parametrize("lock", ["until_executing", "while_executing", "until_expired"])
def test_a_retry_in_another_scope_runs(shop: Shop, lock: str) -> None:
    def sync(self: Any, account_id: int) -> str:
        if self.request.retries == 0:
            self.retry(countdown=0)
        return "done"

    period: dict[str, Any] = {"lock_period": 50} if lock == "until_expired" else {}
    task = shop.unique(sync, bind=True, lock_key=KEY, lock=lock, **period)
    task.delay(7)
    shop.run()

    assert shop.run() == "done"


def test_a_retry_whose_publish_fails_is_rejected_and_leaves_the_key_free(shop: Shop) -> None:
    """What ``Task.retry`` itself does; nobody would turn the claim into a run."""

    def sync(self: Any, account_id: int) -> None:
        shop.app.send_task = _no_broker
        self.retry(countdown=50)

    task = shop.unique(sync, bind=True, lock_key=KEY)

    with shop.running(task, args=(7,)), pytest.raises(Reject) as raised:
        task(7)

    assert not raised.value.requeue
    assert shop.held() == {}


@pytest.mark.parametrize("error", [OSError("no broker"), SystemExit(1), Down()], ids=repr)
def test_any_other_continuation_that_fails_raises_its_own_error(shop: Shop, error: BaseException) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    def sync(self: Any, account_id: int) -> str:
        shop.app.send_task = fail
        self.retry(countdown=50, throw=False)
        return "for now"

    task = shop.unique(sync, bind=True, lock_key=KEY)

    with shop.running(task, args=(7,)), pytest.raises(type(error)) as raised:
        task(7)

    assert raised.value is error
    assert shop.held() == {}


def test_a_replacement_by_itself_goes_on_under_the_lock(shop: Shop) -> None:
    def sync(self: Any, account_id: int, again: bool = True) -> str:
        if again:
            raise self.replace(self.s(account_id, again=False))
        return "replaced"

    task = shop.unique(sync, bind=True, lock_key=("account_id",))
    published = task.delay(7)
    request = shop.receive()
    assert isinstance(shop.run(request), Ignore)

    message = shop.message()
    assert message.headers["id"] == published.id
    (held,) = shop.held().values()
    assert held.token == header_of(message).token
    assert shop.run(shop.receive(message)) == "replaced"


def test_a_replacement_with_another_key_takes_its_own_lock(shop: Shop) -> None:
    def sync(self: Any, account_id: int) -> str:
        if account_id == 7:
            raise self.replace(self.s(8))
        return "replaced"

    task = shop.unique(sync, bind=True, lock_key="account:{account_id}")
    published = task.delay(7)

    shop.run()

    assert [(name, held.owner) for name, held in shop.held().items()] == [("account:8", published.id)]
    assert shop.run() == "replaced"


@pytest.mark.parametrize("before", [None, "old:{account_id}"])
def test_a_retry_keeps_its_key_across_a_deploy_that_names_it_otherwise(
    shop: Shop, before: str | None
) -> None:
    """Law 4. A new key would leave the old hold to its expiry, and duplicates under it unnoticed."""

    def sync(self: Any, account_id: int) -> None:
        assert self.lease.held
        # As if this worker had been started after the deploy.
        type(self).lock_key = "new:{account_id}"
        self.retry(countdown=50)

    task = shop.unique(sync, bind=True, lock_key=before)
    key = task.lock_for(7).key
    task.delay(7)
    shop.run()

    retry = shop.message()
    assert header_of(retry).key == key
    assert set(shop.held()) == {key}
    assert shop.holder(key).token == header_of(retry).token  # type: ignore[union-attr]  # it is held


def test_a_replacement_with_other_arguments_goes_by_its_own_key(shop: Shop) -> None:
    def sync(self: Any, account_id: int) -> None:
        self.replace(self.si(account_id + 1))

    shop.unique(sync, bind=True, lock_key="account:{account_id}").delay(7)
    shop.run()

    assert header_of(shop.message()).key == "account:8"
    assert set(shop.held()) == {"account:8"}


def test_only_the_first_of_several_continuations_carries_the_claim(shop: Shop) -> None:
    def sync(self: Any, account_id: int) -> None:
        self.retry(countdown=1, throw=False)
        self.retry(countdown=2, throw=False)

    shop.unique(sync, bind=True, lock_key=KEY).delay(7)
    shop.run()

    headers = [header_of(message) for message in shop.messages()]
    assert [header.claimed for header in headers] == [True, False]
    assert headers[0].token == shop.held()[KEY].token != headers[1].token


def test_a_continuation_is_published_although_the_server_is_away(shop: Shop) -> None:
    """Law 7 before law 9."""

    def sync(self: Any, account_id: int) -> None:
        shop.store.failures = float("inf")
        self.retry(countdown=50)

    shop.unique(sync, bind=True, lock_key=KEY).delay(7)
    shop.run()

    assert not header_of(shop.message()).claimed
    assert watchdog_of(shop.store).owes == 2


def _no_broker(*_: Any, **__: Any) -> None:
    message = "no broker"
    raise OSError(message)


# --- putting off -----------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_message_put_off_is_the_message_it_was(shop: Shop, compression: str | None) -> None:
    """Rebuilt from the request it would show masked arguments and lose properties."""
    task = shop.unique(_body, lock_key=KEY, lock_retry_delay=50, on_conflict="retry")
    task.apply_async(
        (7,),
        task_id="t1",
        argsrepr="(***)",
        priority=4,
        expires=1000,
        compression=compression,
        headers={
            "trace": "abc",
            "x-death": [{"time": datetime(2026, 1, 2, tzinfo=timezone.utc), "count": 1}],
        },
        link=task.si(8),
        app_id="shop",
    )
    shop.store.force_release(KEY)
    (wire,) = list(MemoryQueue.peek(shop))
    before = shop.message()
    before.properties["expiration"] = "60000"

    with hold(task, 7):
        assert isinstance(shop.run(shop.receive(before)), Ignore)

    (again_on_wire,) = list(MemoryQueue.peek(shop))
    again = shop.message()
    assert again.body == before.body
    assert again_on_wire["body"] == wire["body"]
    if compression:
        assert again_on_wire["headers"]["compression"] == "application/x-gzip"
    assert again.properties["priority"] == 4
    assert again.properties["app_id"] == "shop"
    assert float(again.properties["expiration"]) == 60000
    assert again.properties["correlation_id"] == before.properties["correlation_id"]
    changed = {HEADER, "eta", "compression", "x-death"}
    assert _without(again.headers, changed) == _without(before.headers, changed)
    assert again.headers["argsrepr"] == "(***)"
    assert "x-death" not in again.headers


class MemoryQueue:
    """What is in the queue, as it is on the wire."""

    @staticmethod
    def peek(shop: Shop) -> list[Any]:
        with shop.app.connection_for_read() as connection:
            return list(connection.default_channel._queue_for(shop.queue).queue)


def _without(headers: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if name not in names}


def _body(account_id: int = 7) -> int:
    return account_id


@pytest.mark.parametrize(
    ("delay", "visibility", "expected"), [(50.0, None, 50.0), (50.0, 20, 20.0), (9000.0, None, 3600.0)]
)
def test_a_delay_is_never_longer_than_the_brokers_visibility_timeout(
    shop: Shop, monkeypatch: Any, delay: float, visibility: float | None, expected: float
) -> None:
    """Redis would deliver what a worker holds for its ETA a second time."""
    monkeypatch.setattr("celery_redislock.outage.jittered", lambda seconds: seconds)
    monkeypatch.setattr("celery_redislock.duplicates.jittered", lambda seconds: seconds)
    if visibility:
        shop.app.conf.broker_transport_options = {"visibility_timeout": visibility}
    task = shop.unique(_body, lock_key=KEY, lock_retry_delay=delay, on_conflict="retry")
    task.apply_async((7,), task_id="t1", lock="while_executing")

    with hold(task, 7):
        shop.run()

    eta = datetime.fromisoformat(shop.message().headers["eta"])
    assert abs((eta - datetime.now(timezone.utc)) - timedelta(seconds=expected)) < timedelta(seconds=1)


@pytest.mark.parametrize(("acks_late", "error"), [(True, Reject), (False, OSError)])
def test_a_message_that_cannot_be_put_off_is_requeued_or_fails_visibly(
    shop: Shop, monkeypatch: Any, *, acks_late: bool, error: type[Exception]
) -> None:
    monkeypatch.setattr("celery_redislock.redeliver.redeliver", _no_broker)
    task = shop.unique(_body, lock_key=KEY, on_conflict="retry", acks_late=acks_late)

    with hold(task, 7), shop.running(task), pytest.raises(error):
        task(7)


def test_a_message_without_a_header_keeps_its_identity_when_put_off(shop: Shop) -> None:
    task = shop.unique(_body, lock_key=KEY, on_conflict="retry")
    shop.app.send_task("shop.sync", (7,), task_id="t1")
    before = shop.message()
    assert HEADER not in before.headers

    with hold(task, 7):
        shop.run(shop.receive(before))

    header = header_of(shop.message())
    assert (header.key, header.token, header.claimed, header.is_copy) == (KEY, "t1", False, False)


# --- done marks ------------------------------------------------------------------------------


def marks(shop: Shop) -> dict[tuple[str, str], float]:
    now = shop.store._clock()
    return {what: until - now for what, (_, until) in shop.store._done.items()}


def test_a_done_mark_is_left_only_where_a_copy_can_come_and_no_result_would_tell(shop: Shop) -> None:
    """Law 8, and law 4's "after the last task only these are left"."""
    found = {}
    for acks_late in (True, False):
        for ignore_result in (True, False):
            shop.store._done.clear()
            task = shop.unique(
                _body,
                name=f"shop.{acks_late}.{ignore_result}",
                lock_key=KEY,
                acks_late=acks_late,
                ignore_result=ignore_result,
            )
            task.delay(7)
            shop.run()
            found[acks_late, ignore_result] = len(marks(shop))

    assert found == {(True, True): 1, (True, False): 0, (False, True): 0, (False, False): 0}


def test_a_done_mark_names_the_message_and_lives_an_hour_longer_than_it_may_wait(shop: Shop) -> None:
    shop.app.conf.broker_transport_options = {"visibility_timeout": 500}
    task = shop.unique(_body, lock_key=KEY, acks_late=True, ignore_result=True)
    task.delay(7)
    message = shop.message()

    shop.run(shop.receive(message))

    assert marks(shop) == {(KEY, header_of(message).token): pytest.approx(500 + 3600, abs=0.9)}
    assert "mark_done" not in shop.store.calls  # the release wrote it


def test_a_done_mark_is_owed_for_as_long_as_it_is_of_use(shop: Shop, monkeypatch: Any) -> None:
    """Law 8: the server may be away at the release for longer than the lease lives; then a copy comes."""
    within: list[float] = []
    monkeypatch.setattr(
        watchdog_of(shop.store), "release_later", lambda _release, **given: within.append(given["within"])
    )

    def away(account_id: int) -> None:
        shop.store.failures = 1

    for name, options in (("shop.marked", {"acks_late": True}), ("shop.unmarked", {})):
        shop.unique(away, name=name, lock_key=KEY, lock_ttl=30, ignore_result=True, **options).delay(7)
        shop.run()
        shop.store.force_release(KEY)

    assert within == [2 * 3600.0, 30.0]


@pytest.mark.parametrize(("backend", "when_released"), [("rpc://", 0), ("disabled://", 1)])
def test_a_done_mark_is_written_late_where_a_result_is_on_its_way(backend: str, when_released: int) -> None:
    """Dead between release and result, the copy must run again: the caller would wait for ever."""
    shop = Shop(result_backend=backend)
    task = shop.unique(_body, lock_key=KEY, acks_late=True)

    with shop.running(task, header=Message(KEY, "t1/m", claimed=True)):
        task(7)
        released = len(marks(shop))
        task_postrun.send(sender=task, task=task)

    assert (released, len(marks(shop))) == (when_released, 1)


def _fail(account_id: int) -> None:
    raise ValueError(account_id)


@pytest.mark.parametrize("what", ["link", "chain", "link_error"])
def test_a_done_mark_is_written_late_where_something_follows(shop: Shop, what: str) -> None:
    """Dead between release and follow-ups, the copy must run again: its chain would be lost for ever."""
    seen: list[Any] = []
    fails = what == "link_error"
    task = shop.unique(_fail if fails else _body, lock_key=KEY, acks_late=True, ignore_result=True)
    follow = shop.unique(_body, name="shop.next", lock=None)
    options = {what: [follow.si(1)] if what == "chain" else follow.si(1)}
    task.apply_async((7,), **options)
    request = shop.receive()
    sending = shop.app.send_task

    def send(*args: Any, **kwargs: Any) -> Any:
        seen.append(marks(shop))
        return sending(*args, **kwargs)

    shop.app.send_task = send

    shop.run(request)

    assert seen == [{}]
    assert shop.store.calls.count("mark_done") == 1
    assert len(marks(shop)) == 1


def test_a_late_mark_that_cannot_be_written_is_told(shop: Shop, caplog: Any) -> None:
    task = shop.unique(_body, lock_key=KEY, acks_late=True, ignore_result=True)
    task.apply_async((7,), link=shop.unique(_body, name="shop.next", lock=None).si(1))
    request = shop.receive()
    sending = shop.app.send_task

    def send(*args: Any, **kwargs: Any) -> Any:
        shop.store.failures = 1
        return sending(*args, **kwargs)

    shop.app.send_task = send

    shop.run(request)

    assert "no done mark for shop.sync[" in caplog.text


@pytest.mark.parametrize("error", [ValueError("x"), None], ids=repr)
def test_a_failure_is_an_outcome_too(shop: Shop, error: Exception | None) -> None:
    task = _ending(shop, error)

    with shop.running(task, header=Message(KEY, "t1/m"), delivery_info={}, ignore_result=True):
        if error:
            with pytest.raises(type(error)):
                task(7)
        else:
            task(7)

    assert list(marks(shop)) == [(KEY, "t1/m")]


@pytest.mark.parametrize("error", [Retry(), SystemExit(1), KeyboardInterrupt(), Down()], ids=repr)
def test_an_end_that_records_no_outcome_leaves_no_mark(shop: Shop, error: BaseException) -> None:
    """Killed by a signal the message is delivered again; its copy must run (law 2)."""
    task = _ending(shop, error)

    with shop.running(task, header=Message(KEY, "t1/m")), pytest.raises(type(error)):
        task(7)

    assert marks(shop) == {}
    assert shop.held() == {}


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Down(), ValueError()], ids=repr)
@pytest.mark.parametrize("options", [{"acks_late": True}, {"retry_on_worker_lost": True}, {}], ids=str)
@pytest.mark.parametrize(
    "settled_by", [os.getppid(), os.getpid(), None], ids=["its main process", "itself", "nobody"]
)
def test_a_child_that_exits_leaves_a_message_that_may_come_again_to_its_main_process(
    shop: Shop, error: BaseException, options: dict[str, Any], settled_by: int | None
) -> None:
    """Law 7: in a cold shutdown the message goes back to its queue, and nobody gets in before it."""

    def end(account_id: int) -> None:
        raise error

    task = shop.unique(end, lock_key=KEY, **options)
    properties = {RAW: {"token": "t1/r", "settled_by": settled_by}}

    with shop.running(task, properties=properties), pytest.raises(type(error)):
        task(7)

    is_left = settled_by == os.getppid() and options and isinstance(error, SystemExit | KeyboardInterrupt)
    assert [hold.token for hold in shop.held().values()] == (["t1/r"] if is_left else [])


def test_a_body_that_was_never_entered_leaves_no_mark(shop: Shop) -> None:
    """A signal between lock and body: freed after the task, and the message's copy must run."""
    task = _ending(shop, None)
    task.delay(7)
    request = shop.receive()

    def interrupted(**_: Any) -> None:
        raise Down

    lock_acquired.connect(interrupted, sender=task)

    with pytest.raises(Down):
        shop.run(request)

    assert (marks(shop), shop.held()) == ({}, {})


def _ending(shop: Shop, error: BaseException | None) -> Any:
    def end(account_id: int) -> None:
        if error is not None:
            raise error

    return shop.unique(end, lock_key=KEY, acks_late=True, ignore_result=True)


def test_a_lock_that_was_only_looked_at_leaves_no_window(shop: Shop) -> None:
    """Law 2: a copy that has nothing to do was not accepted, and keeps nobody out for ``lock_period``."""
    task = shop.unique(_body, lock_key=KEY, lock_period=50)
    shop.app.send_task("shop.sync", (7,), task_id="t1")
    shop.app.backend.mark_as_done("t1", 7)

    shop.run(redelivered=True)

    assert shop.held() == {}
    assert not task.delay(7).is_duplicate


def test_a_run_is_finished_once(shop: Shop) -> None:
    task = shop.unique(_body, lock_key=KEY)

    with shop.running(task) as request:
        task(7)
        calls = list(shop.store.calls)
        request.redislock_run.finish(None)
        request.redislock_run.settle()
        request.redislock_run.settle()

    assert shop.store.calls == calls == ["acquire", "release"]


def test_the_main_processs_token_is_the_runs(shop: Shop) -> None:
    task = shop.unique(_body, lock_key=KEY)

    with shop.running(task, properties={RAW: {"token": "t1/minted"}}) as request:
        task(7)

        assert request.redislock_run.lease.token == "t1/minted"


def test_a_convert_that_meets_another_holder_gives_no_claim(shop: Shop) -> None:
    """The lease was lost to somebody else: the retry is published, and takes its chance."""

    def sync(self: Any, account_id: int) -> None:
        MemoryStore.force_release(shop.store, KEY)
        MemoryStore.acquire(shop.store, KEY, "thief/x", 10, about={"state": QUEUED})
        self.retry(countdown=50)

    shop.unique(sync, bind=True, lock_key=KEY).delay(7)
    shop.run()

    assert not header_of(shop.message()).claimed
    assert shop.held()[KEY].owner == "thief"

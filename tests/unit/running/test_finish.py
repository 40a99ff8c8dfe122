"""How a run ends: its lock is released or handed on, and later copies of its message know of it."""

import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_postrun

from celery_redislock import SingletonTask, lock_acquired, lock_released
from celery_redislock.locks.memory import MemoryStore
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.running import run as running
from celery_redislock.testing import hold
from tests.unit.shop import KEY, SCOPES, Down, Shop, body, carried, debts


def raising(error: BaseException) -> Any:
    def fail(account_id: int) -> None:
        raise error

    return fail


# --- released --------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", SCOPES)
def test_the_lock_is_released_before_what_follows_is_published_and_the_result_is_stored(
    shop: Shop, scope: str
) -> None:
    """Law 5: who has seen a result, or is the next link, finds the lock free."""
    seen: list[Any] = []
    task = shop.unique(body, lock_key=KEY, acks_late=True, **SCOPES[scope])
    link = shop.app.task(body, name="shop.link", shared=False)
    task.apply_async((7,), link=link.si(1))
    request = shop.receive()
    sending, storing = shop.app.send_task, task.backend.mark_as_done

    def send(*args: Any, **kwargs: Any) -> Any:
        seen.append(shop.states())
        return sending(*args, **kwargs)

    def store(*args: Any, **kwargs: Any) -> Any:
        seen.append(shop.states())
        return storing(*args, **kwargs)

    shop.app.send_task, task.backend.mark_as_done = send, store
    shop.run(request)

    period = [(carried(request.message).token, "period")] if scope == "until_expired" else []
    assert seen == [period, period]


@pytest.mark.parametrize(
    "error", [ValueError("x"), Ignore(), Reject("x"), SystemExit(1), KeyboardInterrupt(), Down()], ids=repr
)
def test_the_lock_is_released_before_an_error_is_seen(shop: Shop, error: BaseException) -> None:
    """Law 5, for whatever ends the body."""
    task = shop.unique(raising(error), lock_key=KEY)

    with shop.running(task):
        with pytest.raises(type(error)) as raised:
            task(7)

        assert shop.held() == {}
    assert raised.value is error


@pytest.mark.parametrize("is_away", [True, False], ids=["no answer", "a key of another type"])
def test_trouble_with_the_release_changes_no_outcome(shop: Shop, caplog: Any, *, is_away: bool) -> None:
    """Law 9: the body has run; its lock is released late, or expires."""

    def sync(account_id: int) -> int:
        if is_away:
            shop.store.failures = float("inf")
        else:
            shop.store.has_wrong_type(KEY)
        return account_id

    task = shop.unique(sync, lock_key=KEY)

    with shop.running(task):
        assert task(7) == 7

    assert len(watchdog_of(shop.store)._debts) == is_away
    assert ("could not release the hold on 'account:7'" in caplog.text) != is_away


def test_a_lock_that_was_gone_at_the_end_is_warned_of_and_the_next_holder_keeps_it(
    shop: Shop, caplog: Any
) -> None:
    """Law 3: only the holder releases."""

    def sync(account_id: int) -> None:
        shop.store.force_release(KEY)
        shop.store.acquire(KEY, "thief/x", 10, facts="{}")

    task = shop.unique(sync, lock_key=KEY)

    with shop.running(task):
        task(7)

    assert shop.held()[KEY].owner == "thief"
    assert "shop.sync[t1] no longer held 'account:7' when it ended" in caplog.text


def test_acquiring_and_releasing_are_announced(shop: Shop) -> None:
    """The signals ``lock_acquired`` and ``lock_released``, with their documented facts."""
    task, heard = shop.unique(body, lock_key=KEY), []

    def listen(signal: Any, sender: Any, **facts: Any) -> None:
        heard.append((signal, sender, facts["key"], facts["task_id"], facts["lease"].held))

    lock_acquired.connect(listen, sender=task)
    lock_released.connect(listen, sender=task)

    with shop.running(task):
        task(7)

    assert heard == [(lock_acquired, task, KEY, "t1", True), (lock_released, task, KEY, "t1", False)]


def test_a_run_whose_end_was_interrupted_is_released_after_the_task(shop: Shop, monkeypatch: Any) -> None:
    """Law 4: ``task_postrun`` releases what a signal kept from being released."""
    shop.unique(body, lock_key=KEY).delay(7)
    monkeypatch.setattr("celery_redislock.running.unique.settle", lambda *_: exit_now())

    with pytest.raises(SystemExit):
        shop.run()

    assert shop.held() == {}


def exit_now() -> None:
    raise SystemExit(1)


@pytest.mark.parametrize("retries", [False, True])
def test_a_run_without_its_lock_releases_the_claim_of_its_message(
    shop: Shop, monkeypatch: Any, *, retries: bool
) -> None:
    """Law 4: with ``on_lock_error="run"`` nobody turns the claim into a lease; a retry waits for the key."""
    debts(shop, monkeypatch)

    def sync(self: Any, account_id: int) -> None:
        if retries:
            self.retry(countdown=50, throw=False)

    shop.unique(sync, bind=True, lock_key=KEY, on_lock_error="run").delay(7)
    shop.store.failures = 1

    shop.run()

    assert shop.held() == {}
    assert [carried(message).must_run for message in shop.messages()] == [True] * retries


# --- requeued --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acks_late", "requeue", "kept"), [(True, True, True), (True, False, False), (False, True, False)]
)
@pytest.mark.parametrize("form", ["until_executed", "while_executing", "without a header"])
def test_a_requeued_message_finds_its_claim(
    shop: Shop, form: str, *, acks_late: bool, requeue: bool, kept: bool
) -> None:
    """Law 7; without a header by its task id. Acknowledged early, it cannot be requeued: no claim."""
    ends: list[Any] = [Reject("later", requeue=requeue), None]

    def sync(account_id: int) -> None:
        if error := ends.pop(0):
            raise error

    lock = "until_executed" if form == "without a header" else form
    task = shop.unique(sync, lock=lock, lock_key=KEY, acks_late=acks_late, lock_queue_ttl=200)
    if form == "without a header":
        shop.app.send_task(task.name, (7,), task_id="t1")
    else:
        task.apply_async((7,), task_id="t1")
    message = shop.message()

    shop.run(shop.receive(message))

    assert [(hold.owner, hold.state) for hold in shop.held().values()] == [("t1", "queued")] * kept
    if kept:
        assert shop.held()[KEY].expires_in == pytest.approx(200, abs=0.9)
        shop.run(shop.receive(message, redelivered=True))
        assert (ends, shop.held()) == ([], {})


# --- handed on to a retry or a replacement ---------------------------------------------------


@pytest.mark.parametrize("throw", [True, False])
@pytest.mark.parametrize("scope", ["until_executed", "while_executing"])
def test_a_retry_is_published_at_once_and_gets_the_lease_as_its_claim_when_the_body_has_ended(
    shop: Shop, scope: str, *, throw: bool
) -> None:
    """Law 7: no death of the child loses it, and there is no gap. What counts is that it was published."""
    seen: list[Any] = []

    def sync(self: Any, account_id: int) -> str:
        if not self.request.retries:
            try:
                self.retry(countdown=50, throw=throw)
            finally:
                seen.append(shop.states())
                seen.extend(shop.messages())
        return "for now"

    task = shop.unique(sync, bind=True, lock=scope, lock_key=KEY, lock_queue_ttl=100)
    published = task.delay(7)
    request = shop.receive()

    outcome = shop.run(request)

    held_when_published, retry = seen
    assert held_when_published == [(request._run_token, "running")]
    assert isinstance(outcome, Retry) if throw else outcome == "for now"
    assert (retry.headers["id"], retry.headers["retries"]) == (published.id, 1)
    assert shop.states() == [(carried(retry).token, "queued")]
    # The claim's time begins when it is made: countdown and lock_queue_ttl from then on.
    assert shop.held()[KEY].expires_in == pytest.approx(150, abs=0.9)
    if scope == "until_executed":
        assert task.delay(7).id == published.id
    shop.run(shop.receive(retry))
    assert (shop.state(published.id), shop.held(), shop.messages()) == ("SUCCESS", {}, [])


@pytest.mark.parametrize("throw", [True, False])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_retry_has_a_token_of_its_own_and_its_first_message_is_done(
    shop: Shop, scope: str, *, throw: bool
) -> None:
    """Laws 7 and 8, in every scope: a copy of the first does nothing, and the retry runs once."""
    runs: list[int] = []

    def sync(self: Any, account_id: int) -> None:
        runs.append(self.request.retries)
        if not self.request.retries:
            self.retry(countdown=0, throw=throw)

    task = shop.unique(sync, bind=True, lock_key=KEY, acks_late=True, **SCOPES[scope])
    task.delay(7)
    first = shop.message()
    with shop.running(task, task_id=first.headers["id"], header=carried(first)):
        with suppress(Retry):
            task(7)
        assert list(shop.store.marks().values()) == ["ending"]
        task_postrun.send(sender=task, task=task)
    retry = shop.message()

    assert list(shop.store.marks().values()) == ["done"]
    assert carried(retry).token != carried(first).token
    assert (carried(retry).claimed, carried(retry).must_run) == (True, True)
    shop.run(shop.receive(first, redelivered=True))
    shop.run(shop.receive(retry))
    shop.run(shop.receive(retry, redelivered=True))
    assert (runs, shop.messages()) == ([0, 1], [])
    assert [token for token, _ in shop.states()] == [carried(first).token] * (scope == "until_expired")


@pytest.mark.parametrize("other", [7, 8])
def test_a_replacement_with_the_same_key_gets_the_claim_and_one_with_another_takes_its_own(
    shop: Shop, other: int
) -> None:
    """Law 7: ``replace()`` publishes the same task id, under the key of its own arguments."""

    def sync(self: Any, account_id: int, again: bool = True) -> str:
        if again:
            raise self.replace(self.s(other, again=False))
        return "replaced"

    task = shop.unique(sync, bind=True, lock_key="account:{account_id}")
    published = task.delay(7)
    assert isinstance(shop.run(), Ignore)

    message = shop.message()
    assert message.headers["id"] == published.id
    assert [(name, hold.token) for name, hold in shop.held().items()] == [
        (f"account:{other}", carried(message).token)
    ]
    assert shop.run(shop.receive(message)) == "replaced"
    assert shop.held() == {}


def test_the_first_of_several_messages_gets_the_claim_and_the_others_run_after_it(shop: Shop) -> None:
    """Law 7: several ``retry(throw=False)``; a retry takes over a queued claim of its own task id."""
    runs: list[int] = []

    def sync(self: Any, account_id: int) -> None:
        runs.append(self.request.retries)
        if not self.request.retries:
            self.retry(countdown=1, throw=False)
            self.retry(countdown=2, throw=False)

    shop.unique(sync, bind=True, lock_key=KEY).delay(7)
    shop.run()
    first, second = shop.messages()

    assert shop.states() == [(carried(first).token, "queued")]
    shop.run(shop.receive(second))
    shop.run(shop.receive(first))

    assert (runs, shop.held()) == ([0, 1, 1], {})


@pytest.mark.parametrize("thief", [False, True])
def test_a_lease_that_is_gone_becomes_no_claim_and_the_retry_waits_for_its_turn(
    shop: Shop, *, thief: bool
) -> None:
    """Law 3: nothing is acquired for a message that may be done by then."""

    def sync(self: Any, account_id: int) -> str:
        if self.request.retries:
            return "done"
        MemoryStore.force_release(shop.store, KEY)
        if thief:
            MemoryStore.acquire(shop.store, KEY, "thief/x", 10, facts="{}")
        raise self.retry(countdown=50)

    shop.unique(sync, bind=True, lock_key=KEY).delay(7)
    shop.run()

    assert [token for token, _ in shop.states()] == ["thief/x"] * thief
    if thief:
        assert isinstance(shop.run(), Ignore)
        shop.store.force_release(KEY)
    assert shop.run() == "done"


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("reason", ["revoked", "expired", "before_start fails", "its start is cut short"])
def test_a_retry_that_was_dropped_before_the_body_ended_gets_no_claim(
    shop: Shop, monkeypatch: Any, scope: str, reason: str
) -> None:
    """Law 4: whoever drops it marks it done, so that the lease is released instead."""
    debts(shop, monkeypatch)

    class Checked(SingletonTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            if self.request.retries and reason == "before_start fails":
                raise ValueError(reason)

    def sync(self: Any, account_id: int) -> None:
        self.retry(countdown=50, throw=False)
        retry = shop.receive()
        if reason in {"revoked", "expired"}:
            retry._announce_revoked(reason, False, None, reason == "expired")
        else:
            shop.store.failures = reason == "its start is cut short"
            shop.store.error = lambda _verb: ValueError(reason)
            shop.run(retry)

    shop.unique(sync, bind=True, base=Checked, lock_key=KEY, **SCOPES[scope]).delay(7)
    message = shop.message()

    shop.run(shop.receive(message))

    assert shop.states() == []


@pytest.mark.parametrize("error", [OSError("no broker"), SystemExit(1), Down()], ids=repr)
def test_a_retry_that_could_not_be_published_gets_no_claim(shop: Shop, error: BaseException) -> None:
    """Law 4: a claim without a message would stand for an hour."""

    def no_broker(*_: Any, **__: Any) -> None:
        raise error

    def sync(self: Any, account_id: int) -> None:
        shop.app.send_task = no_broker
        self.retry(countdown=50, throw=False)

    task = shop.unique(sync, bind=True, lock_key=KEY)

    with shop.running(task), pytest.raises((type(error), Reject)):  # Celery rejects it for an Exception
        task(7)

    assert shop.held() == {}


def test_a_hand_over_that_the_server_does_not_answer_is_owed(shop: Shop, monkeypatch: Any) -> None:
    """Laws 7 and 9: late, the lease becomes the retry's claim all the same, if it is still held."""
    owed = debts(shop, monkeypatch)

    def sync(self: Any, account_id: int) -> None:
        self.retry(countdown=50, throw=False)
        shop.store.failures = 1

    shop.unique(sync, bind=True, lock_key=KEY).delay(7)
    shop.run()

    (hand_on,) = owed
    hand_on()
    assert shop.states() == [(carried(shop.message()).token, "queued")]


# --- marks -----------------------------------------------------------------------------------

#: Why the broker may deliver a message once more although a worker runs it.
COMES_AGAIN = ["acks_late", "eta", "redelivered", "kept by a worker"]


def given(shop: Shop, monkeypatch: Any, why: str, function: Any = body, **options: Any) -> Any:
    """Publish and receive a message that may come again."""
    task = shop.unique(function, lock_key=KEY, acks_late=why == "acks_late", **options)
    task.apply_async((7,), task_id="t1", **({"countdown": 1} if why == "eta" else {}))
    request = shop.receive(redelivered=why == "redelivered")
    kept = 1801 if why == "kept by a worker" else 1799
    monkeypatch.setattr(running, "time", SimpleNamespace(time=lambda: time.time() + kept))
    return request


@pytest.mark.parametrize("why", [*COMES_AGAIN, "never"])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_message_that_may_come_again_is_marked_ending_at_its_release_and_done_after_its_task(
    shop: Shop, monkeypatch: Any, scope: str, why: str
) -> None:
    """Law 8, in every scope; law 4: nothing is left for a message that cannot come again."""
    request = given(shop, monkeypatch, why, **SCOPES[scope])
    seen: list[Any] = []
    storing = request.task.backend.mark_as_done

    def store(*args: Any, **kwargs: Any) -> Any:
        seen.extend(shop.store.marks().items())
        return storing(*args, **kwargs)

    request.task.backend.mark_as_done = store
    shop.run(request)

    token = carried(request.message).token
    locked = KEY if scope in {"until_executed", "while_executing"} else f"message:{token}"
    is_marked = why != "never"
    assert seen == [((locked, token), "ending")] * is_marked
    assert list(shop.store.marks().items()) == [((locked, token), "done")] * is_marked


def test_the_mark_ending_lives_one_lock_ttl_and_done_an_hour_beyond_the_visibility_timeout(
    shop: Shop,
) -> None:
    """Law 8: a copy must find ``done`` whenever it may come."""
    shop.app.conf.broker_transport_options = {"visibility_timeout": 500}
    task = shop.unique(body, lock_key=KEY, lock_ttl=40, acks_late=True)

    def marked_until() -> float:
        ((_, until),) = shop.store._marks.values()
        return until - shop.store._clock()

    storing = task.backend.mark_as_done

    def store(*args: Any, **kwargs: Any) -> Any:
        assert marked_until() == pytest.approx(40, abs=0.9)
        return storing(*args, **kwargs)

    task.backend.mark_as_done = store
    task.delay(7)

    assert shop.run() == 7
    assert marked_until() == pytest.approx(500 + 3600, abs=0.9)


@pytest.mark.parametrize("error", [ValueError("x"), Ignore(), Reject("x"), Retry()], ids=repr)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_message_is_done_however_its_body_ended(shop: Shop, scope: str, error: Exception) -> None:
    """Law 8: a failure is an outcome, and a message that was ignored or rejected does not run again."""
    shop.unique(raising(error), lock_key=KEY, acks_late=True, **SCOPES[scope]).delay(7)

    shop.run()

    assert list(shop.store.marks().values()) == ["done"]


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), Down(), Reject("x", requeue=True)], ids=repr
)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_message_that_was_requeued_or_whose_child_exits_is_not_done(
    shop: Shop, scope: str, error: BaseException
) -> None:
    """Law 2: it is delivered again, and must run then."""
    errors: list[BaseException] = [error]

    def sync(account_id: int) -> int:
        if errors:
            raise errors.pop()
        return account_id

    shop.unique(sync, lock_key=KEY, acks_late=True, **SCOPES[scope]).delay(7)
    message = shop.message()
    with suppress(SystemExit, KeyboardInterrupt, Down):
        shop.run(shop.receive(message))

    assert shop.store.marks() == {}
    assert shop.run(shop.receive(message, redelivered=True)) == 7


def test_a_message_that_was_published_again_to_wait_is_not_done(shop: Shop) -> None:
    """Law 2: it keeps its token, and has not run yet."""
    task = shop.unique(body, lock_key=KEY, acks_late=True, lock="while_executing")
    task.delay(7)

    with hold(task, 7):
        assert isinstance(shop.run(), Ignore)

    assert shop.store.marks() == {}
    assert shop.run() == 7


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Down()], ids=repr)
def test_a_message_whose_result_could_not_be_stored_is_not_done(shop: Shop, error: BaseException) -> None:
    """Law 8: a death before result and follow-ups are recorded is that of an unfinished run."""
    task = shop.unique(body, lock_key=KEY, acks_late=True)
    task.delay(7)

    def interrupted(*_: Any, **__: Any) -> None:
        raise error

    task.backend.mark_as_done = interrupted
    with pytest.raises(type(error)):
        shop.run()

    assert list(shop.store.marks().values()) == ["ending"]


def test_a_done_mark_the_server_does_not_answer_is_owed(shop: Shop, monkeypatch: Any) -> None:
    """Laws 8 and 9: it is written late, for as long as it is of use."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock_key=KEY, acks_late=True)
    task.delay(7)
    request = shop.receive()
    storing = task.backend.mark_as_done

    def store(*args: Any, **kwargs: Any) -> Any:
        shop.store.failures = 1
        return storing(*args, **kwargs)

    task.backend.mark_as_done = store
    shop.run(request)

    (mark,) = owed
    mark()
    assert list(shop.store.marks().values()) == ["done"]


def test_a_run_takes_one_request_to_start_and_one_to_release_and_one_for_its_mark(shop: Shop) -> None:
    """Law 10."""
    shop.unique(body, lock_key=KEY).delay(7)
    shop.store.calls.clear()
    shop.run()
    assert shop.store.calls == ["acquire", "release"]

    shop.unique(body, name="shop.late", lock_key=KEY, acks_late=True).delay(7)
    shop.store.calls.clear()
    shop.run()
    assert shop.store.calls == ["acquire", "release", "mark_done"]

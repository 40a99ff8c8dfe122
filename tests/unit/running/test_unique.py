"""Running: a lease from start to end, given back before anybody sees the end."""

import logging
import pickle
import threading
from typing import Any

import pytest
from celery import Task
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded, TaskRevokedError

from celery_redislock import (
    DuplicateTask,
    LockLost,
    LockOptionError,
    LockUnavailable,
    SingletonTask,
    lock_acquired,
    lock_lost,
    lock_released,
)
from celery_redislock.locks.lease import InertLease
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.running.run import run_of
from celery_redislock.testing import hold, locks_off
from tests.unit.shop import Down, Shop, debts, no_patience

KEY = "account:7"


def body(account_id: int = 7) -> int:
    return account_id


def claimed(shop: Shop, task_id: str = "t1", **more: Any) -> Message:
    """Take a claim as a publisher would, and return the header its message carries."""
    header = Message(KEY, f"{task_id}/claim", claimed=True, **more)
    work = Work(KEY, "shop.sync", task_id, "digest")
    shop.store.acquire(KEY, header.token, 100, about=work.about("queued", message=header.token))
    shop.store.calls.clear()
    return header


def looking(shop: Shop, seen: list[Any], **options: Any) -> Any:
    """A task that notes who holds its lock while its body is on."""

    def look(account_id: int = 7) -> int:
        seen.append(shop.holder(KEY))
        return account_id

    return shop.unique(look, lock_key="account:{account_id}", **options)


# --- one run, scope by scope -----------------------------------------------------------------


def test_a_claim_becomes_a_lease_and_is_gone_when_the_run_returns(shop: Shop) -> None:
    """Law 5: released before anybody sees the end. Law 10: one request to start, one to release."""
    seen: list[Any] = []
    task = looking(shop, seen)
    header = claimed(shop)

    with shop.running(task, header=header) as request:
        value = task(7)

        assert shop.held() == {}
    (lease,) = seen
    assert value == 7
    assert (lease.owner, lease.about["state"]) == ("t1", "running")
    assert lease.token != header.token
    assert lease.expires_in == pytest.approx(30, abs=0.5)
    assert shop.store.calls == ["acquire", "release"]
    assert request.redislock_skipped is False


def test_a_message_without_a_header_takes_the_lock_itself(shop: Shop) -> None:
    """``send_task``, beat without the task, other languages."""
    seen: list[Any] = []
    task = looking(shop, seen)

    with shop.running(task):
        task(7)

    assert seen[0].owner == "t1"
    assert shop.held() == {}


def test_a_message_without_a_header_takes_over_its_publishers_claim(shop: Shop) -> None:
    """Whatever has lost it on the way: the claim is the message's own all the same."""
    seen: list[Any] = []
    task = looking(shop, seen)
    claimed(shop)

    with shop.running(task):
        assert task(7) == 7

    assert seen[0].about["state"] == "running"
    assert shop.held() == {}


def test_the_key_of_the_message_beats_the_tasks_own(shop: Shop) -> None:
    """A deploy that changes ``lock_key`` affects new messages only."""
    seen: list[Any] = []
    task = shop.unique(lambda_like(seen, shop), lock_key="other:{account_id}")
    header = claimed(shop)

    with shop.running(task, header=header):
        task(7)

    assert seen == [[KEY]]


def lambda_like(seen: list[Any], shop: Shop) -> Any:
    def look(account_id: int) -> None:
        seen.append(list(shop.held()))

    return look


def test_a_header_copied_from_another_message_counts_for_nothing(shop: Shop) -> None:
    """Law 3. Whoever hands on all headers of its request must not hand on its lock."""
    keys: list[str] = []

    def note(self: Any, account_id: int) -> None:
        keys.append(self.lease.key)

    task = shop.unique(note, bind=True)
    other = claimed(shop, "t0")
    shop.app.send_task("shop.sync", (7,), task_id="t1", headers={HEADER: other.dumps()})

    shop.run()

    assert keys == [task.lock_for(7).key]
    assert shop.holder(KEY).token == other.token  # type: ignore[union-attr]  # it is held


def test_while_executing_holds_only_while_it_runs(shop: Shop) -> None:
    seen: list[Any] = []
    task = looking(shop, seen, lock="while_executing")

    task.delay(7)
    assert shop.held() == {}
    shop.run()

    assert seen[0].about["state"] == "running"
    assert shop.held() == {}


def test_until_executing_gives_the_claim_back_before_the_body(shop: Shop) -> None:
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing")
    header = claimed(shop)

    with shop.running(task, header=header):
        task(7)

    assert seen == [None]
    assert shop.store.calls == ["release"]


def test_until_executing_without_a_header_yields_to_a_queued_one(shop: Shop) -> None:
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing")
    claimed(shop, "queued")

    with shop.running(task) as request, pytest.raises(Ignore):
        task(7)

    assert (seen, request.redislock_skipped) == ([], True)
    assert [claim.owner for claim in shop.held().values()] == ["queued"]


@pytest.mark.parametrize("strategy", ["retry", "skip", "raise"])
def test_until_executing_without_a_claim_yields_to_a_queued_one(shop: Shop, strategy: str) -> None:
    """Law 1: published without a claim "so that the worker decides", it is decided there."""
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing", on_conflict={"client": "retry", "server": strategy})
    first, second = task.delay(7), task.delay(7)
    one, other = (shop.receive(message) for message in shop.messages())

    outcome = shop.run(other)

    assert seen == []
    assert [claim.owner for claim in shop.held().values()] == [first.id]
    if strategy == "retry":
        put_off = shop.receive()
        assert put_off.id == second.id
        shop.run(one)
        shop.run(put_off)
        assert seen == [None, None]
    else:
        assert shop.state(second.id) == {"skip": "REVOKED", "raise": "FAILURE"}[strategy]
        assert isinstance(outcome, DuplicateTask) is (strategy == "raise")


@pytest.mark.parametrize("more", [{"must_run": True}, {}], ids=["a member", "a retry"])
def test_until_executing_runs_what_somebody_waits_for(shop: Shop, more: dict[str, Any]) -> None:
    """A member of a workflow, and what was accepted before its retry, are not decided again."""
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing")
    claimed(shop, "queued")
    header = Message(KEY, "t1/bare", claimed=False, **more)

    with shop.running(task, header=header, retries=0 if more else 1):
        task(7)

    assert [hold.owner for hold in seen] == ["queued"]


@pytest.mark.parametrize("has_header", [True, False])
def test_until_executing_without_a_claim_begins_its_window(shop: Shop, *, has_header: bool) -> None:
    """``lock_period`` counts from the start of what was not accepted at its publish."""
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing", lock_period=50)
    header = Message(KEY, "t1/bare", claimed=False) if has_header else None

    with shop.running(task, header=header):
        task(7)

    (window,) = seen
    assert (window.owner, window.is_window) == ("t1", True)
    assert shop.held() == {}
    assert task.delay(7).is_duplicate


def test_until_executing_passes_through_its_own_window(shop: Shop) -> None:
    """Delivered a second time, it was accepted already."""
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing", lock_period=50)
    for redelivered in (False, True):
        delivery = {"redelivered": redelivered, "routing_key": shop.queue, "exchange": ""}
        with shop.running(task, header=Message(KEY, "t1/bare", claimed=False), delivery_info=delivery):
            task(7)

    assert len(seen) == 2


@pytest.mark.parametrize("own_claim", [True, False])
def test_until_executing_without_a_header_runs_on_a_free_key_and_on_its_own(
    shop: Shop, *, own_claim: bool
) -> None:
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing")
    if own_claim:
        claimed(shop)

    with shop.running(task):
        task(7)

    assert (seen, shop.held()) == ([None], {})


def test_until_expired_keeps_its_claim_however_it_ends(shop: Shop) -> None:
    def fail(account_id: int) -> None:
        raise ValueError(account_id)

    task = shop.unique(fail, lock="until_expired", lock_period=50, lock_key=KEY)
    header = claimed(shop, stands_for_period=True)

    with shop.running(task, header=header), pytest.raises(ValueError, match="7"):
        task(7)

    assert shop.held()[KEY].token == header.token
    assert shop.store.calls == []


def test_until_expired_without_a_claim_is_accepted_when_it_starts(shop: Shop) -> None:
    """Beat without the task imported: the workers decide which of its messages counts."""
    task = shop.unique(body, lock="until_expired", lock_period=50, lock_key=KEY)

    with shop.running(task):
        first = task(7)
    with shop.running(task, task_id="t2"), pytest.raises(Ignore):
        task(7)
    with shop.running(task):
        again = task(7)

    assert (first, again) == (7, 7)
    assert shop.held()[KEY].owner == "t1"
    assert shop.held()[KEY].expires_in == pytest.approx(50, abs=0.9)


def test_a_window_that_was_begun_at_publish_is_not_begun_anew_when_it_runs(shop: Shop) -> None:
    """``until_expired`` counts from acceptance."""
    task = shop.unique(body, lock="until_expired", lock_period=50, lock_key=KEY)
    task.delay(7)
    (accepted,) = shop.held().values()
    shop.store.calls.clear()

    assert shop.run() == 7

    (hold,) = shop.held().values()
    assert (hold.token, hold.about["since"]) == (accepted.token, accepted.about["since"])
    assert shop.store.calls == []


@pytest.mark.parametrize("before", ["until_executed", "until_executing"])
def test_a_claim_of_the_scope_before_a_deploy_becomes_a_window(shop: Shop, before: str) -> None:
    """Law 4: kept for what it was not made for, it would stand there for ``lock_queue_ttl``."""
    task = shop.unique(body, lock=before, lock_key=KEY)
    task.delay(7)
    task.lock, task.lock_period = "until_expired", 50

    assert shop.run() == 7

    (hold,) = shop.held().values()
    assert hold.about["state"] == "window"
    assert hold.expires_in == pytest.approx(50, abs=0.9)


def test_a_retry_of_until_expired_runs_after_its_window(shop: Shop) -> None:
    """It was accepted; its retries belong to the same job."""
    task = shop.unique(body, lock="until_expired", lock_period=50, lock_key=KEY)
    claimed(shop, "somebody")

    with shop.running(task, header=Message(KEY, "t1/x"), retries=1):
        assert task(7) == 7


@pytest.mark.parametrize("header", [None, Message(None, "t1/x")], ids=["task", "call"])
def test_lock_none_touches_no_lock(shop: Shop, header: Message | None) -> None:
    task = shop.unique(body, lock="until_executed" if header else None)

    with shop.running(task, header=header):
        assert task(7) == 7

        assert isinstance(task.lease, InertLease)
    assert shop.store.calls == []


def test_a_task_no_longer_locked_gives_its_messages_claims_back(shop: Shop) -> None:
    task = shop.unique(body, lock=None)

    with shop.running(task, header=claimed(shop)):
        assert task(7) == 7

    assert shop.held() == {}


def test_an_argument_that_makes_no_key_fails_the_task_and_frees_its_claim(shop: Shop) -> None:
    def ship(account_id: int) -> int:
        return account_id

    task = shop.unique(ship, typing=True)

    with shop.running(task, header=claimed(shop)), pytest.raises(TypeError):
        task(1, 2, 3)

    assert shop.held() == {}


def test_switched_off_nothing_is_locked(shop: Shop) -> None:
    task = shop.unique(body)

    with locks_off(), shop.running(task, header=Message(KEY, "t1/x", claimed=True)):
        assert task(7) == 7

    assert shop.store.calls == []


def test_options_of_the_message_win_over_the_tasks_own(shop: Shop) -> None:
    seen: list[Any] = []
    task = looking(shop, seen, lock_ttl=20)

    with shop.running(task, header=claimed(shop, options={"lock_ttl": 90})):
        task(7)

    assert seen[0].expires_in == pytest.approx(90, abs=0.9)


@pytest.mark.parametrize(
    ("task_limit", "message_limit", "own", "expected"),
    [(None, None, None, None), (100, None, None, 110), (100, [200, None], None, 210), (100, None, 60, 60)],
)
def test_a_run_is_renewed_for_its_hard_limit_and_no_longer(
    shop: Shop, monkeypatch: Any, task_limit: Any, message_limit: Any, own: Any, expected: Any
) -> None:
    """Law 4: one run cannot be renewed for ever where anything says how long it may last."""
    task = shop.unique(body, lock_key=KEY, time_limit=task_limit, lock_max_hold=own)
    given = []
    monkeypatch.setattr(watchdog_of(shop.store), "watch", lambda _lease, max_hold: given.append(max_hold))

    with shop.running(task, timelimit=message_limit):
        task(7)

    assert given == [expected]


# --- every way a body ends -------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("x"), Ignore(), Reject("x"), SystemExit(1), Down()], ids=repr)
def test_the_lock_is_free_before_the_error_is_seen(shop: Shop, error: BaseException) -> None:
    """Law 5, for whatever ends the body."""

    def fail(account_id: int) -> None:
        assert KEY in shop.held()
        raise error

    task = shop.unique(fail, lock_key=KEY)

    with shop.running(task, header=claimed(shop)):
        with pytest.raises(type(error)) as raised:
            task(7)

        assert shop.held() == {}
    assert raised.value is error


@pytest.mark.parametrize(
    ("acks_late", "requeue", "kept"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_a_message_that_goes_back_to_its_queue_finds_its_claim_again(
    shop: Shop, *, acks_late: bool, requeue: bool, kept: bool
) -> None:
    """Law 7. Without ``acks_late`` the message was acknowledged long ago: nothing comes back."""

    def reject(account_id: int) -> None:
        raise Reject("later", requeue=requeue)

    task = shop.unique(reject, lock_key=KEY, acks_late=acks_late, lock_queue_ttl=200)
    header = claimed(shop)

    with shop.running(task, header=header), pytest.raises(Reject):
        task(7)

    assert [(h.token, h.about["state"]) for h in shop.held().values()] == (
        [(header.token, "queued")] if kept else []
    )
    if kept:
        assert shop.held()[KEY].expires_in == pytest.approx(200, abs=0.9)


def test_a_requeued_message_without_a_header_finds_its_claim_too(shop: Shop) -> None:
    ends: list[Any] = [Reject("later", requeue=True), None]

    def reject(account_id: int) -> str:
        error = ends.pop(0)
        if error:
            raise error
        return "done"

    task = shop.unique(reject, lock_key=KEY, acks_late=True)

    with shop.running(task), pytest.raises(Reject):
        task(7)
    assert shop.held()[KEY].owner == "t1"
    with shop.running(task, delivery_info={"redelivered": True}):
        assert task(7) == "done"

    assert shop.held() == {}


def test_a_release_that_fails_does_not_change_the_outcome(shop: Shop, caplog: Any) -> None:
    """Law 9: the body has run; its lock is given back later, or expires."""

    def work(account_id: int) -> int:
        shop.store.failures = float("inf")
        return account_id

    task = shop.unique(work, lock_key=KEY)

    with shop.running(task):
        assert task(7) == 7

    assert watchdog_of(shop.store).owes == 1


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), SoftTimeLimitExceeded(), Down()], ids=repr
)
def test_a_release_that_is_interrupted_is_owed(shop: Shop, monkeypatch: Any, error: BaseException) -> None:
    """Law 4: the run is over and renewed no more, so nobody would release it before it expires."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock_key=KEY)

    def interrupted(*_: Any, **__: Any) -> None:
        raise error

    with shop.running(task, header=claimed(shop)), monkeypatch.context() as patch:
        patch.setattr(shop.store, "release", interrupted)
        with pytest.raises(type(error)) as raised:
            task(7)

    assert raised.value is error
    assert set(shop.held()) == {KEY}
    (release,) = owed
    release()
    assert shop.held() == {}


@pytest.mark.parametrize("claimed_at", ["publish", "start"])
@pytest.mark.parametrize("error", [SystemExit(1), SoftTimeLimitExceeded(), Down()], ids=repr)
def test_a_claim_that_is_given_back_before_the_body_is_owed_if_that_is_interrupted(
    shop: Shop, monkeypatch: Any, error: BaseException, claimed_at: str
) -> None:
    """Law 4: ``until_executing`` has nobody else who would give it back."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock="until_executing", lock_period=50, lock_key=KEY)
    header = claimed(shop) if claimed_at == "publish" else Message(KEY, "t1/bare")

    def interrupted(*_: Any, **__: Any) -> None:
        raise error

    with shop.running(task, header=header), monkeypatch.context() as patch:
        patch.setattr(shop.store, "release", interrupted)
        with pytest.raises(type(error)):
            task(7)

    (hold,) = shop.held().values()
    assert hold.expires_in <= (100 if claimed_at == "publish" else 30)
    for release in owed:
        release()
    assert shop.held() == {}


def test_a_key_overwritten_by_another_kind_does_not_change_the_outcome(shop: Shop, caplog: Any) -> None:
    def work(account_id: int) -> int:
        shop.store.has_wrong_type(KEY)
        return account_id

    task = shop.unique(work, lock_key=KEY)

    with shop.running(task):
        assert task(7) == 7

    assert "could not release 'account:7'" in caplog.text


def test_a_lock_taken_away_while_it_ran_is_told(shop: Shop, caplog: Any) -> None:
    def work(account_id: int) -> None:
        shop.store.force_release(KEY)
        shop.store.acquire(KEY, "thief/x", 10, about={})

    task = shop.unique(work, lock_key=KEY)

    with shop.running(task):
        task(7)

    assert shop.held()[KEY].owner == "thief"
    assert "shop.sync[t1] no longer held 'account:7' when it ended" in caplog.text


def test_start_and_end_are_announced(shop: Shop) -> None:
    task, heard = shop.unique(body, lock_key=KEY), []

    def on_acquired(sender: Any, **facts: Any) -> None:
        heard.append(("acquired", sender, facts["key"], facts["task_id"], facts["lease"].held))

    def on_released(sender: Any, **facts: Any) -> None:
        heard.append(("released", sender, facts["key"], facts["task_id"], facts["lease"].held))

    lock_acquired.connect(on_acquired, sender=task)
    lock_released.connect(on_released, sender=task)

    with shop.running(task):
        task(7)

    assert heard == [("acquired", task, KEY, "t1", True), ("released", task, KEY, "t1", False)]


def test_a_claim_that_had_expired_is_told(shop: Shop, caplog: Any) -> None:
    task = shop.unique(body, lock_key=KEY)

    with shop.running(task, header=Message(KEY, "t1/gone", claimed=True)):
        assert task(7) == 7

    assert "the claim of shop.sync[t1] on 'account:7' was gone when it started" in caplog.text


def test_what_before_the_body_ended_is_settled_after_the_task(shop: Shop) -> None:
    """A soft limit between lock and body reaches no ``finally`` of ours; ``task_postrun`` does."""
    task = shop.unique(body, lock_key=KEY)

    def interrupted(**_: Any) -> None:
        raise Down

    task.delay(7)
    request = shop.receive()
    lock_acquired.connect(interrupted, sender=task)

    with pytest.raises(Down):
        shop.run(request)

    assert shop.held() == {}


# --- recursion and own __call__ --------------------------------------------------------------


def test_a_body_that_calls_its_own_task_does_not_lock_itself(shop: Shop) -> None:
    def count(account_id: int) -> int:
        return 0 if account_id == 0 else 1 + int(shop.app.tasks["shop.sync"](account_id - 1))

    task = shop.unique(count, lock_key=KEY)
    task.delay(3)

    assert shop.run() == 3
    assert shop.store.calls == ["acquire", "acquire", "release"]


def test_a_direct_call_touches_no_lock(shop: Shop) -> None:
    task = shop.unique(body)

    assert task(7) == 7
    assert shop.store.calls == []


@pytest.mark.parametrize("way", ["super", "run", "inherited", "mixin"])
def test_an_own_call_cannot_step_around_the_lock(shop: Shop, way: str) -> None:
    """A subclass whose ``__call__`` goes to ``run`` would bypass the lock in silence."""
    seen: list[Any] = []

    class Super(SingletonTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("mine")
            return super().__call__(*args, **kwargs)

    class Run(SingletonTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("mine")
            return self.run(*args, **kwargs)

    class Inherited(Run):
        abstract = True

    class Mixin(Super):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("outer")
            return super().__call__(*args, **kwargs)

    base = {"super": Super, "run": Run, "inherited": Inherited, "mixin": Mixin}[way]

    def look(account_id: int) -> int:
        seen.append([h.about["state"] for h in shop.held().values()])
        return account_id

    task = shop.unique(look, base=base, lock_key=KEY)
    task.delay(7)
    shop.store.calls.clear()

    assert shop.run() == 7

    assert seen == [*(["outer"] if way == "mixin" else []), "mine", ["running"]]
    assert shop.store.calls == ["acquire", "release"]
    assert task(7) == 7


# --- before_start ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "acks_late", "kept"),
    [
        (ValueError("x"), False, False),
        (Reject("x", requeue=False), True, False),
        (Reject("x", requeue=True), True, True),
        (Reject("x", requeue=True), False, False),
        (Retry(), False, True),
    ],
    ids=repr,
)
def test_what_before_start_raises_gives_the_claim_back_unless_the_message_returns(
    shop: Shop, error: Exception, *, acks_late: bool, kept: bool
) -> None:
    class Careful(SingletonTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            raise error

    task = shop.unique(body, base=Careful, lock_key=KEY, acks_late=acks_late)
    header = claimed(shop)

    with shop.running(task, header=header), pytest.raises(type(error)):
        task.before_start("t1", (7,), {})

    assert [h.token for h in shop.held().values()] == ([header.token] if kept else [])


@pytest.mark.parametrize("put_off", [False, True])
@pytest.mark.parametrize("lock", ["while_executing", "until_executed"])
def test_a_claim_for_what_went_back_to_its_queue_ends_with_before_start(
    shop: Shop, lock: str, *, put_off: bool
) -> None:
    """Law 4: the message was published without one, and got it when its first run went back."""
    first = [True]

    class Careful(SingletonTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            if not first:
                message = "not now"
                raise ValueError(message)

    def go_back(account_id: int) -> None:
        first.clear()
        message = "again"
        raise Reject(message, requeue=True)

    task = shop.unique(go_back, base=Careful, lock=lock, lock_key=KEY, acks_late=True)
    task.delay(7)
    message = shop.message()
    shop.run(shop.receive(message))
    assert [hold.about["state"] for hold in shop.held().values()] == ["queued"]

    if put_off:
        message.headers[HEADER] = Message.loads(message.headers[HEADER]).as_copy().dumps()  # type: ignore[union-attr]
    outcome = shop.run(shop.receive(message, redelivered=not put_off))

    assert isinstance(outcome, ValueError)
    assert shop.held() == {}


def test_what_before_start_raises_gives_back_the_claim_of_the_scope_before_a_deploy(shop: Shop) -> None:
    """Law 4: what holds nothing while it runs was published when the task had another scope."""

    class Careful(SingletonTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            message = "not now"
            raise ValueError(message)

    task = shop.unique(body, base=Careful, lock="until_expired", lock_period=50, lock_key=KEY)

    with shop.running(task, header=claimed(shop)), pytest.raises(ValueError, match="not now"):
        task.before_start("t1", (7,), {})

    assert shop.held() == {}


def went_back(shop: Shop, task: Any) -> Any:
    """A message that was published without a claim, and whose first run has left one."""
    header = Message(KEY, "t1/bare")
    work = Work(KEY, "shop.sync", "t1", "digest")
    shop.store.acquire(KEY, header.token, 100, about=work.about("queued", message=header.token))
    delivery = {"redelivered": True, "routing_key": shop.queue, "exchange": ""}
    return shop.running(task, header=header, delivery_info=delivery)


def test_a_claim_for_what_went_back_is_owed_if_it_cannot_start(shop: Shop, monkeypatch: Any) -> None:
    """Law 4, where nothing more comes of the message."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock="while_executing", lock_key=KEY)

    def interrupted(*_: Any, **__: Any) -> None:
        raise Down

    with went_back(shop, task):
        monkeypatch.setattr(shop.store, "acquire", interrupted)
        with pytest.raises(Down):
            task(7)

    for release in owed:
        release()
    assert shop.held() == {}


def test_a_claim_for_what_went_back_ends_with_a_run_without_a_lock(shop: Shop) -> None:
    """Law 4: with ``on_lock_error="run"`` nobody turns it into a lease."""
    task = shop.unique(body, lock="while_executing", lock_key=KEY, on_lock_error="run")

    with went_back(shop, task):
        shop.store.failures = 1
        assert task(7) == 7

    assert shop.held() == {}


def test_an_error_of_before_start_is_told_although_the_server_is_away(shop: Shop, caplog: Any) -> None:
    class Careful(SingletonTask):
        abstract = True

        def before_start(self, task_id: str, *_: Any) -> None:
            raise ValueError(task_id)

    task = shop.unique(body, base=Careful, lock_key=KEY)
    header = claimed(shop)
    shop.store.has_wrong_type(KEY)

    with shop.running(task, header=header), pytest.raises(ValueError, match="t1"):
        task.before_start("t1", (7,), {})

    assert "could not give back" in caplog.text


# --- the lease a body sees -------------------------------------------------------------------


def test_a_body_sees_its_lease(shop: Shop) -> None:
    seen: dict[str, Any] = {}

    def look(self: Any, account_id: int) -> None:
        lease = self.lease
        lease.check()
        seen.update(key=lease.key, held=lease.held, lost=lease.lost, fence=lease.fence, token=lease.token)
        seen["expires_in"] = lease.expires_in

    task = shop.unique(look, bind=True, lock_key=KEY)

    with shop.running(task):
        task(7)

        assert not task.lease.held
        with pytest.raises(LockLost, match="given back"):
            task.lease.check()
    assert (seen["key"], seen["held"], seen["lost"]) == (KEY, True, False)
    assert seen["token"].startswith("t1/")
    assert seen["fence"] > 10**15
    assert 28 < seen["expires_in"] <= 30


def test_without_a_lock_the_lease_is_inert(shop: Shop) -> None:
    task = shop.unique(body, lock="until_executing")

    for lease in (task.lease, _lease_within(shop, task)):
        lease.check()
        assert (lease.held, lease.lost, lease.fence, lease.key, lease.token) == (
            False,
            False,
            None,
            None,
            None,
        )
        assert lease.expires_in == 0


def _lease_within(shop: Shop, task: Any) -> Any:
    with shop.running(task):
        task(7)
        return task.lease


# --- a lease that is lost --------------------------------------------------------------------


def lose(shop: Shop, **options: Any) -> tuple[Any, list[Any]]:
    """A task whose lease is declared lost while its body is on."""
    steps: list[Any] = []

    def work(self: Any, account_id: int) -> str:
        watchdog = threading.Thread(target=self.lease.lose, args=("taken away",))
        watchdog.start()
        watchdog.join()
        for step in range(100_000):
            steps.append(step)
        return "went on"

    return shop.unique(work, bind=True, lock_key=KEY, **options), steps


def test_a_loss_is_logged_and_announced_and_the_body_goes_on(shop: Shop, caplog: Any) -> None:
    task, _ = lose(shop)
    heard = []

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((sender, facts["key"], facts["task_id"], facts["lease"].lost_because))

    lock_lost.connect(listen, sender=task)

    with shop.running(task):
        assert task(7) == "went on"

    assert heard == [(task, KEY, "t1", "taken away")]
    assert "shop.sync[t1] lost its lock on 'account:7' while running: taken away" in caplog.text


def test_a_callable_is_told_of_a_loss(shop: Shop) -> None:
    told = []
    task, _ = lose(shop, on_lock_lost=lambda lease: told.append((lease.key, lease.lost)))

    with shop.running(task):
        assert task(7) == "went on"

    assert told == [(KEY, True)]


def test_terminate_raises_inside_the_body(shop: Shop) -> None:
    task, steps = lose(shop, on_lock_lost="terminate")

    with shop.running(task), pytest.raises(LockLost, match="'account:7' was lost: taken away"):
        task(7)

    assert len(steps) < 100_000


def test_terminate_begins_no_body_whose_lease_is_lost_already(shop: Shop) -> None:
    """Law 1: lost between lock and body there was nothing yet to interrupt."""
    begun: list[int] = []

    def begin(account_id: int) -> None:
        begun.append(account_id)

    task = shop.unique(begin, lock_key=KEY, on_lock_lost="terminate")

    def lose_it(lease: Any, **_: Any) -> None:
        watchdog = threading.Thread(target=lease.lose, args=("taken away",))
        watchdog.start()
        watchdog.join()

    lock_acquired.connect(lose_it, sender=task)

    with shop.running(task), pytest.raises(LockLost, match="'account:7' was lost: taken away"):
        task(7)

    assert begun == []
    assert shop.held() == {}


def test_a_loss_the_body_notices_itself_is_raised_once_and_quietly(shop: Shop, caplog: Any) -> None:
    """``check()`` raises in the body's own thread; interrupting that as well would only be logged."""

    def work(self: Any, account_id: int) -> None:
        shop.store.force_release(KEY)
        self.lease._deadline = 0.0
        self.lease.check()

    task = shop.unique(work, bind=True, lock_key=KEY, on_lock_lost="terminate")

    with shop.running(task), pytest.raises(LockLost, match="it had expired, or was taken away"):
        task(7)

    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


# --- the lock server is away -----------------------------------------------------------------


def test_a_worker_asks_again_until_the_server_answers(shop: Shop, monkeypatch: Any) -> None:
    pauses: list[float] = []
    no_patience(monkeypatch, pauses=pauses)
    task = shop.unique(body, lock_key=KEY)
    header = claimed(shop)
    shop.store.failures = 3

    with shop.running(task, header=header):
        assert task(7) == 7

    assert len(pauses) == 3


def test_after_the_start_timeout_the_message_is_published_again(
    shop: Shop, monkeypatch: Any, caplog: Any
) -> None:
    pauses: list[float] = []
    no_patience(monkeypatch, pauses=pauses)
    shop.app.conf.redislock_start_timeout = 4.0
    task = shop.unique(body, lock_key=KEY, lock_retry_delay=50)
    published = task.delay(7)
    request = shop.receive()
    shop.store.failures = float("inf")

    assert isinstance(shop.run(request), Ignore)

    assert f"shop.sync[{published.id}] cannot start" in caplog.text
    again = shop.message()
    assert again.headers["id"] == published.id
    assert again.headers["eta"]
    assert sum(pauses) <= 4.0 < sum(pauses) + 1.0
    assert shop.state(published.id) == "PENDING"


@pytest.mark.parametrize(("acks_late", "error"), [(False, LockUnavailable), (True, Reject)])
def test_with_the_broker_gone_as_well_the_task_fails_visibly_or_is_requeued(
    shop: Shop, monkeypatch: Any, *, acks_late: bool, error: type[Exception]
) -> None:
    """Law 9: with early acknowledgement nothing can be given back, so the task says so."""
    no_patience(monkeypatch)
    monkeypatch.setattr("celery_redislock.redeliver.redeliver", _no_broker)
    task = shop.unique(body, lock_key=KEY, acks_late=acks_late)
    shop.store.failures = float("inf")

    with shop.running(task, header=Message(KEY, "t1/x", claimed=True)), pytest.raises(error) as raised:
        task(7)

    if acks_late:
        assert raised.value.requeue  # type: ignore[attr-defined]  # a Reject, as the parameters say


def _no_broker(*_: Any, **__: Any) -> None:
    message = "no broker"
    raise OSError(message)


def test_run_starts_at_once_without_a_lock_and_says_so(shop: Shop, caplog: Any) -> None:
    task = shop.unique(lambda_like([], shop), lock_key=KEY, on_lock_error="run")
    shop.store.failures = 1

    with shop.running(task):
        task(7)

        assert isinstance(task.lease, InertLease)
    assert "running shop.sync[t1] without its lock" in caplog.text
    assert shop.store.calls.count("acquire") == 1


@pytest.mark.parametrize("options", [{}, {"lock": "until_expired", "lock_period": 50}, {"lock_period": 50}])
def test_a_worker_with_wrong_options_gives_claim_and_window_back(shop: Shop, options: dict[str, Any]) -> None:
    """It fails the task, which the publisher's options allowed: nothing has run, and nothing will."""
    task = shop.unique(body, lock_key=KEY, **options)
    task.delay(7)
    task.lock_ttl = "long"

    outcome = shop.run()

    assert isinstance(outcome, LockOptionError)
    assert (shop.held(), shop.holder(KEY)) == ({}, None)


def test_wrong_options_fail_a_message_without_a_claim_as_well(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY)
    with hold(task, 7), shop.running(task):
        task.lock_ttl = "long"

        with pytest.raises(LockOptionError, match="lock_ttl"):
            task(7)

        assert len(shop.held()) == 1


# --- eager -----------------------------------------------------------------------------------


def test_apply_takes_no_lock(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY)

    with hold(task, 7):
        result = task.apply((7,))

    assert (result.get(), result.is_duplicate) == (7, False)
    assert shop.store.calls == ["acquire", "release"]


def test_apply_locks_where_eager_is_asked_for(shop: Shop) -> None:
    seen: list[Any] = []
    shop.app.conf.redislock_eager = True
    task = looking(shop, seen)

    assert task.apply((7,)).get() == 7
    assert task(7) == 7

    assert [h.about["state"] for h in seen] == ["running", "running"]
    assert shop.held() == {}


@pytest.mark.parametrize(
    ("strategy", "state"), [("skip", "REVOKED"), ("raise", "FAILURE"), ("retry", "FAILURE")]
)
def test_an_eager_duplicate_never_waits(shop: Shop, strategy: str, state: str) -> None:
    """Waiting would block the caller on its own thread."""
    shop.app.conf.redislock_eager = True
    task = shop.unique(body, lock_key=KEY, on_conflict=strategy)

    with hold(task, 7):
        assert task.apply((7,)).state == state


@pytest.mark.parametrize("backend", ["cache+memory://", "disabled://"])
@pytest.mark.parametrize("form", ["apply", "delay", "apply_async", "delay of a serialised one"])
def test_every_form_of_an_eager_call_answers_a_skip_in_one_way(form: str, backend: str) -> None:
    """``get()`` raises at once, as it does for one skipped by a worker; there is nobody to wait for."""
    shop = Shop(result_backend=backend, redislock_eager=True, task_always_eager=form != "apply")
    task = shop.unique(body, lock_key=KEY)
    serialised = shop.unique(body, name="shop.one", lock_key=KEY, lock="while_executing", on_conflict="skip")
    call = {
        "apply": lambda: task.apply((7,)),
        "delay": lambda: task.delay(7),
        "apply_async": lambda: task.apply_async((7,), task_id="mine"),
        "delay of a serialised one": lambda: serialised.delay(7),
    }[form]

    with hold(task, 7, task_id="first"):
        result = call()

    for seen in (result, pickle.loads(pickle.dumps(result))):  # noqa: S301  as a caller may
        assert (seen.is_duplicate, seen.state, seen.successful()) == (True, "REVOKED", False)
        assert isinstance(seen.get(propagate=False), TaskRevokedError)
        with pytest.raises(TaskRevokedError, match=r"^duplicate of first$"):
            seen.get()
    assert call().get() == 7


def test_an_eager_call_of_an_id_that_is_at_work_is_its_duplicate(shop: Shop) -> None:
    """There is no message that could come back later."""
    shop.app.conf.redislock_eager = True
    task = shop.unique(body, lock_key=KEY)

    with hold(task, 7, task_id="t1"):
        result = task.apply((7,), task_id="t1")

    assert (result.is_duplicate, result.state) == (True, "REVOKED")


def test_a_direct_call_that_is_skipped_raises_what_get_would(shop: Shop) -> None:
    """It has no result to tell by, and ``None`` could be the body's."""
    shop.app.conf.redislock_eager = True
    task = shop.unique(body, lock_key=KEY)

    with hold(task, 7, task_id="first"), pytest.raises(TaskRevokedError, match=r"^duplicate of first$"):
        task(7)

    assert task(7) == 7


def test_an_eager_result_says_that_it_is_no_duplicate_wherever_it_goes(shop: Shop) -> None:
    result = shop.unique(body, lock_key=KEY).apply((7,))

    copy = pickle.loads(pickle.dumps(result))  # noqa: S301  as a caller may

    assert (copy.get(), copy.id, copy.is_duplicate) == (7, result.id, False)


def test_a_direct_call_with_a_lock_may_come_from_another_tasks_body(shop: Shop, monkeypatch: Any) -> None:
    """Celery forbids a pool child to wait for results; this one is there."""
    monkeypatch.setattr("celery.result.task_join_will_block", lambda: True)
    shop.app.conf.redislock_eager = True

    assert shop.unique(body, lock_key=KEY)(7) == 7


def test_eager_without_a_server_raises(shop: Shop, monkeypatch: Any) -> None:
    no_patience(monkeypatch)
    shop.app.conf.redislock_eager = True
    task = shop.unique(body, lock_key=KEY)
    shop.store.failures = float("inf")

    with pytest.raises(LockUnavailable):
        task(7)


def test_a_hook_can_tell_whether_a_run_was_skipped(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY)

    with hold(task, 7), shop.running(task) as request:
        with pytest.raises(Ignore):
            task(7)

        assert request.redislock_skipped is True
        assert run_of(request) is not None


def test_the_runs_header_does_not_reach_the_body_twice(shop: Shop) -> None:
    """The main process's token is the run's, so it can act for a dead child."""
    seen: list[Any] = []
    task = looking(shop, seen)
    task.delay(7)
    request = shop.receive()

    shop.run(request)

    assert seen[0].token == request._run_token
    assert HEADER in request.request_dict


def test_levels_of_log_lines_are_as_documented(shop: Shop, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG, "celery_redislock")
    task = shop.unique(body, lock_key=KEY)

    with hold(task, 7), shop.running(task), pytest.raises(Ignore):
        task(7)

    assert [(r.levelno, r.message.split(":")[0]) for r in caplog.records] == [
        (logging.INFO, "skipped shop.sync[t1] at start")
    ]


class _Greeting(Task):
    """A mixin of the usual kind, that knows nothing of locks and stands first."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def test_a_mixin_that_stands_first_does_not_step_around_the_lock(shop: Shop) -> None:
    """Law 1: however a class comes by its __call__, the body runs under the lock and gives it back."""
    seen = []

    class Greeted(_Greeting, SingletonTask):
        name = "shop.greeted"

        def run(self, account_id: int) -> int:
            seen.append(self.lease.held)
            return account_id

    task = shop.app.register_task(Greeted())
    task.delay(7)
    shop.run()

    assert seen == [True]
    assert shop.held() == {}


def test_a_start_that_waits_out_an_outage_keeps_its_lock(shop: Shop, monkeypatch: Any) -> None:
    """Law 1: the attempt that failed is not owed a release, which would end the hold the next one got."""
    no_patience(monkeypatch)
    owed = []

    def look(account_id: int = 7) -> int:
        owed.append(watchdog_of(shop.store).owes)
        return account_id

    task = shop.unique(look, lock_key=KEY)

    with shop.running(task, header=claimed(shop)):
        shop.store.failures = 1
        task(7)

    assert owed == [0]


def test_a_run_without_its_lock_gives_the_claim_back(shop: Shop) -> None:
    """Law 4: nobody else would, and it would stand in everybody's way for lock_queue_ttl."""
    task = shop.unique(body, lock_key=KEY, on_lock_error="run")

    with shop.running(task, header=claimed(shop)):
        shop.store.failures = 1
        assert task(7) == 7

    assert shop.held() == {}


@pytest.mark.parametrize("error", [SystemExit(), SoftTimeLimitExceeded(), Down()])
def test_a_start_that_is_interrupted_owes_its_lock_and_its_claim(
    shop: Shop, monkeypatch: Any, error: BaseException
) -> None:
    """Law 4: it may have been granted while nobody was listening any more, or never been asked for."""
    task = shop.unique(body, lock_key=KEY)
    header = claimed(shop)

    def interrupted(*_: Any, **__: Any) -> None:
        raise error

    with shop.running(task, header=header):
        monkeypatch.setattr(shop.store, "acquire", interrupted)
        with pytest.raises(type(error)):
            task(7)

    assert watchdog_of(shop.store).owes == 2


@pytest.mark.parametrize(
    ("how", "owed"),
    [({}, True), ({"acks_late": True}, False)],
    ids=["early", "late"],
)
def test_what_ends_without_a_server_and_a_broker_owes_its_claim(
    shop: Shop, monkeypatch: Any, how: dict[str, Any], *, owed: bool
) -> None:
    """Law 4: its message is gone, and lock_queue_ttl is an hour; requeued, the next delivery needs it."""
    no_patience(monkeypatch)
    owing = debts(shop, monkeypatch)
    monkeypatch.setattr("celery_redislock.redeliver.redeliver", _no_broker)
    task = shop.unique(body, lock_key=KEY, lock_period=50, **how)
    task.apply_async((7,), task_id="t1")
    shop.store.failures = float("inf")
    shop.run()

    shop.store.failures = 0
    for debt in owing:
        debt()

    assert (shop.holder(KEY) is None) == owed


@pytest.mark.parametrize(
    ("acks_late", "kept"), [(False, False), (True, True)], ids=["acknowledged early", "late"]
)
def test_a_run_without_its_lock_keeps_the_claim_of_a_message_that_goes_back(
    shop: Shop, *, acks_late: bool, kept: bool
) -> None:
    """Law 4: a message that was acknowledged early cannot go back, whatever its body asks for."""

    def back(account_id: int) -> int:
        raise Reject(account_id, requeue=True)

    task = shop.unique(back, lock_key=KEY, on_lock_error="run", acks_late=acks_late)
    task.apply_async((7,), task_id="t1")
    shop.store.failures = 1

    shop.run()

    assert bool(shop.held()) == kept


@pytest.mark.parametrize("throw", [False, True])
def test_a_run_without_its_lock_leaves_its_claim_to_its_retry(shop: Shop, *, throw: bool) -> None:
    """Law 7: duplicates stay excluded while a retry waits, however the body ended that published it."""

    def again(self: Any, account_id: int) -> int:
        self.retry(throw=throw, countdown=50)
        return account_id

    task = shop.unique(again, bind=True, lock_key=KEY, on_lock_error="run")
    task.apply_async((7,), task_id="t1")
    claim = shop.holder(KEY).token  # type: ignore[union-attr]  # it is held
    shop.store.failures = 1

    shop.run()

    assert [hold.token for hold in shop.held().values()] == [claim]
    assert Message.loads(shop.message().headers[HEADER]).token == claim  # type: ignore[union-attr]  # it has one


def test_a_start_whose_reply_was_lost_in_an_outage_uses_up_no_window(shop: Shop, monkeypatch: Any) -> None:
    """Law 2: nothing ran under it, so neither its own message nor another one waits for it."""
    no_patience(monkeypatch)
    owing = debts(shop, monkeypatch)
    task = shop.unique(body, lock_key=KEY, lock="while_executing", lock_period=3000)
    take = shop.store.acquire

    def lose_reply(*args: Any, **kwargs: Any) -> None:
        take(*args, **kwargs)
        shop.store.failures = float("inf")
        raise LockUnavailable("memory", "acquire", "its reply was lost")

    task.apply_async((7,), task_id="t1")
    with monkeypatch.context() as patched:
        patched.setattr(shop.store, "acquire", lose_reply)
        shop.run()
    shop.store.failures = 0
    for debt in owing:
        debt()

    assert shop.holder(KEY) is None

"""A run that was refused: dropped only where the strategy says so and a holder stands for it."""

import logging
import secrets
from contextlib import suppress
from typing import Any

import celery
import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import chain
from celery.exceptions import Ignore, TaskRevokedError
from kombu import Exchange, Queue

from celery_redislock import DuplicateTask, LockLost, LockOptionError, LockUnavailable, lock_conflict
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.testing import hold
from tests.unit.shop import Shop

KEY = "account:7"


def body(account_id: int = 7, amount: int = 0) -> int:
    return account_id + amount


def header_of(message: Any) -> Message:
    header = Message.loads(message.headers.get(HEADER))
    assert header is not None
    return header


def unclaimed(shop: Shop, task: Any, **options: Any) -> Any:
    """Publish while somebody else holds the key, and take the message."""
    task.apply_async((7,), task_id="t1", lock="while_executing", **{"lock_retry_delay": 50, **options})
    return shop.message()


# --- strategies ------------------------------------------------------------------------------


def test_a_skipped_run_is_ready_and_names_the_holder(shop: Shop) -> None:
    """``get()`` raises at once instead of hanging, and it never counts as a success."""
    task = shop.unique(body, lock_key=KEY)

    with hold(task, 7, task_id="first"), shop.running(task) as request:
        with pytest.raises(Ignore, match="duplicate of first"):
            task(7)

        assert request.redislock_skipped
    assert shop.state("t1") == "REVOKED"
    with pytest.raises(TaskRevokedError, match="duplicate of first"):
        task.AsyncResult("t1").get(timeout=1)
    assert shop.messages() == []


@pytest.mark.parametrize(("on_task", "on_message"), [(True, None), (False, True), (True, True)])
def test_where_results_are_ignored_a_skip_writes_no_state(
    shop: Shop, *, on_task: bool, on_message: bool | None
) -> None:
    task = shop.unique(body, lock_key=KEY, ignore_result=on_task)
    given: dict[str, Any] = {} if on_message is None else {"ignore_result": on_message}

    with hold(task, 7), shop.running(task, **given), pytest.raises(Ignore):
        task(7)

    assert shop.state("t1") == "PENDING"


@pytest.mark.skipif(
    celery.VERSION[:2] < (5, 7), reason="this Celery stores nothing of a task that ignores it"
)
def test_a_message_that_wants_its_result_gets_the_state(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY, ignore_result=True)

    with hold(task, 7), shop.running(task, ignore_result=False), pytest.raises(Ignore):
        task(7)

    assert shop.state("t1") == "REVOKED"


def test_raise_fails_the_task_with_the_holders_name(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY, on_conflict="raise")

    with hold(task, 7, task_id="first"), shop.running(task), pytest.raises(DuplicateTask) as raised:
        task(7)

    assert (raised.value.key, raised.value.task_id) == (KEY, "first")


def test_retry_comes_back_later_with_its_id_and_its_retries(shop: Shop) -> None:
    """Waiting for a lock never spends the user's retry budget."""
    task = shop.unique(body, lock_key=KEY, on_conflict={"server": "retry"}, lock="while_executing")
    before = unclaimed(shop, task)

    with hold(task, 7):
        assert isinstance(shop.run(shop.receive(before)), Ignore)

    again = shop.message()
    assert (again.headers["id"], again.headers["retries"]) == ("t1", 0)
    assert again.headers["eta"]
    assert header_of(again) == header_of(before)._replace(put_off=1)
    assert shop.state("t1") == "PENDING"
    assert shop.acks == ["ack"]


def test_while_executing_drops_nothing_by_default(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY, lock="while_executing")
    task.apply_async((7,), task_id="t1")

    with hold(task, 7):
        shop.run()

    assert shop.message().headers["id"] == "t1"


@pytest.mark.parametrize(
    ("answer", "error"), [("skip", Ignore), ("raise", DuplicateTask), ("sikp", LockOptionError)]
)
def test_a_callable_decides_on_the_worker_too(shop: Shop, answer: str, error: type[Exception]) -> None:
    asked: list[Any] = []

    def decide(conflict: Any) -> str:
        asked.append(conflict)
        return answer

    task = shop.unique(body, lock_key=KEY, on_conflict=decide)

    with hold(task, 7, task_id="first"), shop.running(task), pytest.raises(error):
        task(7, amount=3)

    (conflict,) = asked
    assert (conflict.task, conflict.args, conflict.kwargs) == (task, (7,), {"amount": 3})
    assert (conflict.task_id, conflict.holder, conflict.side, conflict.key) == ("t1", "first", "server", KEY)
    assert conflict.expires_in == pytest.approx(30, abs=0.9)


def test_a_conflict_at_start_is_announced(shop: Shop) -> None:
    task, heard = shop.unique(body, lock_key=KEY), []

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((sender, facts["side"], facts["strategy"], facts["holder"].owner, facts["task_id"]))

    lock_conflict.connect(listen, sender=task)

    with hold(task, 7, task_id="first"), shop.running(task), pytest.raises(Ignore):
        task(7)

    assert heard == [(task, "server", "skip", "first", "t1")]


@pytest.mark.parametrize(
    ("strategy", "how", "happens"),
    [
        ("skip", {}, "skip"),
        ("raise", {}, "raise"),
        ("retry", {}, "retry"),
        ("skip", {"group": "g"}, "retry"),
        ("raise", {"group": "g"}, "raise"),
        ("skip", {"retries": 1}, "retry"),
        ("raise", {"retries": 1}, "retry"),
        ("raise", {"delivery_info": {"redelivered": True}}, "retry"),
        ("skip", {"is_eager": True, "group": "g"}, "skip"),
        ("retry", {"is_eager": True}, "raise"),
    ],
    ids=str,
)
def test_a_conflict_at_start_is_announced_with_what_really_happens(
    shop: Shop, monkeypatch: Any, strategy: str, how: dict[str, Any], happens: str
) -> None:
    """Whoever counts skipped tasks must not count those that come back later."""
    shop.app.conf.redislock_eager = True
    redelivered(monkeypatch)
    task, heard = shop.unique(body, lock_key=KEY, on_conflict=strategy), []

    def listen(strategy: str, **_: Any) -> None:
        heard.append(strategy)

    lock_conflict.connect(listen, sender=task)

    with hold(task, 7), shop.running(task, **how), pytest.raises((Ignore, DuplicateTask)):
        task(7)

    assert heard == [happens]


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"state": "running"}, "runs already"),
        ({"state": "queued"}, "is queued already"),
        ({"state": "window"}, "was accepted already, and its window has not passed"),
        ({}, "holds 'account:7' already"),
    ],
    ids=str,
)
def test_a_run_that_waits_for_its_own_id_says_what_that_does(
    shop: Shop, monkeypatch: Any, caplog: Any, about: dict[str, Any], words: str
) -> None:
    caplog.set_level("INFO", "celery_redislock")
    redelivered(monkeypatch)
    task = shop.unique(body, lock_key=KEY)
    shop.store.acquire(KEY, "t1/other", 30, about=about)

    with shop.running(task, header=Message(KEY, "t1/m")), pytest.raises(Ignore, match="put off"):
        task(7)

    assert caplog.messages == [f"shop.sync[t1] {words}: this one waits"]


def test_a_run_behind_its_own_ids_window_says_so(shop: Shop, monkeypatch: Any, caplog: Any) -> None:
    caplog.set_level("INFO", "celery_redislock")
    redelivered(monkeypatch)
    task = shop.unique(body, lock_key=KEY, lock_period=50)

    with shop.running(task):
        task(7)
    with shop.running(task), pytest.raises(Ignore, match="put off"):
        task(7)

    assert "was accepted already, and its window has not passed" in caplog.text


@pytest.mark.parametrize("acks_late", [False, True])
def test_a_message_delivered_again_does_not_wait_for_its_own_window(shop: Shop, *, acks_late: bool) -> None:
    """Law 8: its run died with its worker, and the copy takes over, not when the window has passed."""
    task = shop.unique(body, lock_key=KEY, lock="while_executing", lock_period=3000, acks_late=acks_late)
    task.apply_async((7,), task_id="t1")
    request = shop.receive()
    token = header_of(request.message).token
    work = Work(KEY, "shop.sync", "t1", "digest")
    shop.store.acquire(
        KEY, "t1/dead", 1, about=work.about("running", message=token), period=3000, message=token
    )
    shop.store._locks.clear()

    request._request_dict["delivery_info"]["redelivered"] = acks_late
    shop.run(request)
    if acks_late:
        shop.run()  # it has looked twice

    assert shop.state("t1") == "SUCCESS"


def test_a_retry_that_lost_its_claim_does_not_wait_for_its_own_window(shop: Shop) -> None:
    """Law 7: it never blocks itself; what it is a retry of was accepted."""

    def sync(self: Any, account_id: int) -> int:
        if not self.request.retries:
            shop.store.failures = 1  # the lease is given back instead of handed on
            self.retry((account_id,), countdown=0)
        return account_id

    task = shop.unique(sync, bind=True, lock_key=KEY, lock="while_executing", lock_period=3000)
    task.apply_async((7,), task_id="t1")
    shop.run()
    shop.store._locks.clear()

    assert shop.run() == 7


def test_a_new_message_of_an_id_waits_for_the_window_of_the_one_before(shop: Shop) -> None:
    """Publishing a task id again is a new job, which has to be accepted itself."""
    task = shop.unique(body, lock_key=KEY, lock="while_executing", lock_period=50)
    for _ in range(2):
        task.apply_async((7,), task_id="t1")
    first, second = shop.messages()
    shop.run(shop.receive(first))

    assert isinstance(shop.run(shop.receive(second)), Ignore)


def test_a_window_refuses_a_run_that_was_never_accepted(shop: Shop) -> None:
    """Beat without the task imported: acceptance is decided when it starts."""
    task = shop.unique(body, lock_key=KEY, lock_period=50)

    with shop.running(task):
        task(7)
    with shop.running(task, task_id="t2"), pytest.raises(Ignore, match="duplicate of t1"):
        task(7)


# --- what is never dropped -------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"retries": 1}, {"delivery_info": {"redelivered": True}}])
@pytest.mark.parametrize("strategy", ["skip", "raise", "retry"])
def test_a_retry_or_a_redelivery_waits_for_whoever_took_its_key(
    shop: Shop, monkeypatch: Any, how: dict[str, Any], strategy: str
) -> None:
    """Law 2: its own hold was lost; only a fresh publish may be dropped."""
    again = redelivered(monkeypatch)
    task = shop.unique(body, lock_key=KEY, on_conflict=strategy)

    with hold(task, 7), shop.running(task, **how), pytest.raises(Ignore, match="put off"):
        task(7)

    assert len(again) == 1
    assert shop.state("t1") == "PENDING"


@pytest.mark.parametrize("strategy", ["skip", "raise"])
def test_an_accepted_message_that_lost_its_claim_waits_for_other_work(
    shop: Shop, monkeypatch: Any, strategy: str
) -> None:
    """Law 2: its publisher was told that it is no duplicate; nobody else does its work."""
    again = redelivered(monkeypatch)
    task = shop.unique(body, lock_key=KEY, on_conflict={"client": "skip", "server": strategy})
    task.apply_async((7, 1), task_id="t1")
    message = shop.message()
    shop.store.force_release(KEY)
    task.apply_async((7, 2), task_id="t2")

    assert isinstance(shop.run(shop.receive(message)), Ignore)
    assert len(again) == 1
    assert shop.state("t1") == "PENDING"


def test_an_accepted_message_that_lost_its_claim_is_skipped_where_the_holder_does_the_same(
    shop: Shop,
) -> None:
    """It was queued for longer than ``lock_queue_ttl``: the next one stands for it."""
    task = shop.unique(body, lock_key=KEY)
    task.apply_async((7, 1), task_id="t1")
    message = shop.message()
    shop.store.force_release(KEY)
    task.apply_async((7, 1), task_id="t2")

    shop.run(shop.receive(message))

    assert shop.state("t1") == "REVOKED"
    assert shop.holder(KEY).owner == "t2"  # type: ignore[union-attr]  # it is held


def redelivered(monkeypatch: Any) -> list[Message]:
    """Collect the headers of messages published again, instead of publishing them."""
    found: list[Message] = []
    monkeypatch.setattr(
        "celery_redislock.redeliver.redeliver", lambda _app, _raw, header, **_: found.append(header)
    )
    return found


def holding(shop: Shop, *, task_id: str, message: str | None) -> None:
    work = Work(KEY, "shop.sync", task_id, "digest")
    shop.store.acquire(KEY, f"{task_id}/run", 30, about=work.about("running", message=message))


@pytest.mark.parametrize("strategy", ["skip", "raise", "retry"])
def test_a_second_copy_of_a_running_message_waits_whatever_the_strategy(
    shop: Shop, monkeypatch: Any, strategy: str
) -> None:
    """Law 8: a redelivery is no duplicate, and no state is written for an id that is running."""
    again = redelivered(monkeypatch)
    task = shop.unique(body, lock_key=KEY, on_conflict=strategy)
    holding(shop, task_id="t1", message="t1/m")

    with (
        shop.running(task, header=Message(KEY, "t1/m", claimed=True)),
        pytest.raises(Ignore, match="put off"),
    ):
        task(7)

    assert again == [Message(KEY, "t1/m", claimed=True, was_delivered=True)]
    assert shop.state("t1") == "PENDING"


def test_another_message_of_the_running_id_is_a_new_job_and_waits_as_one(
    shop: Shop, monkeypatch: Any
) -> None:
    again = redelivered(monkeypatch)
    task = shop.unique(body, lock_key=KEY)
    holding(shop, task_id="t1", message="t1/first")

    with shop.running(task, header=Message(KEY, "t1/second")), pytest.raises(Ignore):
        task(7)

    assert [(header.is_copy, header.put_off) for header in again] == [(False, 0)]


def test_once_a_copy_always_a_copy(shop: Shop, monkeypatch: Any) -> None:
    """The broker's ``redelivered`` flag does not survive being published again."""
    again = redelivered(monkeypatch)
    task = shop.unique(body, lock_key=KEY, on_conflict="retry")
    holding(shop, task_id="t2", message="t2/m")

    with (
        shop.running(task, header=Message(KEY, "t1/m"), delivery_info={"redelivered": True}),
        pytest.raises(Ignore),
    ):
        task(7)
    with shop.running(task, header=again[0]), pytest.raises(Ignore):
        task(7)

    assert [header.is_copy for header in again] == [True, True]


# --- workflows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "member",
    [
        {"header": Message(KEY, "t1/m", must_run=True)},
        {"chord": {"task": "x"}},
        {"group": "g"},
        {"chain": [{"task": "x"}]},
        {"callbacks": [{"task": "x"}]},
        {"errbacks": [{"task": "x"}]},
    ],
    ids=lambda member: next(iter(member)),
)
def test_a_workflows_member_waits_for_its_holder(
    shop: Shop, monkeypatch: Any, member: dict[str, Any]
) -> None:
    """Law 6: it neither hangs its workflow nor breaks a link."""
    again = redelivered(monkeypatch)
    task = shop.unique(body, lock_key=KEY)

    with hold(task, 7, task_id="first"), shop.running(task, **member), pytest.raises(Ignore, match="put off"):
        task(7)

    (header,) = again
    assert header.waits_for is not None
    assert (header.waits_for.task_id, header.waits_for.is_same_work, header.put_off) == ("first", True, 1)


def test_a_workflows_member_that_waits_for_a_window_runs_when_it_has_passed(
    shop: Shop, monkeypatch: Any
) -> None:
    """Whose outcome would depend on the moment: its owner may be over for long."""
    again = redelivered(monkeypatch)
    task = shop.unique(body, lock_key=KEY, lock_period=50)
    task.apply_async((7,), task_id="first")
    shop.run()

    member = Message(KEY, "t1/m", must_run=True)
    with shop.running(task, header=member), pytest.raises(Ignore, match="put off"):
        task(7)

    (header,) = again
    assert (header.waits_for.task_id, header.waits_for.is_same_work) == ("first", False)


def test_a_broadcast_message_is_not_published_again_by_those_who_come_second(shop: Shop, caplog: Any) -> None:
    """Every worker would get it once more from each of the others, each time it is put off."""
    caplog.set_level(logging.INFO, "celery_redislock")
    shop.app.conf.task_queues = [
        Queue(shop.queue),
        Queue("bcast", Exchange("news", type="fanout"), routing_key="news"),
    ]
    task = shop.unique(body, lock_key=KEY)
    holding(shop, task_id="t1", message="t1")
    shop.app.send_task(task.name, (7,), task_id="t1")
    message = shop.message()
    message.delivery_info["exchange"] = "news"

    shop.run(shop.receive(message))

    assert shop.messages() == []
    assert "as every worker was sent it: nothing to do" in caplog.text


@pytest.mark.parametrize("is_same", [False, True], ids=["for somebody else", "delivered again"])
def test_a_broadcast_message_that_waits_does_so_in_the_default_queue(shop: Shop, *, is_same: bool) -> None:
    """Law 2: it is not dropped for its exchange's sake; and every worker would put it off for each other."""
    shop.app.conf.task_queues = [
        Queue(shop.queue),
        Queue("bcast", Exchange("news", type="fanout"), routing_key="news"),
    ]
    task = shop.unique(body, lock="while_executing", lock_key=KEY, acks_late=True)
    holding(shop, task_id="t1", message="t1")
    shop.app.send_task(task.name, (7,), task_id="t1" if is_same else "t2")
    message = shop.message()
    message.delivery_info["exchange"] = "news"

    shop.run(shop.receive(message, redelivered=is_same))

    assert len(shop.messages()) == 1


@pytest.mark.parametrize("default", ["mine", "unknown"])
def test_a_broadcast_message_waits_where_somebody_will_look_for_it(shop: Shop, default: str) -> None:
    """Law 2: with Celery's ``Broadcast`` alone there is no default queue, and what is sent to it is lost."""
    shop.app.conf.update(
        task_queues=[Queue("bcast", Exchange("news", type="fanout")), Queue("other"), Queue("mine")],
        task_default_queue=default,
    )
    raw = {"exchange": "news", "routing_key": ""}

    queue = queue_for_one(shop.app, raw)

    assert queue is not None
    assert queue.name == ("mine" if default == "mine" else "other")
    assert queue_for_one(shop.app, {"exchange": "other", "routing_key": "other"}) is None
    assert set(shop.app.amqp.queues) == {"bcast", "other", "mine"}


def test_the_queue_in_which_a_broadcast_message_waits_is_there(shop: Shop) -> None:
    """Law 2: nobody may have declared it yet; brokers drop what has nowhere to go."""
    quiet = secrets.token_hex(6)
    shop.app.conf.task_queues = [Queue("bcast", Exchange("news", type="fanout")), Queue(quiet)]
    shop.unique(body, lock_key=KEY).delay(7)
    message = shop.message()
    raw = {**raw_message(message), "exchange": "news"}

    redeliver(shop.app, raw, Message(KEY, "t1/m"), delay=0)

    with shop.app.connection_for_read() as connection:
        assert connection.default_channel.basic_get(quiet, no_ack=True) is not None


def test_who_comes_later_with_a_broadcast_message_that_has_run_does_nothing(shop: Shop) -> None:
    """Law 8: nobody else would know where results are ignored."""
    shop.app.conf.task_queues = [Queue(shop.queue), Queue("bcast", Exchange("news", type="fanout"))]
    runs: list[int] = []

    def note(account_id: int) -> None:
        runs.append(account_id)

    task = shop.unique(note, lock_key=KEY, ignore_result=True)
    task.delay(7)
    message = shop.message()
    message.delivery_info["exchange"] = "news"

    for _ in range(3):
        shop.run(shop.receive(message))

    assert runs == [7]


def test_a_member_that_raises_fails_its_workflow_as_asked(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY, on_conflict="raise")

    with hold(task, 7), shop.running(task, group="g"), pytest.raises(DuplicateTask):
        task(7)


def test_a_member_looks_again_soon_and_then_less_often(shop: Shop, monkeypatch: Any) -> None:
    delays = []
    monkeypatch.setattr("celery_redislock.conflict.jittered", lambda delay: delay)
    monkeypatch.setattr("celery_redislock.redeliver.redeliver", lambda *_, delay: delays.append(delay))
    task = shop.unique(body, lock_key=KEY, lock_retry_delay=5)

    for times in (0, 1, 2, 3, 4, 1000):
        header = Message(KEY, "t1/m", must_run=True, put_off=times)
        with hold(task, 7), shop.running(task, header=header), pytest.raises(Ignore):
            task(7)

    assert delays == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def run_member(shop: Shop, task: Any, holder: str, *outcome: Any) -> Any:
    """A chain's first meets its holder and is put off; what it does when that has left its outcome."""
    follow = shop.unique(double, name="shop.double", lock=None)
    with hold(task, 7, task_id=holder):
        chain(task.s(7), follow.s()).apply_async(task_id="last")
        shop.run()
    if outcome:
        shop.app.backend.store_result(holder, *outcome)
    return shop.run()


def double(number: int) -> int:
    return 2 * number


def test_a_member_takes_its_holders_value_and_its_chain_goes_on(shop: Shop) -> None:
    runs: list[int] = []

    def sync(account_id: int) -> int:
        runs.append(account_id)
        return account_id

    task = shop.unique(sync, lock_key=KEY)

    assert run_member(shop, task, "first", 21, "SUCCESS") == 21

    assert runs == []
    assert shop.run() == 42


def test_a_member_fails_as_its_holder_did(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY)

    outcome = run_member(shop, task, "first", ValueError("no funds"), "FAILURE")

    assert isinstance(outcome, ValueError)
    assert str(outcome) == "no funds"


@pytest.mark.parametrize(
    "error",
    [
        WorkerLostError("killed"),
        TimeLimitExceeded(100),
        Terminated(15),
        LockLost(KEY, "it had expired"),
        LockUnavailable("redis://h", "acquire", "refused"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_member_runs_where_its_holder_was_killed(serializer: str, error: Exception) -> None:
    """It came to nothing; and a backend gives back an error it has made anew from what was stored."""
    shop = Shop(result_serializer=serializer, result_accept_content=["json", "pickle"])
    task = shop.unique(body, lock_key=KEY)

    assert run_member(shop, task, "first", error, "FAILURE") == 7

    found = shop.meta("first")["result"]
    assert found is not error
    assert (type(found), str(found)) == (type(error), str(error))


def test_a_member_runs_where_its_holder_was_revoked(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY)

    assert run_member(shop, task, "first", TaskRevokedError("x"), "REVOKED") == 7


@pytest.mark.parametrize("state", ["PENDING", "RETRY", "STARTED"])
def test_a_member_looks_once_more_for_an_outcome_that_may_come_and_then_runs(shop: Shop, state: str) -> None:
    """A holder gives its lock back before its outcome is stored; one that died in between never stores it."""
    task = shop.unique(body, lock_key=KEY)
    outcome = () if state == "PENDING" else ({} if state == "STARTED" else TaskRevokedError("x"), state)

    assert isinstance(run_member(shop, task, "first", *outcome), Ignore)
    assert shop.held() == {}
    assert shop.run() == 7


def test_a_member_takes_an_outcome_that_came_between_its_two_looks(shop: Shop) -> None:
    task = shop.unique(body, lock_key=KEY)

    assert isinstance(run_member(shop, task, "first"), Ignore)
    shop.app.backend.store_result("first", 21, "SUCCESS")

    assert shop.run() == 21


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE"])
def test_a_member_takes_an_outcome_that_came_between_its_look_and_its_lock(
    shop: Shop, monkeypatch: Any, state: str, *, is_gone: bool
) -> None:
    """The holder releases, this one looks, the outcome is stored, this one finds the lock free."""
    runs: list[int] = []
    task = counted(shop, runs)
    look, value = task.backend.get_task_meta, 21 if state == "SUCCESS" else ValueError("no funds")

    def look_in_vain_once(task_id: str, **options: Any) -> Any:
        found = look(task_id, **options)
        if task_id == "first":
            task.backend.store_result(task_id, value, state)
        return found

    monkeypatch.setattr(task.backend, "get_task_meta", look_in_vain_once)
    header = Message(KEY, "t1/m", must_run=True).put_off_for(_seen("first")._replace(is_gone=is_gone))

    with shop.running(task, header=header) as request:
        if state == "SUCCESS":
            assert task(7) == 21
        else:
            with pytest.raises(ValueError, match="no funds"):
                task(7)

        assert request.redislock_skipped
    assert (runs, shop.held()) == ([], {})


def counted(shop: Shop, runs: list[int], **options: Any) -> Any:
    """A task that writes down its runs."""

    def sync(account_id: int) -> int:
        runs.append(account_id)
        return account_id

    return shop.unique(sync, lock_key=KEY, **options)


@pytest.mark.parametrize("holder", [None, "other"])
def test_a_member_that_only_looks_is_nobodys_holder(shop: Shop, monkeypatch: Any, holder: str | None) -> None:
    """Another duplicate would wait for this one's outcome instead, give it up, and do the work again."""
    task, again = counted(shop, []), redelivered(monkeypatch)
    if holder is not None:
        holding(shop, task_id=holder, message=None)
    shop.store.calls.clear()
    header = Message(KEY, "t1/m", must_run=True).put_off_for(_seen("first"))

    with shop.running(task, header=header), pytest.raises(Ignore, match="put off"):
        task(7)

    assert shop.store.calls == ["inspect"]
    waits_for = again[0].waits_for
    assert waits_for is not None
    assert (waits_for.task_id, waits_for.is_gone) == (holder or "first", holder is None)


def test_a_member_back_from_its_own_run_does_not_wait_for_itself(shop: Shop) -> None:
    """Law 7: its queue gave it back, and the hold it meets is its own."""
    task = counted(shop, [])
    work = Work(KEY, "shop.sync", "t1", "digest")
    shop.store.acquire(KEY, "t1/m", 30, about=work.about("queued", message="t1/m"))
    header = Message(KEY, "t1/m", must_run=True).put_off_for(_seen("first"))

    with shop.running(task, header=header, delivery_info={"redelivered": True}):
        assert task(7) == 7

    assert shop.held() == {}


def test_a_link_whose_result_is_ignored_is_no_copy_of_itself_when_it_looks_again(shop: Shop) -> None:
    """Law 6: it has come to nothing yet, so no done mark may stop its next delivery."""
    runs: list[int] = []
    task = counted(shop, runs, acks_late=True)
    header = Message(KEY, "t1/m", must_run=True, claimed=False)
    shop.app.send_task(
        "shop.sync",
        (7,),
        task_id="t1",
        ignore_result=True,
        headers={HEADER: header.put_off_for(_seen("first")).dumps()},
    )

    assert isinstance(shop.run(), Ignore)
    shop.run()

    assert (runs, task.name) == ([7], "shop.sync")


def test_a_member_takes_no_outcome_from_before_it_was_published(shop: Shop) -> None:
    """It belongs to an earlier job of the holder's id, which is at work again."""
    task = shop.unique(body, lock_key=KEY)
    shop.app.backend.store_result("first", 21, "SUCCESS")
    long_after = Message(KEY, "t1/m", must_run=True + 60)

    with shop.running(task, header=long_after.put_off_for(_seen("first")._replace(is_gone=True))):
        assert task(7) == 7


def test_a_member_without_a_header_takes_no_old_outcome_either(shop: Shop) -> None:
    """Yesterday's job of the holder's id left it; today's has not ended yet."""
    runs: list[int] = []
    task, backend = counted(shop, runs), shop.app.backend
    backend.store_result("daily", 21, "SUCCESS")
    meta = backend.decode(backend.get(backend.get_key_for_task("daily")))
    meta["date_done"] = "2020-01-01T00:00:00+00:00"
    backend.set(backend.get_key_for_task("daily"), backend.encode(meta))
    with hold(task, 7, task_id="daily"):
        shop.app.send_task(task.name, (7,), task_id="t1", link=task.si(8))
        shop.run()

    assert isinstance(shop.run(), Ignore)  # it looks once more, and then runs
    assert (shop.run(), runs) == (7, [7])


def test_a_member_remembers_the_holder_it_met_at_publish(shop: Shop) -> None:
    """Delivered when that has ended, it does not do the work again."""
    task = shop.unique(body, lock_key=KEY)
    follow = shop.unique(double, name="shop.double", lock=None)
    with hold(task, 7, task_id="first"):
        chain(task.s(7), follow.s()).apply_async()
    shop.app.backend.store_result("first", 21, "SUCCESS")

    assert shop.run() == 21


def test_a_member_with_other_arguments_takes_no_other_value(shop: Shop) -> None:
    """Under a shared key the holder's value is another work's."""
    task = shop.unique(body, lock_key=KEY)
    shop.app.backend.store_result("first", 21, "SUCCESS")
    follow = shop.unique(double, name="shop.double", lock=None)
    with hold(task, 7, task_id="first"):
        chain(task.s(7, amount=1), follow.s()).apply_async()
        shop.run()

    assert shop.run() == 8


def test_work_is_the_same_by_task_and_all_its_arguments() -> None:
    same = arguments_digest("shop.sync", {"account_id": 7})

    assert same == arguments_digest("shop.sync", {"account_id": 7})
    assert same != arguments_digest("shop.sync", {"account_id": 8})
    assert same != arguments_digest("shop.other", {"account_id": 7})


@pytest.mark.parametrize("backend", ["rpc://", "disabled://"])
def test_where_results_cannot_be_read_a_member_runs_itself(backend: str) -> None:
    shop = Shop(result_backend=backend)
    task = shop.unique(body, lock_key=KEY)
    header = Message(KEY, "t1/m", must_run=True)
    put_off = header.put_off_for(_seen("first"))

    with shop.running(task, header=put_off):
        assert task(7) == 7


def test_a_backend_that_cannot_be_asked_says_nothing(shop: Shop, monkeypatch: Any) -> None:
    task = shop.unique(body, lock_key=KEY)
    put_off = Message(KEY, "t1/m", must_run=True).put_off_for(_seen("first"))

    def fail(*_: Any, **__: Any) -> None:
        message = "gone"
        raise OSError(message)

    monkeypatch.setattr(task.backend, "get_task_meta", fail)

    with shop.running(task, header=put_off):
        assert task(7) == 7


def _seen(task_id: str) -> Any:
    from celery_redislock.header import HolderSeen

    return HolderSeen(task_id, is_same_work=True)


# --- a foreign lock that never ends ----------------------------------------------------------


def endless(shop: Shop) -> str:
    """Somebody's plain ``SET`` on a key of this test; return the lock's name."""
    name = f"endless-{shop.queue}"
    shop.store._locks[name] = (b"somebody", float("inf"))
    return name


@pytest.mark.parametrize("scope", ["until_executed", "while_executing"])
@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
def test_a_foreign_lock_that_never_ends_is_warned_of_once(
    shop: Shop, caplog: Any, scope: str, on_conflict: str
) -> None:
    """No task will ever run again for that key, and every line about it is one of INFO."""
    name = endless(shop)
    task = shop.unique(body, lock_key=name, lock=scope, on_conflict=on_conflict, lock_retry_delay=50)

    with caplog.at_level("WARNING"):
        for _ in range(2):
            with suppress(DuplicateTask):
                task.delay(7)
            for message in shop.messages():
                shop.run(shop.receive(message))

    (record,) = [record for record in caplog.records if record.name == "celery_redislock"]
    assert "never expires" in record.getMessage()
    assert f"redislock release --reason TEXT -- {name}" in record.getMessage()


def test_a_lock_that_ends_is_not_warned_of(shop: Shop, caplog: Any) -> None:
    task = shop.unique(body, lock_key=KEY)

    with caplog.at_level("WARNING"), hold(task, 7, task_id="first"):
        task.delay(7)

    assert caplog.records == []

"""A run that was refused: dropped only where the strategy says so and a holder stands for it."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from celery.exceptions import Ignore, TaskRevokedError
from celery.signals import task_success

from celery_redislock import DuplicateTask, LockOptionError, lock_conflict
from celery_redislock.declaring.scopes import Skip
from celery_redislock.publishing.message import Message
from celery_redislock.testing import hold
from tests.unit.shop import KEY, Shop, body, carried, raising


@pytest.mark.parametrize("task_id", ["t1", "t\0one"], ids=repr)
def test_a_skipped_run_is_ready_and_names_the_holder(shop: Shop, caplog: Any, task_id: str) -> None:
    """``get()`` raises at once instead of hanging; it never counts as a success. One line of log."""
    caplog.set_level("DEBUG", "celery_redislock")
    task = shop.unique(body, lock_key=KEY)
    with hold(task, 7, task_id="first"), shop.running(task, task_id=task_id) as request:
        with pytest.raises(Ignore, match="duplicate of first"):
            task(7)

        assert request.redislock_skipped
    assert shop.state(task_id) == "REVOKED"
    with pytest.raises(TaskRevokedError, match="duplicate of first"):
        task.AsyncResult(task_id).get(timeout=1)
    assert shop.messages() == []
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert record.message.startswith(f"skipped shop.sync[{task_id}] at start: 'account:7' is held by first")


@pytest.mark.parametrize(("on_task", "on_message"), [(True, None), (False, True), (True, True)])
def test_a_skip_writes_no_state_if_none_is_kept(shop: Shop, on_task: bool, on_message: bool | None) -> None:
    """As the task says, unless its message says otherwise."""
    task = shop.unique(body, lock_key=KEY, ignore_result=on_task)
    given: dict[str, Any] = {} if on_message is None else {"ignore_result": on_message}
    with hold(task, 7), shop.running(task, **given), pytest.raises(Ignore):
        task(7)
    assert shop.state("t1") == "PENDING"


@pytest.mark.parametrize(
    ("answer", "error"), [("skip", Ignore), ("raise", DuplicateTask), ("sikp", LockOptionError)]
)
def test_a_callable_decides_on_the_worker_too(shop: Shop, answer: str, error: type[Exception]) -> None:
    """``f(conflict) -> strategy``, with the documented facts of conflict and error."""
    asked: list[Any] = []

    def decide(conflict: Any) -> str:
        asked.append(conflict)
        return answer

    task = shop.unique(body, lock_key=KEY, on_conflict=decide)
    its_run = shop.running(task, kwargs={"amount": 3})
    with hold(task, 7, task_id="first"), its_run, pytest.raises(error) as raised:
        task(7, amount=3)

    (conflict,) = asked
    assert (conflict.task, conflict.args, conflict.kwargs) == (task, (7,), {"amount": 3})
    assert (conflict.task_id, conflict.holder, conflict.side, conflict.key) == ("t1", "first", "server", KEY)
    assert conflict.expires_in == pytest.approx(30, abs=0.9)
    if isinstance(raised.value, DuplicateTask):
        assert (raised.value.key, raised.value.task_id) == (KEY, "first")


def test_a_callable_that_raises_fails_the_task_visibly(shop: Shop) -> None:
    """Law 2: no message is lost for a mistake in it. The holder keeps its lock."""
    decide = {"server": raising(ZeroDivisionError())}
    task = shop.unique(body, on_conflict=decide, lock_key=KEY, lock="while_executing")
    task.apply_async((7,), task_id="t1")
    with hold(task, 7, task_id="first"):
        assert isinstance(shop.run(), ZeroDivisionError)
        assert shop.state("t1") == "FAILURE"
        assert [state for _, state in shop.states()] == ["running"]
    assert (shop.acks, shop.messages()) == (["ack"], [])


@pytest.mark.parametrize("strategy", ["skip", "raise"])
@pytest.mark.parametrize(
    ("state", "age", "left", "waits"),
    [
        ("queued", 0, 3600, True),
        ("queued", 59, 1, True),
        ("queued", 61, 3539, False),
        ("queued", -100, 3700, True),
        ("queued", None, 3600, False),
        ("period", 3, 7, True),
        ("period", 7, 3, False),
        ("period", 59, 3541, True),
        ("period", 61, 3539, False),
        ("period", -1, 3, True),
        ("over", 0, 50, False),
        ("running", 0, 30, False),
        ("of a worker", 0, 50, False),
        ("of a retry", 0, 3600, False),
        (None, None, 30, False),
    ],
)
def test_who_meets_a_young_claim_waits_as_its_publish_may_fail(
    shop: Shop, strategy: str, state: str | None, age: float | None, left: float, *, waits: bool
) -> None:
    """Law 2: dropped or failed for a publish that then fails, an accepted message would be lost.

    Where the claim is the period, for half of that at most. Another clock may be behind; one that is not
    known tells nothing. ``over``: nothing is held, but a period has not passed. A worker accepts what it has,
    and a run makes the claim of a retry that has been published.
    """
    task = shop.unique(body, lock_key=KEY, on_conflict=strategy)
    about: dict[str, Any] = {"state": "running" if state == "over" else state}
    if state == "of a worker":
        about = {"state": "period", "message": "first/y"}
    if state == "of a retry":
        about = {"state": "queued", "published": True}
    if age is not None:
        about["since"] = time.time() - age
    period = left if state == "over" else None
    shop.store.acquire(KEY, "first/x", left, facts=json.dumps(about), period=period)
    if state == "over":
        shop.store.release(KEY, "first/x")
        task = shop.unique(body, name="shop.period", lock_key=KEY, on_conflict=strategy, lock_period=50)
    with shop.running(task) as request, pytest.raises((Ignore, DuplicateTask)):
        task(7)

    assert [message.headers["id"] for message in shop.messages()] == ["t1"] * waits
    assert request.redislock_skipped is (strategy == "skip" and not waits)


#: What makes a message more than a fresh publish.
NEVER_DROPPED: list[dict[str, Any]] = [
    {"retries": 1},
    {"delivery_info": {"redelivered": True}},
    {"header": Message(KEY, "t1/m", claimed=True)},
    {"header": Message(KEY, "t1/m", must_run=True)},
    {"header": Message(KEY, "t1/m", was_delivered=True)},
    {"group": "g"},
    {"chord": {"task": "x"}},
    {"chain": [{"task": "x"}]},
    {"callbacks": [{"task": "x"}]},
    {"errbacks": [{"task": "x"}]},
]


@pytest.mark.parametrize(
    ("strategy", "how", "happens"),
    [
        *((strategy, {}, strategy) for strategy in ("skip", "raise", "wait")),
        *((strategy, how, "wait") for strategy in ("skip", "raise", "wait") for how in NEVER_DROPPED),
        ("skip", {"is_eager": True, "group": "g"}, "skip"),
        ("wait", {"is_eager": True}, "raise"),
    ],
    ids=str,
)
def test_only_a_fresh_publish_is_dropped_and_what_really_happens_is_announced(
    shop: Shop, strategy: str, how: dict[str, Any], happens: str
) -> None:
    """Laws 2, 6, 7 and 8. ``lock_conflict``: who counts skipped tasks must not count those that wait."""
    shop.app.conf.redislock_eager = True
    task = shop.unique(body, lock_key=KEY, on_conflict=strategy)
    heard: list[Any] = []

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((sender, facts["side"], facts["strategy"], facts["holder"].owner, facts["task_id"]))

    lock_conflict.connect(listen, sender=task)
    with hold(task, 7, task_id="first"), shop.running(task, **how), pytest.raises((Ignore, DuplicateTask)):
        task(7)
    assert heard == [(task, "server", happens, "first", "t1")]
    assert [message.headers["id"] for message in shop.messages()] == ["t1"] * (happens == "wait")
    assert happens != "wait" or shop.state("t1") == "PENDING"


@pytest.mark.parametrize("amount", [1, 2])
def test_an_accepted_message_that_lost_its_claim_waits_for_the_next_one(shop: Shop, amount: int) -> None:
    """Law 2: its publisher was told that it is no duplicate, so it runs, whatever the holder does."""
    task = shop.unique(body, lock_key=KEY)
    task.apply_async((7, 1), task_id="t1")
    message = shop.message()
    shop.store.force_release(KEY)
    task.apply_async((7, amount), task_id="t2")
    other = shop.message()
    assert isinstance(shop.run(shop.receive(message)), Ignore)
    assert shop.run(shop.receive(other)) == 7 + amount
    assert shop.run() == 8


@pytest.mark.parametrize("how", ["accepted", "a retry"])
def test_what_was_accepted_does_not_wait_for_its_own_period(shop: Shop, how: str) -> None:
    """Laws 7 and 8: its run died, or its retry lost its claim; the period is its own."""

    def sync(self: Any, account_id: int) -> int:
        if how == "a retry" and not self.request.retries:
            self.retry(countdown=0)
        return account_id

    task = shop.unique(sync, bind=True, lock_key=KEY, lock="while_executing", lock_period=3000)
    task.apply_async((7,), task_id="t1")
    message = shop.message()
    if how == "a retry":
        shop.run(shop.receive(message))
        message = shop.message()
    else:
        token = carried(message).token
        shop.store.acquire(
            KEY, "t1/dead", 1, facts=json.dumps({"message": token}), period=3000, message=token
        )
    for one in shop.held().values():
        shop.store.release(KEY, one.token)  # and not the period

    assert shop.run(shop.receive(message, redelivered=how == "accepted")) == 7


@pytest.mark.parametrize("acks_late", [False, True])
@pytest.mark.parametrize(
    ("options", "result"),
    [
        ({"lock_skip_result": {"executed": False}}, {"executed": False}),
        ({"lock_skip_result": False}, False),
        ({"lock_skip_result": lambda _: None}, None),
        ({"lock_skip_result": lambda conflict: [conflict.holder, *conflict.args]}, ["first", 7]),
        ({"on_conflict": lambda conflict: Skip(f"{conflict.task_id} is late")}, "t1 is late"),
        ({"on_conflict": lambda _: "skip", "lock_skip_result": 5}, 5),
        ({"on_conflict": lambda _: Skip(None), "lock_skip_result": 5}, None),
    ],
)
def test_a_skip_with_a_result_is_a_success_whose_body_has_not_run(
    shop: Shop, options: dict[str, Any], result: object, *, acks_late: bool
) -> None:
    """Its caller reads the value; its success has the hooks and signals of any."""
    told: list[Any] = []
    runs: list[int] = []
    given: dict[str, Any] = {"on_conflict": "skip", "acks_late": acks_late, **options}
    task = shop.noting(runs, lambda _: 1, lock_key=KEY, lock="while_executing", **given)
    type(task).on_success = lambda _self, value, *_: told.append(value)
    task.apply_async((7,), task_id="t1")

    def note(result: object, **_: Any) -> None:
        told.append(result)

    task_success.connect(note)  # known weakly: until this test has ended
    with hold(task, 7, task_id="first"):
        assert shop.run() == result

    assert (shop.state("t1"), runs, told) == ("SUCCESS", [], [result, result])
    assert (shop.acks, shop.messages(), shop.held()) == (["ack"], [], {})


def test_a_skip_without_the_result_it_should_have_is_a_plain_one(shop: Shop, caplog: Any) -> None:
    """A duplicate stays one: the mistake in the callable is told, and costs no job."""
    task = shop.unique(body, lock_key=KEY, lock_skip_result=raising(ZeroDivisionError()))
    with hold(task, 7, task_id="first"), shop.running(task), pytest.raises(Ignore):
        task(7)
    assert shop.state("t1") == "REVOKED"
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "its lock_skip_result raised ZeroDivisionError()" in warning.getMessage()


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"lock": "while_executing", "lock_skip_result": 1}, {}),
        ({"on_conflict": "raise", "lock_skip_result": 1}, {}),
        ({}, {"lock_skip_result": 1}),
    ],
)
def test_a_result_that_no_skip_could_have_is_refused(shop: Shop, options: Any, call: Any) -> None:
    """Where nothing is skipped on the worker; and for one call, whose worker knows the task's."""
    with pytest.raises(LockOptionError, match="lock_skip_result is"):
        shop.unique(body, lock_key=KEY, **options).apply_async((7,), **call)


@pytest.mark.parametrize(
    ("scope", "on_conflict", "ends_in"),
    [
        ("until_executed", "skip", float("inf")),
        ("until_executed", "skip", 3600.0),
        ("until_executed", "raise", float("inf")),
        ("while_executing", "retry", float("inf")),
    ],
)
def test_a_foreign_lock_that_never_ends_is_warned_of_once(
    shop: Shop, caplog: Any, scope: str, on_conflict: str, ends_in: float
) -> None:
    """No task of that key will ever run; the warning says what to do about it. A duplicate is no trouble."""
    name = f"endless-{shop.queue}"
    shop.store.acquire(name, "somebody", ends_in, facts="")
    task = shop.unique(body, lock_key=name, lock=scope, on_conflict=on_conflict, lock_retry_delay=50)
    with caplog.at_level("WARNING"):
        for _ in range(2):
            with suppress(DuplicateTask):
                task.delay(7)
            for message in shop.messages():
                shop.run(shop.receive(message))

    logged = [record.getMessage() for record in caplog.records if record.name == "celery_redislock"]
    # A watchdog's thread may warn meanwhile of what a test before has left.
    said = [line for line in logged if name in line]
    assert len(said) == (ends_in == float("inf"))
    for line in said:
        assert "never expires" in line
        assert f"redislock release --reason TEXT -- {name}" in line

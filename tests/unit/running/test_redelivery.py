"""A second copy of a message, and a message that waits for its lock."""

import json
import random
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.exceptions import Ignore
from kombu.serialization import prepare_accept_content

from celery_redislock.publishing import promote
from celery_redislock.running.redelivery import ToBeParked
from celery_redislock.store.store import Promotion, owner_of
from celery_redislock.testing import hold
from tests.unit.shop import KEY, SCOPES, Shop, body, carried, replace


def counted(shop: Shop, runs: list[int], **options: Any) -> Any:
    """Declare a task that notes its runs."""
    return shop.noting(runs, lambda task: task.request.retries, lock_key=KEY, **options)


def assert_put_off(message: Any, pause: float, began: datetime) -> None:
    """Prove that a message may run so many seconds after it was published, some time since ``began``."""
    eta = datetime.fromisoformat(message.headers["eta"])
    delay = timedelta(seconds=pause)
    assert began <= eta - delay <= datetime.now(timezone.utc)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("flagged", [True, False])
def test_two_deliveries_of_a_message_never_run_at_once_and_a_late_one_does_nothing(
    shop: Shop, scope: str, flagged: bool
) -> None:
    """Law 8, in every scope, whether or not the broker says ``redelivered``.

    Where the scope holds nothing, the run holds a lease on its message.
    """
    runs: list[int] = []

    def sync(account_id: int) -> int:
        runs.append(account_id)
        if len(runs) == 1:
            assert isinstance(shop.run(shop.receive(message, redelivered=flagged)), Ignore)
            assert shop.meta(published.id)["status"] == "PENDING"
        return account_id

    task = shop.unique(sync, lock_key=KEY, acks_late=True, **SCOPES[scope])
    published = task.delay(7)
    message = shop.message()
    assert shop.run(shop.receive(message)) == 7
    before = shop.meta(published.id)
    waiting = shop.message()
    shop.run(shop.receive(waiting))

    assert carried(waiting) == carried(message)._replace(was_delivered=True, was_told=True)
    assert (runs, shop.meta(published.id), shop.messages()) == ([7], before, [])
    assert shop.acks == ["ack"] * 3


def test_a_copy_of_what_has_ended_and_not_told_its_result_waits_for_as_long_as_the_mark_says(
    shop: Shop, monkeypatch: Any
) -> None:
    """A fact, and no guess. It is due then: a worker that dies with it until then has not died running it."""
    runs: list[int] = []
    task = counted(shop, runs, lock_ttl=40, lock_retry_delay=0.3, acks_late=True)
    storing = task.backend.mark_as_done

    def store(*args: Any, **kwargs: Any) -> Any:
        if not shop.messages():
            shop.run(shop.receive(message))
        return storing(*args, **kwargs)

    monkeypatch.setattr(task.backend, "mark_as_done", store)
    task.delay(7)
    message = shop.message()
    began = datetime.now(timezone.utc)
    shop.run(shop.receive(message))

    eta = datetime.fromisoformat(shop.message().headers["eta"])
    assert timedelta(seconds=39) <= eta - began <= timedelta(seconds=41)
    assert len(runs) == 1


@pytest.mark.parametrize("acks_late", [False, True])
def test_of_a_message_that_was_sent_twice_the_second_one_runs_only_if_it_is_acknowledged_late(
    shop: Shop, *, acks_late: bool
) -> None:
    """Acknowledged early, it runs once at most: its copy has nothing to do, even if its first run is killed.

    Acknowledged late, the copy waits for that run's end, and runs if that run was killed.
    """
    promote.install(shop.app, shop.store)
    runs: list[int] = []
    ended: list[Any] = []

    def sync(account_id: int) -> None:
        runs.append(account_id)
        if len(runs) == 1:
            ended.append(shop.run(shop.receive(second)))

    options = {"lock": "while_executing", "lock_key": KEY, "acks_late": acks_late}
    task = shop.unique(sync, **options)
    shop.store.acquire(KEY, "holder/1", 300.0, facts='{"state":"running"}')
    task.delay(7)
    shop.run()
    promoted: list[Promotion] = []
    shop.store.on_promoted = promoted.extend
    shop.store.release(KEY, "holder/1")
    for sends in range(2):
        (given,) = promoted
        assert given.sends == sends
        assert promote.publish_promoted(shop.app, shop.store, given, lambda *_: False)
        promoted.clear()
        shop.store.let_pass(36.0)
        shop.store.sweep(most=1)
    first, second = shop.messages()
    shop.run(shop.receive(first))

    assert runs == [7]
    assert isinstance(ended[0], ToBeParked) == acks_late


@pytest.mark.parametrize(("kept", "finds_it"), [(-1.5, True), (0.5, False), (1.5, True)])
def test_a_message_that_waited_in_a_worker_finds_the_mark_of_a_copy_that_overtook_it(
    shop: Shop, monkeypatch: Any, kept: float, *, finds_it: bool
) -> None:
    """Law 8: a connection broke meanwhile. Law 10: what starts soon after its receipt asks for no mark."""
    shop.unique(body, lock_key=KEY).delay(7)
    message = shop.message()
    request = shop.receive(message)
    shop.store.mark_done(KEY, carried(message).token, 60.0)
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + kept)
    assert isinstance(shop.run(request), Ignore) == finds_it


def running(shop: Shop, *, message: str, task_id: str = "t1") -> None:
    about = {"task": "shop.sync", "state": "running", "since": time.time(), "message": message}
    shop.store.acquire(KEY, f"{task_id}/run", 30, facts=json.dumps(about))


def test_publishing_a_task_id_again_is_a_new_job_and_waits_as_one(shop: Shop) -> None:
    """A message's identity is its token: it is no copy, and runs when the first has ended."""
    runs: list[int] = []
    task = counted(shop, runs, lock="while_executing", acks_late=True)
    for _ in range(2):
        task.apply_async((7,), task_id="t1")
    first, second = shop.messages()
    running(shop, message=carried(first).token)
    assert isinstance(shop.run(shop.receive(second)), Ignore)
    waiting = shop.message()
    assert not carried(waiting).was_delivered
    shop.store.force_release(KEY)
    shop.run(shop.receive(first))
    shop.run(shop.receive(waiting))

    assert runs == [0, 0]


@pytest.mark.parametrize("scope", ["until_executed", "while_executing"])
def test_a_retry_that_arrives_before_its_body_has_ended_waits(shop: Shop, scope: str) -> None:
    """Law 7: never two bodies at once. What waits keeps its claim's token."""
    runs: list[int] = []

    def sync(self: Any, account_id: int) -> None:
        runs.append(self.request.retries)
        if not self.request.retries:
            self.retry(countdown=0, throw=False)
            assert isinstance(shop.run(), Ignore)

    shop.unique(sync, bind=True, lock=scope, lock_key=KEY).delay(7)
    shop.run()

    waiting = shop.message()
    assert (waiting.headers["retries"], carried(waiting).was_delivered) == (1, False)
    assert [hold.token for hold in shop.held().values()] == [carried(waiting).token]
    shop.run(shop.receive(waiting))
    assert (runs, shop.held()) == ([0, 1], {})


@pytest.mark.parametrize(
    ("delay", "visibility", "quorum", "pause"),
    [
        (5, None, False, 5.0),
        # Redis would deliver what a worker holds for its ETA a second time.
        (50.0, None, False, 50.0),
        (50.0, 20, False, 20.0),
        (9000.0, None, False, 3600.0),
        # Law 2: the broker keeps it on quorum queues, and takes no part of a second.
        (0.2, None, True, 1.0),
    ],
    ids=str,
)
def test_a_message_that_cannot_wait_in_line_is_tried_again_after_its_delay(
    shop: Shop, monkeypatch: Any, delay: float, visibility: int | None, pause: float, *, quorum: bool
) -> None:
    """Law 7: after ``lock_retry_delay``, here because the broker is none that a line can push to.

    It is never longer than the broker's visibility timeout. Nothing is counted, and no retry spent.
    """
    monkeypatch.setattr(random, "uniform", lambda _least, most: most)
    if quorum:
        replace(monkeypatch, "detect_quorum_queues", lambda *_: (True, "a queue"))
    if visibility:
        shop.app.conf.broker_transport_options = {"visibility_timeout": visibility}
    began = datetime.now(timezone.utc)
    task = shop.unique(body, lock_key=KEY, lock="while_executing", lock_retry_delay=delay)
    task.delay(7)
    with hold(task, 7):
        shop.run()

    again = shop.message()
    assert_put_off(again, pause, began)
    assert again.headers["retries"] == 0


@pytest.mark.parametrize("scope", ["until_executed", "while_executing"])
def test_a_call_waits_in_line_for_a_period_to_pass_and_is_received_once_more(shop: Shop, scope: str) -> None:
    """Law 10: however many periods it waits for, it comes when its own begins."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, lock=scope, lock_key=KEY, lock_period=60.0, on_conflict="wait")
    results = [task.delay(7) for _ in range(3)]
    for message in shop.messages():
        shop.run(shop.receive(message))
    for result in results[1:]:
        assert shop.messages() == []
        shop.store.let_pass(61)
        shop.store.sweep()
        message = shop.message()
        assert message.headers["id"] == result.id
        assert shop.run(shop.receive(message)) == 7
    assert (shop.messages(), shop.store.lines()) == ([], [])


def test_what_is_left_of_a_period_is_waited_for_by_the_clock_where_nobody_has_the_message(shop: Shop) -> None:
    """A fact, and no guess."""
    task = shop.unique(body, lock_key=KEY, lock_period=60.0, on_conflict="wait")
    began = datetime.now(timezone.utc)
    task.delay(7)
    shop.run()
    with shop.running(task), pytest.raises(Ignore):
        task(7)
    eta = datetime.fromisoformat(shop.message().headers["eta"])
    assert timedelta(seconds=50) <= eta - began <= timedelta(seconds=61)


def test_a_message_that_waited_is_the_message_it_was(shop: Shop) -> None:
    """Published again as Celery's own retry does it: nothing of it is lost but its retry count stays."""
    task = shop.unique(body, lock_key=KEY, lock="while_executing")
    shop.app.conf.accept_content = ["json", "pickle"]
    task.apply_async(
        (7,),
        task_id="t1",
        argsrepr="(***)",
        priority=4,
        expires=1000,
        serializer="pickle",
        headers={"trace": "abc"},
        link=task.si(8),
        group_id="g",
        root_id="r",
        ignore_result=True,
        retries=2,
        time_limit=9,
    )
    before = shop.message()
    before.accept = prepare_accept_content(["pickle"])
    before.headers["x-death"] = [{"queue": "celery_delayed_0"}]
    with hold(task, 7):
        assert isinstance(shop.run(shop.receive(before)), Ignore)

    again = shop.message()
    assert "x-death" not in again.headers  # RabbitMQ would take it for a message that goes in circles
    again.accept = before.accept
    assert again.decode() == before.decode()
    assert again.content_type == before.content_type == "application/x-python-serialize"
    kept = ["id", "argsrepr", "expires", "trace", "group", "root_id", "ignore_result", "retries", "timelimit"]
    for name in kept:
        assert again.headers[name] == before.headers[name], name
    assert carried(again) == carried(before)._replace(was_told=True)
    assert again.properties["priority"] == 4
    assert again.properties["correlation_id"] == before.properties["correlation_id"]


@pytest.mark.parametrize("has_header", [True, False])
def test_that_a_message_waits_is_said_once_then_to_debug(shop: Shop, caplog: Any, has_header: bool) -> None:
    """Not at each look: a key that many wait for would drown everything else. Which command says more."""
    caplog.set_level("DEBUG", "celery_redislock")
    task = shop.unique(body, lock_key="account:{account_id}", lock="while_executing")
    for task_id in ("t1", "t2"):
        if has_header:
            task.apply_async((7,), task_id=task_id)
        else:
            shop.app.send_task("shop.sync", (7,), task_id=task_id)
    with hold(task, 7, task_id="first"):
        for _ in range(3):
            for message in shop.messages():
                shop.run(shop.receive(message))

    lines = [(record.levelname, record.message) for record in caplog.records if "waits" in record.message]
    said = "'account:7' is held by first: celery -A YOUR_APP redislock explain account:7"
    for task_id in ("t1", "t2"):
        line = f"shop.sync[{task_id}] waits: {said}"
        assert [level for level, text in lines if text == line] == ["INFO", "DEBUG", "DEBUG"]


@pytest.mark.parametrize("has_tag", [False, True])
def test_a_message_without_a_header_gets_an_identity_when_it_waits(shop: Shop, *, has_tag: bool) -> None:
    """Law 8: that of its delivery tag, if the broker made one for the publish; else one of its own."""
    task = shop.unique(body, lock_key=KEY, on_conflict="retry")
    shop.app.send_task("shop.sync", (7,), task_id="t1")
    message = shop.message()
    tag = message.properties["delivery_tag"] if has_tag else message.properties.pop("delivery_tag")
    with hold(task, 7):
        shop.run(shop.receive(message))
    again = carried(shop.message())
    assert owner_of(again.token) == "t1"
    assert (again.token == f"t1/{tag}") == has_tag


@pytest.mark.parametrize("waits", [False, True])
def test_a_task_id_that_is_sent_again_by_name_is_a_new_job(shop: Shop, *, waits: bool) -> None:
    """Law 2: the done mark of the first job refuses neither the second one nor that one's redelivery."""
    ends: list[BaseException | None] = [None, SystemExit(1), None]
    runs = []

    def sync(account_id: int) -> None:
        runs.append(account_id)
        if error := ends.pop(0):
            raise error

    task = shop.unique(sync, lock="while_executing", lock_key=KEY, acks_late=True)
    shop.app.send_task("shop.sync", (7,), task_id="daily")
    shop.run()
    shop.app.send_task("shop.sync", (7,), task_id="daily")
    if waits:
        with hold(task, 7):
            shop.run()
    message = shop.message()
    with suppress(SystemExit):
        shop.run(shop.receive(message))
    shop.run(shop.receive(message, redelivered=True))

    assert runs == [7, 7, 7]

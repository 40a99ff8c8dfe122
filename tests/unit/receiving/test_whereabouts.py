"""What is said of where a message is, without a broker that can be looked into."""

import json
import re
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redislock.declaring.options import LockSettings
from celery_redislock.publishing import promote
from celery_redislock.receiving import whereabouts
from celery_redislock.store.store import Promotion
from tests.unit.shop import KEY, Shop, body, carried


@pytest.fixture
def app() -> Celery:
    """One whose broker keeps its queues to itself, as RabbitMQ does."""
    return Celery(broker="memory://", set_as_current=False)


def workers(app: Any, **said: Any) -> None:
    """Let workers answer so, and the others not at all."""
    names = ("query_task", "scheduled", "active_queues")
    answers = {name: lambda *_, name=name: said.get(name) for name in names}
    app.control.inspect = lambda **_: SimpleNamespace(**answers)


def due(seconds: float, task_id: str) -> dict[str, Any]:
    """An entry of a worker's schedule."""
    eta = datetime.now(timezone(timedelta(hours=2))) + timedelta(seconds=seconds)
    return {"eta": eta.isoformat(), "priority": 6, "request": {"id": task_id}}


@pytest.mark.parametrize(
    ("seconds", "left"), [(41.4, "due in 41 s"), (-5.0, "due in 0 s")], ids=["later", "overdue"]
)
def test_a_message_that_waits_is_told_with_when_it_is_due(app: Celery, seconds: float, left: str) -> None:
    """Of a retry its worker has forgotten the id, and of others it does not say when."""
    entries = [due(99.0, "another"), due(seconds, "t1")]
    for known in ({"w@a": {"t1": ["scheduled", {}]}, "w@b": None}, {"w@a": {}}, None):
        workers(app, query_task=known, scheduled={"w@b": None, "w@a": entries})
        found = whereabouts.find_message(app, LockSettings(), "t1", runs=False)
        assert found.state == "in hand"
        assert found.told == f"held back by worker w@a, which answers; {left}"


def test_a_message_that_no_worker_names_is_told_to_be_queued_or_lost(app: Celery) -> None:
    workers(app, scheduled={"w@a": [due(9.0, "another")]}, active_queues={"w@a": [], "w@b": []})
    found = whereabouts.find_message(app, LockSettings(), "t1", runs=False)
    assert found.state == "unseen"
    assert found.told.endswith("Workers that answer: w@a, w@b")
    assert "which nobody consumes" not in found.told  # this broker does not say who does


def test_a_message_whose_run_holds_a_lock_is_told_to_be_taken(app: Celery) -> None:
    """Its worker does not answer; if that is dead, nobody can see the message in its queue."""
    workers(app)
    found = whereabouts.find_message(app, LockSettings(), "t1", runs=True)
    assert found.state == "running"
    assert found.told.startswith("taken by a worker that does not answer, and without a result yet; ")


@pytest.mark.parametrize("answers", [True, False])
def test_a_worker_that_answers_is_not_told_to_be_silent(monkeypatch: Any, *, answers: bool) -> None:
    """Its name may start as another's does."""
    bearer = json.dumps({"node": "w@host", "pid": 7, "host": "host"}).encode()
    monkeypatch.setattr(whereabouts, "run_script", lambda *_: (bearer, 29_000))
    known = ["w@host-2", *(["w@host"] if answers else [])]
    said = whereabouts._told_of_bearer(SimpleNamespace(global_keyprefix=""), LockSettings(), "n", known)
    assert ("does not answer" in said) == (not answers)
    assert re.search(r"the worker w@host \(pid 7 on host\)", said)
    assert ("is back in its queue in 29 s" in said) == (not answers)


def test_workers_that_nobody_can_ask_are_not_told_to_be_started() -> None:
    """As with SQS, where remote control is off and a worker runs."""
    app = Celery(broker="redis://127.0.0.1:1/0")  # nobody is there
    app.conf.worker_enable_remote_control = False
    said = whereabouts.told_of_workers(app, "celery")
    assert "worker_enable_remote_control is off" in said
    assert "start one" not in said


def test_what_was_published_may_be_there_as_long_as_its_queue_has_messages(shop: Shop) -> None:
    """Law 2: where it is empty, what was handed its lock and has not started is sent again."""
    task = shop.unique(body, lock_key="account:{account_id}")
    task.delay(7)
    message = shop.message()
    text = promote.text_of(message, message.headers).encode()
    promotion = Promotion(KEY, carried(message).token, text)
    assert not whereabouts.may_be_there(shop.app, promotion)
    task.delay(8)
    assert whereabouts.may_be_there(shop.app, promotion)

"""What a worker's consumer hears of messages it makes no request for: the claims of revoked ids."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.consumer.control import Control

from celery_redislock import LockLost
from celery_redislock.receiving import consumer
from celery_redislock.receiving.consumer import Revoked, Unreceived
from celery_redislock.store.memory import MemoryStore
from tests.unit.shop import Shop, body


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The threads that were started: each ends when the test calls it, and nobody sleeps."""
    started: list[Any] = []

    def thread(target: Any, **_: Any) -> Any:
        return SimpleNamespace(start=lambda: started.append(target))

    # The module's own name: what redis imports late derives from the real class.
    monkeypatch.setattr(consumer, "threading", SimpleNamespace(Lock=threading.Lock, Thread=thread))
    monkeypatch.setattr(consumer.time, "sleep", lambda _seconds: None)
    return started


def listening(app: Any, **commands: Any) -> Any:
    """Add the step to a consumer with these control commands; return its mailbox's node."""
    node = SimpleNamespace(handlers=commands)
    blueprint = {Control.name: SimpleNamespace(box=SimpleNamespace(node=node))}
    parent = SimpleNamespace(app=app, blueprint=blueprint, on_decode_error=lambda *_: None)
    Unreceived(parent).include(parent)
    return node


def test_many_revocations_cost_one_look_unawaited(shop: Shop, monkeypatch: Any, threads: list[Any]) -> None:
    """Law 10; ids come alone and in lists, as texts and as numbers."""
    shop.unique(body)
    looked: list[set[str]] = []
    monkeypatch.setattr(Revoked, "release_claims", lambda _self, ids: looked.append(ids))
    said: list[Any] = []
    node = listening(
        shop.app, revoke=lambda state, **given: said.append((state, given)) or "ok", terminate=None
    )
    for task_id in ("a", ["b", 3], None, []):
        assert node.handlers["revoke"]("state", task_id=task_id, terminate=True) == "ok"

    assert (len(threads), looked) == (1, [])
    threads.pop()()
    assert looked == [{"a", "b", "3"}]
    node.handlers["revoke"]("state", task_id="c")
    threads.pop()()
    assert looked[1:] == [{"c"}]
    assert said[0] == ("state", {"task_id": "a", "terminate": True})


def test_a_failed_look_ends_no_other(shop: Shop, monkeypatch: Any, caplog: Any, threads: list[Any]) -> None:
    """Law 9: it is logged."""
    shop.unique(body, lock_key="account:7").apply_async((7,), task_id="a")
    node = listening(shop.app, revoke=lambda _state, **_: "ok", terminate=lambda _state, **_: "ok")
    monkeypatch.setattr(consumer, "keep_trying", lambda attempt, **_: attempt())
    for problem in (LockLost("x", "y", 1), None):

        def release_claims(owners: Any, problem: Any = problem) -> Any:
            if problem is not None:
                raise problem
            return MemoryStore.release_claims(shop.store, owners)

        monkeypatch.setattr(shop.store, "release_claims", release_claims)
        assert node.handlers["terminate"](None, signal="KILL", task_id="a") == "ok"
        threads.pop()()
    assert shop.held() == {}
    told = [(record.name, record.levelname) for record in caplog.records]
    assert told.count(("celery_redislock", "WARNING")) == 1


def test_an_app_without_unique_tasks_or_locks_listens_to_nothing(shop: Shop, monkeypatch: Any) -> None:
    """Law 10; and the commands of other apps in this process are left alone."""
    commands = {"revoke": str, "terminate": str}
    plain = SimpleNamespace(tasks={"plain": shop.app.tasks["celery.chain"]})
    assert listening(plain, **commands).handlers == commands
    shop.unique(body)
    node = listening(shop.app, **commands)
    assert node.handlers["revoke"] is not str
    assert commands["revoke"] is str
    shop.app.conf.redislock_enabled = False
    monkeypatch.setattr(shop.store, "release_claims", None)
    Revoked(shop.app).release_claims({"a"})

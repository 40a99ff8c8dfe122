"""The thread of a worker that looks at lines: it never keeps a worker from starting, and ends with it."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redislock import SingletonTask, log
from celery_redislock.locks import MemoryStore
from celery_redislock.publishing import promote
from celery_redislock.receiving import sweep
from celery_redislock.receiving.proof import Prover
from celery_redislock.store.store import Entry, Sweep, Unstarted
from tests.clocks import AheadClock
from tests.unit.shop import Shop, body


class Consumer:
    """As far as the step looks at one; it can be referred to weakly."""

    def __init__(self, app: Any) -> None:
        self.app = app


@pytest.mark.parametrize("enabled", [True, False])
def test_a_worker_starts_where_no_lock_server_is_named(*, enabled: bool) -> None:
    """Its check tells, and ``redislock_enabled`` is the switch for an incident."""
    app = Celery("nowhere", broker="memory://localhost", set_as_current=False)
    app.conf.redislock_enabled = enabled
    app.task(body, base=SingletonTask, shared=False, lazy=False)
    assert sweep.Sweeping(SimpleNamespace()).create(Consumer(app)) is None


def test_a_worker_has_proved_its_home_before_it_looks_at_lines(shop: Shop, monkeypatch: Any) -> None:
    """And where it proves again, before each look."""
    shop.unique(body, lock="while_executing")
    promote.install(shop.app, shop.store)
    consumers = [Consumer(shop.app)]
    happened: list[str] = []

    def look(*_: object) -> float:
        happened.append("look")
        consumers.clear()
        gc.collect()
        return 0.0

    monkeypatch.setattr(Prover, "prove", lambda *_: happened.append("prove"))
    threads: list[Any] = []
    monkeypatch.setattr(sweep, "start_thread", lambda run, _: threads.append(run))
    monkeypatch.setattr(sweep, "original", lambda *_: lambda _seconds: None)
    monkeypatch.setattr(sweep, "look", look)
    sweep.Sweeping(SimpleNamespace()).create(consumers[0])
    assert happened == ["prove"]
    threads[0]()

    assert happened == ["prove", "prove", "look"]


def test_what_leaves_lines_where_locking_is_off_is_told_once_a_minute(caplog: Any, monkeypatch: Any) -> None:
    """With the number since then: calls keep coming from those that still lock."""
    clock = AheadClock()
    monkeypatch.setattr(log, "monotonic", clock)
    monkeypatch.setattr(log, "_told_at", {})
    store = MemoryStore(clock=clock)
    store.acquire("n", "holder/1", 300.0, facts="{}")
    empty = sweep.emptying(store)
    for number, seconds in enumerate([1.0, 1.0, 57.9, 0.2]):
        store.park(
            "n", f"job-{number}/1", Entry("push", "q", 30.0, "{}", "text"), nonce=str(number), how="refused"
        )
        empty()
        empty()
        clock.advance(seconds)
    empty()

    assert len(store.queues["q"]) == 4
    off = "locking is switched off: {} waiting messages are back in their queues"
    assert caplog.messages == [off.format(1), off.format(3)]


def test_a_look_tells_what_was_handed_its_lock_and_does_not_start(caplog: Any, monkeypatch: Any) -> None:
    """With the queue and the key, and what to do; of what lies in its queue once a minute."""
    clock = AheadClock()
    monkeypatch.setattr(log, "monotonic", clock)
    monkeypatch.setattr(log, "_told_at", {})
    store = SimpleNamespace(
        sweep=lambda **_: Sweep(
            1.0,
            unstarted=(
                Unstarted("account:7", "lies/1", "celery", 3, is_lost=False),
                Unstarted("account:8", "lost/1", "celery", 6, is_lost=True),
            ),
        )
    )
    for seconds in (59.0, 0.0, 2.0):
        sweep.look(store, None)  # type: ignore[arg-type]  it asks for nothing else
        clock.advance(seconds)

    lies = [message for message in caplog.messages if message.startswith("lies was handed 'account:7'")]
    lost = [message for message in caplog.messages if message.startswith("lost was handed 'account:8'")]
    assert len(lies) == 1
    assert "lies in 'celery' since then (looked at 3 times)" in lies[0]
    assert "waiting account:7 --drop lies --reason TEXT" in lies[0]
    assert "sent to 'celery' 6 times, and has not started: it went to the end" in lost[0]
    sweep.look(store, None)  # type: ignore[arg-type]  as above
    assert sum("lies in" in message for message in caplog.messages) == 2


def test_a_look_that_meets_another_home_learns_whether_it_is_this_one() -> None:
    """By another spelling; so the line goes on at the next look."""
    store = MemoryStore()
    store.home = "amqp:here"
    for spelling in ("amqp:here", "amqp:there", "amqp:elsewhere"):
        store.homes(spelling, "another" if spelling == "amqp:elsewhere" else "one")
    store.acquire("n", "holder/1", 300.0, facts="{}")
    store.park("n", "job/1", Entry("give", "amqp:there", 30.0, "{}", "text"), nonce="n", how="refused")
    store.release("n", "holder/1")
    store._due["n"] = 0.0
    sweep.look(store, None)
    assert store.home.split("\n") == ["amqp:here", "amqp:there"]

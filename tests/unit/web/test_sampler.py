"""The looks of a process at the lock server: what they add up to, when they are taken, and what ends them."""

import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.store.store import History, Hold, Refused
from celery_redislock.web import sampler as module
from celery_redislock.web.sampler import AN_HOUR, MOST_EVENTS, Event, Sampler
from tests.unit.shop import raising
from tests.unit.web.site import Site, TellingStore, looks


def refused(
    store: TellingStore, key: str, at: float, *, by: str = "t1", times: int = 1, **facts: str
) -> None:
    """Let a lock have refused a call of the shop's, by the server's clock."""
    about = "".join(f',"{name}":"{fact}"' for name, fact in facts.items())
    hold = Hold(key, f't2/1\0{{"task":"shop.sync"{about}}}'.encode(), 0.0)
    store.refusals[key] = History((Refused(times, at, at, by, hold),))


def acquire(store: TellingStore, key: str, state: str = "running") -> None:
    store.acquire(key, f"id of {key}/1", 30.0, facts=f'{{"state":"{state}","task":"shop.sync"}}')


def test_each_look_adds_a_point_to_the_curves(lone: Site) -> None:
    """Of skips those that were counted since the first look."""
    store = lone.store
    store.numbers = {("shop.sync", "skipped"): 40, ("shop.sync", "wait", "5"): 9}
    acquire(store, "a")
    lone.sampler._look()
    acquire(store, "b", "queued")
    lone.wait_by_hand("a")
    store.numbers = {("shop.sync", "skipped"): 41, ("shop.mail", "skipped"): 2}
    lone.sampler.around.workers = {"w@a": frozenset(), "w@b": frozenset()}
    lone.sampler._look()
    points = [[*figures.values()] for _, figures in lone.sampler.curve]
    assert points == [[1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 3, 2]]
    page = lone.get().parsed
    labels = [label for label in page.values("aria-label") if "at most" in label]
    assert labels[1:3] == ["queued, from 0 to 1, at most 1", "in line, from 0 to 1, at most 1"]
    assert page.values("points")[4] == "0,23.0 120,1.0"


def test_curves_show_an_hour_at_most(lone: Site, monkeypatch: Any) -> None:
    now = time.time()
    for at in (now - AN_HOUR - 9.0, now - AN_HOUR - 1.0, now - 60.0, now):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda at=at: at))
        lone.sampler._look()
    assert [at for at, _ in lone.sampler.curve] == [now - 60.0, now]


def test_a_curve_may_grow_while_it_is_drawn(lone: Site) -> None:
    class Growing(dict[str, int]):
        def __getitem__(self, name: str) -> int:
            lone.sampler.curve.append(lone.sampler.curve[0])
            return 0

    lone.show()
    figures = Growing(lone.sampler.curve[0][1])
    lone.sampler.curve.clear()
    lone.sampler.curve.extend([(1.0, figures), (2.0, figures)])
    assert lone.get().status == 200


@pytest.mark.parametrize("ahead", [0.0, 900.0, -900.0], ids=["same", "ahead", "behind"])
def test_what_happens_between_two_looks_is_told_once(lone: Site, ahead: float) -> None:
    """By the lock server's clock, whatever this machine's says; the latest first."""
    store = lone.store
    store.ahead = ahead
    refused(store, "before", time.time() + ahead - 60.0)
    store.numbers = {("shop.sync", "lost"): 1, ("shop.sync", "restored"): 1}
    lone.sampler._look()
    assert lone.rows("happened") == []
    refused(store, "skips", time.time() + ahead, about="of ann")
    refused(store, "waits", time.time() + ahead, on_conflict="wait")
    store.numbers = {("shop.sync", "lost"): 3, ("shop.sync", "restored"): 1, ("shop.mail", "restored"): 1}
    for _ in range(3):
        lone.sampler._look()
    told = {(event["what"], event["subject"], event["told"]) for event in lone.rows("happened")}
    assert told == {
        ("skipped", "skips", "shop.sync, of ann: held by t1"),
        ("had to wait", "waits", "shop.sync: held by t1"),
        ("lost", "shop.sync", "2 times since this page's process began"),
        ("restored", "shop.mail", "1 times since this page's process began"),
    }
    assert len(lone.sampler.events) == 4


def test_what_happens_to_a_key_again_and_again_is_one_row(lone: Site) -> None:
    """Of each task and kind, with how often it was, and when last."""
    store = lone.store
    now = time.time()
    lone.sampler._look()
    for times in (1, 4):
        refused(store, "k", now + times, times=times)
        refused(store, "other", now + 2.0, on_conflict="wait")
        store.numbers = {("shop.sync", "lost"): times}
        lone.sampler._look()
    rows = {(row["what"], row["subject"]): row for row in lone.rows("happened")}
    assert len(rows) == len(lone.rows("happened")) == 3
    assert rows["skipped", "k"]["at"] == now + 4.0
    assert rows["skipped", "k"]["told"] == "shop.sync: held by t1, 4 times in the last hour"
    assert rows["lost", "shop.sync"]["told"].startswith("4 times since")
    refused(store, "k", now + 9.0, task="shop.mail")
    lone.sampler._look()
    assert len(lone.rows("happened")) == 4


def test_what_happened_is_bounded_and_begins_with_this_process(lone: Site) -> None:
    lone.sampler._look()
    lone.sampler.events = [Event(float(each), "skipped", str(each), "") for each in reversed(range(3000))]
    lone.sampler._look()
    early = {"since": time.time() - 60.0, "act": "release", "key": "k"}
    late = {**early, "since": time.time(), "act": "hold", "by": "ann", "host": "web-1", "outcome": "done"}
    lone.sampler.around.acts = [early, late]
    document = lone.get("happened.json").document
    assert document["total"] == MOST_EVENTS + 1
    assert [row["subject"] for row in document["rows"][:2]] == ["k", "2999"]
    assert document["rows"][0]["told"] == "by ann on web-1; done"


def test_a_server_that_goes_away_is_told_and_one_that_comes_back_is_seen_by_itself(
    lone: Site, monkeypatch: Any, caplog: Any
) -> None:
    """The page has what was seen last, and its age, with 200. No error of a look ends all later ones."""
    store = lone.store
    told: list[tuple[int, int, bool]] = []

    def look() -> None:
        answer = lone.get("held")
        assert answer.parsed.text.count(" s ago; it is looked at every") == (lone.sampler.last is not None)
        trouble = lone.get("held.json").document["trouble"]
        assert ("could not be looked at" in answer.parsed.text) == (trouble is not None)
        told.append((answer.status, len(answer.parsed.rows.get("held", ())), trouble is not None))

    def go() -> None:
        look()
        acquire(store, "k")
        store.failures = 1
        store.error = lambda verb: LockUnavailable("memory", verb, "it is away")

    def fail() -> None:
        look()
        store.failures = 1
        store.error = lambda _verb: RuntimeError("a fault of ours")

    rests = looks(monkeypatch, lone.sampler, go, look, fail, look, look)
    assert told == [(200, 0, False), (200, 0, True), (200, 1, False), (200, 1, True), (200, 1, False)]
    assert len(rests) == 6
    assert [record.message for record in caplog.records] == ["the page could not look at the locks"]
    store.failures = 1
    store.error = lambda verb: LockUnavailable("memory", verb, "redis://ann:hunter2@shop is away")
    looks(monkeypatch, lone.sampler, lambda: None)
    lone.sampler.trouble = "redis://ann:hunter2@shop is away"
    assert b"hunter2" not in lone.get().body + lone.get("index.json").body


def test_a_page_before_the_first_look_says_so(lone: Site, monkeypatch: Any) -> None:
    """And what explains a lock, which asks the server itself, is not there: 503."""
    lone.store.failures = float("inf")
    looks(monkeypatch, lone.sampler)
    for view in ("", "held"):
        answer = lone.get(view)
        assert (answer.status, "has no answer yet" in answer.parsed.text) == (200, True)
        assert "could not be looked at" in answer.parsed.text
    monkeypatch.setattr(lone.store, "holders", raising(LockUnavailable("memory", "holders", "it is away")))
    assert lone.get("explain", q="k").status == lone.get("explain.json", q="k").status == 503


@pytest.mark.parametrize(
    ("took", "spent", "rest"),
    [
        (0.02, 0.01, 5.0),  # at least
        (0.3, 0.2, 12.0),  # sixty times what it cost the lock server
        (2.0, 0.1, 20.0),  # ten times what it took here
        (1.0, 9.0, 60.0),  # what others asked for meanwhile cost the rest
        (1.0, 0.0, 60.0),  # a server that does not say
    ],
)
def test_looks_rest_as_long_as_they_cost(
    lone: Site, monkeypatch: Any, took: float, spent: float, rest: float
) -> None:
    used = iter([100.0, 100.0 + spent])
    monkeypatch.setattr(module, "_cpu", lambda _: next(used))

    def counts() -> Any:
        lone.sampler.clock.now += took
        return TellingStore.counts(lone.store)

    monkeypatch.setattr(lone.store, "counts", counts)
    assert looks(monkeypatch, lone.sampler) == [pytest.approx(rest)]
    assert lone.get("held.json").document["rests"] == pytest.approx(rest)


def test_a_look_that_waited_in_vain_does_not_rest_for_it(lone: Site, monkeypatch: Any) -> None:
    """Else a server that did not answer for some seconds would be seen again after a minute or two."""

    def counts() -> Any:
        lone.sampler.clock.now += 3.0
        raise LockUnavailable("memory", "counts", "no answer in time")

    monkeypatch.setattr(lone.store, "counts", counts)
    assert looks(monkeypatch, lone.sampler) == [5.0]


def test_who_asks_for_a_page_keeps_looks_coming_and_an_hour_without_ends_them(
    lone: Site, monkeypatch: Any
) -> None:
    """The next one begins them again, and waits for the first: what was seen before may be hours old."""
    sampler = lone.sampler
    monkeypatch.setattr(module, "PATIENCE", 60.0)
    monkeypatch.undo()
    monkeypatch.setattr(sampler.around, "ask", lambda: None)
    now = [1000.0]

    def rest(_: float) -> None:
        now[0] += AN_HOUR - 1.0 if len(sampler.curve) % 2 else 2.0

    monkeypatch.setattr(module, "time", SimpleNamespace(time=time.time, monotonic=lambda: now[0], sleep=rest))
    for number in (2, 4):
        Sampler.wake(sampler)
        assert len(sampler.curve) >= number - 1
        sampler._thread.join(60)
        assert not sampler._thread.is_alive()
        assert len(sampler.curve) == number


FORKED = """
    import os, threading
    from celery_redislock.operating.server import LockServer
    from celery_redislock.store.memory import MemoryStore
    from celery_redislock.web.page import page_of
    from tests.facts import wait_until

    store = MemoryStore()
    page = page_of(LockServer(store, "redislock"))

    def get(view="held.json"):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": f"/{view}"}
        return b"".join(page(environ, lambda *_: None))

    def looks():
        return [thread.name for thread in threading.enumerate()].count("redislock-page")

    assert looks() == 0, "before the first page nobody looks"
    assert wait_until(lambda: b"rows" in get(), 60)
    assert looks() == 1
    store.acquire("k", "t1/1", 900.0, facts='{"state":"running"}')
    if not (pid := os.fork()):
        status = 1
        try:
            assert looks() == 0
            assert wait_until(lambda: b'"k"' in get(), 60)
            assert looks() == 1
            assert b"running, from 1 to 1" in get(""), "its curves are its own"
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert looks() == 1
"""


def test_a_fork_looks_by_itself() -> None:
    """As of a site that loads the page before it forks its workers."""
    subprocess.run([sys.executable, "-c", textwrap.dedent(FORKED)], check=True, timeout=100)

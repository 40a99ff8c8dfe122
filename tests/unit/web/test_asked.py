"""Explanations: at once what the lock server knows; what workers say is asked once, beside the page."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.operating.explain import Explanation
from celery_redislock.operating.server import Trouble
from celery_redislock.store.store import Entry
from celery_redislock.web import asked
from celery_redislock.web.asked import ASKING, Explainer
from tests.facts import wait_until
from tests.unit.shop import Shop, body
from tests.unit.web.site import Site


class Slow:
    """What explains, in place of the package's own: workers answer when a test lets them.

    Attributes:
        asked: of whom, each time that workers were asked. ``error``: what they raise.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.gate = threading.Event()

    def __call__(self, _server: Any, words: Any, *, quick: bool = False) -> Explanation:
        if not quick:
            self.asked.append(words[0])
            assert self.gate.wait(60)
            if self.error is not None:
                raise self.error
        return Explanation({"quick": quick, "schedule": []}, [("held by", "nobody")], [], True)


@pytest.fixture
def slow(lone: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    slow = Slow()
    monkeypatch.setattr(asked, "AT_ONCE", 2)
    lone.explainer.__init__(lone.sampler)  # type: ignore[misc]
    monkeypatch.setattr(asked, "explanation", slow)
    yield slow
    slow.gate.set()
    assert wait_until(lambda: not threads(), 60)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "redislock-page-explain"]


def settled(explainer: Explainer, question: str) -> bool:
    return explainer.explain(question).to_come != ASKING


def test_an_explanation_comes_at_once_and_what_workers_say_at_the_next_load(lone: Site, slow: Slow) -> None:
    """They are asked once, however many load it."""
    for _ in range(3):
        document = lone.get("explain.json", q="k").document
        assert (document["quick"], document["to_come"]) == (True, ASKING)
        assert ASKING in lone.get("explain", q="k").parsed.text
    assert wait_until(lambda: slow.asked == ["k"], 60)
    slow.gate.set()
    assert wait_until(lambda: settled(lone.explainer, "k"), 60)
    document = lone.get("explain.json", q="k").document
    assert (document["quick"], document["to_come"]) == (False, None)
    assert slow.asked == ["k"]


def test_workers_are_not_asked_twice_at_a_time_for_one_question(
    lone: Site, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they take; when their answer does not count any more, they are asked again."""
    monkeypatch.setattr(asked, "COUNTS_FOR", 0.0)
    for _ in range(4):
        assert lone.explainer.explain("k").to_come == ASKING
    assert wait_until(lambda: slow.asked == ["k"], 60)
    slow.gate.set()
    assert wait_until(lambda: not threads(), 60)
    lone.explainer.explain("k")
    assert wait_until(lambda: slow.asked == ["k", "k"], 60)


def test_what_workers_said_is_shown_while_they_are_asked_again(
    lone: Site, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view that is loaded again and again does not lose them each time; later, the rest is newer."""
    slow.gate.set()
    lone.explainer.explain("k")
    assert wait_until(lambda: settled(lone.explainer, "k"), 60)
    slow.gate.clear()
    for seconds, view in product((16.0, 31.0), ("explain.json", "explain")):
        (words,) = lone.explainer._answers
        lone.explainer._keep(words, lone.explainer.explain("k").explanation, time.monotonic() - seconds)
        is_whole = seconds == 16.0
        answer = lone.get(view, q="k")
        if view == "explain":
            told = "As it was" if is_whole else "What they say is not"
            assert f"{ASKING} {told}" in answer.parsed.text
        else:
            assert (answer.document["quick"], answer.document["to_come"]) == (not is_whole, ASKING)
        slow.gate.set()
        assert wait_until(lambda: settled(lone.explainer, "k"), 60)


def test_workers_that_hang_hold_up_nothing(lone: Site, slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are asked at a time, and given up in the end: the page says so."""
    lone.show()
    for question in ("a", "b"):
        assert lone.explainer.explain(question).to_come == ASKING
    assert wait_until(lambda: sorted(slow.asked) == ["a", "b"], 60)
    others = lone.get("explain.json", q="c").document
    assert others["quick"]
    assert others["to_come"].startswith("Other questions are put")
    assert lone.get().status == 200
    assert sorted(slow.asked) == ["a", "b"]
    slow.gate.set()
    assert wait_until(lambda: not threads(), 60)
    slow.gate.clear()
    monkeypatch.setattr(asked, "DEADLINE", 0.01)
    assert lone.explainer.explain("c").to_come == ASKING
    assert wait_until(lambda: settled(lone.explainer, "c"), 60)
    told = lone.get("explain", q="c").parsed.text
    assert "workers and queues could not be asked: TimeoutError" in told
    assert "nobody" in told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Trouble("the app's task modules cannot be imported"), "the app's task modules cannot be imported"),
        (LockUnavailable("memory", "holders", "it is away"), "it is away"),
        (
            OSError("redis://ann:hunter2@shop"),
            "workers and queues could not be asked: OSError: redis://***@shop",
        ),
    ],
    ids=["trouble", "away", "other"],
)
def test_workers_that_cannot_be_asked_are_told_beside_what_is_known(
    lone: Site, slow: Slow, error: Exception, told: str
) -> None:
    slow.error = error
    slow.gate.set()
    lone.explainer.explain("k")
    assert wait_until(lambda: settled(lone.explainer, "k"), 60)
    document = lone.get("explain.json", q="k").document
    assert document["quick"]
    assert told in document["to_come"]
    assert len(slow.asked) == 1


def turn_taken(explainer: Explainer) -> None:
    assert explainer._turn.acquire(timeout=60)


def server_rests(explainer: Explainer) -> None:
    explainer._free_at = float("inf")


@pytest.mark.parametrize("take", [turn_taken, server_rests])
def test_who_would_wait_for_long_is_asked_to_come_again(
    lone: Site, monkeypatch: pytest.MonkeyPatch, take: Callable[[Explainer], None]
) -> None:
    monkeypatch.setattr(asked, "PATIENCE", 0.01)
    take(lone.explainer)
    answer = lone.get("explain", q="k")
    assert (answer.status, "load this page again" in answer.parsed.text) == (503, True)
    assert lone.get("explain.json", q="k").document["error"].startswith("others are asking")


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("", "name a task and its arguments, a task id or a key"),
        ("''", "names no task of the app, no task id and no key"),
        ("it's", "these words cannot be read"),
        ("shop.plain", "shop.plain takes no lock"),
        ("shop.nothing 7", "is not a task known here"),
        ("shop.sync 1 2 3 4", "no lock can be named"),
    ],
)
def test_words_that_name_nothing_are_answered_with_what_to_say(
    site: Site, shop: Shop, question: str, told: str
) -> None:
    shop.unique(body)
    shop.app.task(name="shop.plain", shared=False, lazy=False)(body)
    answer = site.get("explain", q=question)
    assert answer.status == site.get("explain.json", q=question).status == 400
    assert told in answer.parsed.text
    assert question in answer.parsed.values("value")


def test_a_call_that_waits_behind_the_first_is_found_when_workers_are_asked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look knows the first of each line only."""
    monkeypatch.setattr(asked, "AT_ONCE", 2)
    monkeypatch.setattr(asked, "MOST_LINES", 2)
    site.explainer.__init__(site.sampler)  # type: ignore[misc]
    for key, length in (("short", 2), ("long", 4), ("longer", 5), ("single", 1)):
        site.store.acquire(key, "a/1", 900.0, facts='{"state":"running"}')
        for number in range(length):
            entry = Entry("push", "celery", 30.0, '{"state":"queued"}', "{}")
            site.store.park(key, f"{key}-{number}/1", entry, nonce=f"{key}{number}")
    site.sampler._look()
    told = {}
    for name in ("short-1", "long-3", "longer-0", "single-0"):
        assert wait_until(partial(settled, site.explainer, name), 60)
        document = site.explainer.explain(name).explanation.document
        told[name] = [place["place"] for place in document["waits"]]
    assert told == {"short-1": [], "long-3": [4], "longer-0": [1], "single-0": [1]}


def test_what_is_kept_is_bounded(lone: Site) -> None:
    for number in range(300):
        lone.explainer._keep((str(number),), "asked", 1.0)
    assert [*lone.explainer._answers] == [(str(number),) for number in range(200, 300)]

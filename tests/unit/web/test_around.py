"""What is asked seldom for the page: workers, queues, the schedule, the set-up."""

import threading

import pytest

from celery_redislock.web import around
from celery_redislock.web.around import Around
from tests.unit.web.site import Site


def test_what_has_not_been_answered_is_not_asked_again(lone: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that never answers keeps one thread for each question; an answer that comes late ends it."""
    asked = threading.Semaphore(0)
    answer = threading.Event()
    numbers: list[int] = []

    def ask_workers(self: Around) -> None:
        numbers.append(len(numbers))
        asked.release()
        assert answer.wait(30)

    monkeypatch.setattr(Around, "_ask_workers", ask_workers)
    monkeypatch.setattr(around, "DEADLINE", 0.05)
    monkeypatch.setattr(around, "EVERY", dict.fromkeys(around.EVERY, 0.0))
    before = threading.enumerate()
    own = Around(lone.sampler.server)
    own._ask()
    assert asked.acquire(timeout=30)
    own._ask()
    assert "no answer within" in own.troubles["workers"]
    assert numbers == [0]
    answer.set()
    (late,) = [each for each in threading.enumerate() if each not in before]
    late.join(30)
    monkeypatch.setattr(around, "DEADLINE", 30.0)
    own._ask()
    assert numbers == [0, 1]
    assert "workers" not in own.troubles

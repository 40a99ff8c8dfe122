"""Waiting for facts, always with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE", "throughout", "wait_until"]

#: Seconds after which a fact that has not come counts as one that never will: a busy machine needs some.
PATIENCE = 30.0

T = TypeVar("T")


def wait_until(fact: Callable[[], T | None], timeout: float, what: str) -> T:
    """Return the first true answer of ``fact()``; after ``timeout`` seconds fail, saying what was awaited."""
    deadline = time.monotonic() + timeout
    while not (answer := fact()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.01)
    return answer


def throughout(seconds: float, fact: Callable[[], T]) -> list[T]:
    """Return what ``fact()`` answered, again and again, until so many seconds had passed; one at least."""
    until = time.monotonic() + seconds
    answers = [fact()]
    while time.monotonic() < until:
        time.sleep(0.05)
        answers.append(fact())
    return answers

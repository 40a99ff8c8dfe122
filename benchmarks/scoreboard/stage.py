"""A scenario's surroundings: one worker, the facts about it, and nothing left of it afterwards."""

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from benchmarks.scoreboard.judging import Body, Outcome
from benchmarks.scoreboard.worker import CONCURRENCY, NODE, READY, WorkerProcess

__all__ = ["PATIENCE", "WITHIN", "Clock", "NeverCameError", "Stage"]

#: Seconds after which a fact that has not come counts as one that never will: a busy machine needs some.
PATIENCE = 30.0
#: Seconds within which a freed lock must be found free: the same call is accepted, and its body has begun.
WITHIN = 15.0
#: Seconds between two looks.
LOOK = 0.01
#: Seconds between two attempts of the same call.
AGAIN = 0.25
#: Seconds the worker may take to answer.
ANSWER = 10.0
#: Seconds a worker may take until it takes messages.
STARTING = 60.0

T = TypeVar("T")


class Clock(Protocol):
    """What the module ``time`` has."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class NeverCameError(Exception):
    """A fact that every library should bring about did not come: the scenario is failed."""


class Stage:
    """Where a scenario is played, by the only publisher, on a server of its own.

    Args:
        quick: play with a tenth of the numbers.
        verbose: show the worker's log.
        clock: reads the time and lets it pass.
    """

    def __init__(self, *, quick: bool = False, verbose: bool = False, clock: Clock = time) -> None:
        self._quick = quick
        self._clock = clock
        self._verbose = verbose
        self._worker: WorkerProcess | None = None

    @cached_property
    def shop(self) -> ModuleType:
        """The tasks; imported once the plan is made."""
        from benchmarks.scoreboard import shop

        return shop

    def start_worker(self) -> None:
        """Start the worker; it starts while the publisher imports its tasks."""
        self._worker = WorkerProcess(verbose=self._verbose)

    def wait_ready(self) -> None:
        """Return when the worker takes messages.

        Raises:
            RuntimeError: it ended, or does not.
        """
        assert self._worker is not None
        worker = self._worker
        ready = self.until(lambda: self.shop.journal.is_noted(READY) or not worker.is_running, STARTING)
        if not ready or not worker.is_running:
            raise RuntimeError("the worker did not start; --verbose shows its log")

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.end()

    def times(self, number: int) -> int:
        """Return how often to do something: as often as said, unless it must be quick."""
        return max(number // 10, 4) if self._quick else number

    def attempt(self, call: Callable[[], T]) -> T | None:
        """Return the result of a publish, ``None`` where the library refuses by raising."""
        try:
            return call()
        except Exception:  # noqa: BLE001  each library has its own; what counts is what runs
            return None

    @contextmanager
    def kept_on(self, name: str) -> Iterator[None]:
        """Keep the bodies of a task on until the block ends."""
        with self.shop.journal.kept_on(name):
            yield

    def bodies(self, name: str) -> list[Body]:
        """Return the bodies of a task so far."""
        return [body for body in self.shop.journal.bodies() if body.task == name]

    def until(self, fact: Callable[[], T], seconds: float = PATIENCE, *, or_rest: bool = False) -> T | None:
        """Return the first true answer of ``fact()``; ``None`` if none comes in time.

        Args:
            fact: what is awaited.
            seconds: at most.
            or_rest: wait no longer than until nothing is left that could bring it about.
        """
        deadline = self._clock.monotonic() + seconds
        rests = 0
        while self._clock.monotonic() < deadline:
            if answer := fact():
                return answer
            # Twice: what ends between two looks may have published the next.
            rests = rests + 1 if or_rest and self.is_at_rest() else 0
            if rests > 1:
                return fact() or None
            self._clock.sleep(LOOK)
        return None

    def must(self, fact: Callable[[], T], what: str) -> T:
        """Return the first true answer of ``fact()``.

        Raises:
            NeverCameError: with ``what``, where none comes.
        """
        answer = self.until(fact)
        if not answer:
            raise NeverCameError(what)
        return answer

    def started(self, name: str) -> Body:
        """Return the first body of a task once it has begun.

        Raises:
            NeverCameError: it never began.
        """
        return self.must(lambda: self.bodies(name), "it never began")[0]

    def settle(self) -> None:
        """Return when nothing is left to run.

        Raises:
            NeverCameError: there is always something.
        """
        self.until(lambda: False, or_rest=True)
        if not self.is_at_rest():
            raise NeverCameError("it never came to rest")

    def is_received(self) -> bool:
        """Return whether nothing more can begin now: the rest is put off, or the pool is full of bodies."""
        on = len(self._on())
        if on == CONCURRENCY:
            return True
        later = len(self._in_hand("scheduled"))
        return (
            self._queued() == later
            and not self._in_hand("reserved")
            and len(self._in_hand("active")) == on
            and self._queued() == later
        )

    def is_at_rest(self) -> bool:
        """Return whether nothing is left that could run, now or later."""
        return not self._on() and not self._queued() and self.is_received() and not self._queued()

    def is_reserved(self, task_id: str) -> bool:
        """Return whether the worker has a message that waits for a free place in its pool."""
        return any(request["id"] == task_id for request in self._in_hand("reserved"))

    @contextmanager
    def full_pool(self) -> Iterator[None]:
        """Let nothing else run until the block ends: every place in the pool is taken."""
        with self.kept_on("fill"):
            for number in range(CONCURRENCY):
                self.shop.fill.delay(number)
            self.must(lambda: len(self.bodies("fill")) == CONCURRENCY, "the pool never filled")
            yield

    def revoke(self, result: Any, *, terminate: bool = False) -> None:
        """Revoke a task; return when the worker has heard of it."""
        answers = self.shop.app.control.revoke(
            result.id, terminate=terminate, destination=[NODE], reply=True, timeout=ANSWER
        )
        assert answers, "the worker heard of no revocation"

    def wait_gone(self, body: Body) -> None:
        """Return when the process of a body is no more.

        Raises:
            NeverCameError: it is still there.
        """
        self.must(lambda: not _exists(body.pid), "its process never ended")

    def accepted_again(self, call: Callable[[], Any], *earlier: str) -> Outcome:
        """Make a call again and again, until a body begins that is not of an earlier message.

        Args:
            call: publishes.
            earlier: task ids of messages that may still run.
        """
        began = self._clock.monotonic()
        known = {*earlier, *(body.task_id for body in self.shop.journal.bodies())}

        def is_accepted() -> bool | None:
            self.attempt(call)
            return self.until(
                lambda: any(body.task_id not in known for body in self.shop.journal.bodies()), AGAIN
            )

        if self.until(is_accepted, WITHIN):
            return Outcome(True, f"within {math.ceil(self._clock.monotonic() - began)} s")
        return Outcome(False, f"not within {WITHIN:.0f} s")

    def _queued(self) -> int:
        broker = self.shop.journal.broker
        return int(broker.llen("celery")) + int(broker.hlen("unacked"))

    def _on(self) -> list[Body]:
        return [body for body in self.shop.journal.bodies() if body.end is None and _exists(body.pid)]

    def _in_hand(self, state: str) -> list[Any]:
        """Return the worker's requests in a state; one that does not answer has its hands full."""
        inspect = self.shop.app.control.inspect([NODE], timeout=ANSWER, limit=1)
        answers = getattr(inspect, state)() or {}
        return list(answers.get(NODE, [{"id": None}]))


def _exists(pid: int) -> bool:
    """Return whether a process is alive: a dead one is a zombie until the pool looks after it (5 s)."""
    if sys.platform == "linux":
        try:
            state = (
                Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2]
            )
        except (FileNotFoundError, ProcessLookupError):
            return False
    else:
        command = ["ps", "-o", "stat=", "-p", str(pid)]
        state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and state.strip()[0] not in "ZX"

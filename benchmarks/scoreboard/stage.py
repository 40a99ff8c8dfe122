"""A scenario's surroundings: its workers and beats, the facts about them, and nothing left afterwards."""

import itertools
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from benchmarks.scoreboard.beat import GO, LOADED, TICKING, BeatProcess
from benchmarks.scoreboard.judging import Body, Outcome
from benchmarks.scoreboard.worker import CONCURRENCY, READY, WorkerProcess

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
        verbose: show the logs of workers and beats.
        clock: reads the time and lets it pass.
    """

    def __init__(self, *, quick: bool = False, verbose: bool = False, clock: Clock = time) -> None:
        self._quick = quick
        self._clock = clock
        self._verbose = verbose
        self._workers: list[WorkerProcess] = []
        self._numbers = itertools.count(1)
        self._beats: list[BeatProcess] = []

    @cached_property
    def shop(self) -> ModuleType:
        """The tasks; imported once the plan is made."""
        from benchmarks.scoreboard import shop

        return shop

    @cached_property
    def directory(self) -> Path:
        """Where the beats keep their schedules; removed at the end."""
        return Path(tempfile.mkdtemp(prefix="scoreboard-"))

    def start_worker(self) -> None:
        """Start a worker; it starts while the publisher imports its tasks."""
        node = f"scoreboard{next(self._numbers)}@localhost"
        self._workers.append(WorkerProcess(node, verbose=self._verbose))

    def kill_worker(self) -> None:
        """Kill the worker that was started first, with its pool (SIGKILL); return when it is gone."""
        self._workers.pop(0).end()

    def wait_ready(self) -> None:
        """Return when the workers take messages.

        Raises:
            RuntimeError: one ended, or does not.
        """

        def are_ready() -> bool:
            return all(self.shop.journal.is_noted(READY + worker.node) for worker in self._workers)

        def have_ended() -> bool:
            return not all(worker.is_running for worker in self._workers)

        self.until(lambda: are_ready() or have_ended(), STARTING)
        if not are_ready() or have_ended():
            raise RuntimeError("a worker did not start; --verbose shows its log")

    def load_beat(self, schedule: str, name: str, *, entries: int = 1) -> BeatProcess:
        """Start a beat that has all it needs and waits to be let go; return when it does.

        Args:
            schedule: of its entries, which run ``periodic``.
            name: of its schedule file: whoever comes later under this name finds what is in it.
            entries: how many.

        Raises:
            NeverCameError: it did not start.
        """
        file = self.directory / name
        beat = BeatProcess(len(self._beats), schedule, entries, file, verbose=self._verbose)
        self._beats.append(beat)
        self.must(lambda: self.shop.journal.is_noted(LOADED + beat.number), "beat never started")
        return beat

    def let_go(self, beat: BeatProcess) -> None:
        """Let a beat make its entries; return when it ticks.

        Raises:
            NeverCameError: it never does.
        """
        self.shop.journal.note(GO + beat.number)
        self.must(lambda: self.shop.journal.is_noted(TICKING + beat.number), "beat never ticked")

    def close(self) -> None:
        """End the beats and the workers."""
        for beat in self._beats:
            beat.end()
        for worker in self._workers:
            worker.end()
        if self._beats:
            shutil.rmtree(self.directory, ignore_errors=True)

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
        """Return whether a worker has a message that waits for a free place in its pool."""
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
        """Revoke a task; return when the workers have heard of it."""
        answers = self.shop.app.control.revoke(
            result.id, terminate=terminate, destination=self._nodes, reply=True, timeout=ANSWER
        )
        assert len(answers) == len(self._nodes), "a worker heard of no revocation"

    def wait_for(self, moment: float) -> None:
        """Return at a moment of the clock by which bodies note when they begin."""
        while (left := moment - self._clock.monotonic()) > 0:
            self._clock.sleep(left)

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
        """Return the workers' requests in a state; one that does not answer has its hands full."""
        nodes = self._nodes
        inspect = self.shop.app.control.inspect(nodes, timeout=ANSWER, limit=len(nodes))
        answers = getattr(inspect, state)() or {}
        return [request for node in nodes for request in answers.get(node, [{"id": None}])]

    @property
    def _nodes(self) -> list[str]:
        return [worker.node for worker in self._workers]


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

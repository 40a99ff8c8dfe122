"""What stands around the locks, and is asked seldom: workers, queues, beats, operators, the set-up."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from celery_redislock.exceptions import RedisLockError
from celery_redislock.operating.doctor import findings
from celery_redislock.operating.schedule import Schedule, is_overdue, told_of_state
from celery_redislock.operating.server import LockServer, Trouble
from celery_redislock.receiving.whereabouts import Idle, idle_queues, within
from celery_redislock.store.store import short
from celery_redislock.web.markup import skips_by_others

#: Seconds between two questions, by what is asked; and within which it must be answered.
EVERY = {"tasks": float("inf"), "workers": 30.0, "schedule": 30.0, "operators": 30.0, "set-up": 300.0}
DEADLINE = 20.0


class Around:
    """What was answered last, and what could not be asked. One question at a time, in a thread of its own.

    Attributes:
        workers: by name, the queues that they consume.
        queues: those that nobody consumes, and that have messages.
        entries: of the schedule; ``acts``: of operators, the last one last; ``findings``: of the check.
        troubles: why something could not be asked, by what.
        asked: what has been answered once, or could not be asked; ``answered``: without the latter.
    """

    def __init__(self, server: LockServer) -> None:
        """Of the app of this server; asks nothing yet."""
        self._server = server
        self._asked_at: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._unanswered: set[str] = set()
        self.workers: Mapping[str, frozenset[str]] = {}
        self.queues: Sequence[Idle] = ()
        self.entries: Sequence[Mapping[str, Any]] = ()
        self.acts: Sequence[Mapping[str, Any]] = ()
        self.findings: Sequence[tuple[str, str]] = ()
        self.troubles: Mapping[str, str] = {}
        self.asked: set[str] = set()

    @property
    def has_no_worker(self) -> bool:
        """Whether the app's workers were asked, and none has answered."""
        return "workers" in self.answered and self._server.app is not None and not self.workers

    @property
    def answered(self) -> set[str]:
        """What was answered when it was asked last."""
        return self.asked.difference(self.troubles)

    @property
    def beats(self) -> Sequence[str]:
        """The beats that have sent what is not overdue."""
        return sorted({row["beat"] for row in self.entries if row["beat"] and not row["overdue"]})

    def age(self, what: str) -> float | None:
        """Return how many seconds ago this was asked; ``None``: never."""
        return time.monotonic() - self._asked_at[what] if what in self._asked_at else None

    def ask(self) -> None:
        """Ask what is due, and return at once."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._ask, name="redislock-page-around", daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        questions: dict[str, Callable[[], object]] = {
            "tasks": self._server.tasks,  # whose modules are imported once
            "operators": self._ask_operators,
            "schedule": self._ask_schedule,
            "workers": self._ask_workers,
            "set-up": self._check,
        }
        for what, question in questions.items():
            is_early = time.monotonic() - self._asked_at.get(what, -EVERY[what]) < EVERY[what]
            # On a broker that never answers the threads of its questions would pile up.
            if is_early or what in self._unanswered:
                continue
            self._asked_at[what] = time.monotonic()
            # Each is another object: a page is made of the one before meanwhile.
            troubles = {name: why for name, why in self.troubles.items() if name != what}
            try:
                within(DEADLINE, partial(self._answer, what, question))
            except (RedisLockError, Trouble) as error:
                troubles[what] = str(error)
            except Exception as error:  # noqa: BLE001  of any transport and scheduler
                troubles[what] = f"{type(error).__name__}: {error}"
            self.troubles = troubles
            self.asked = {*self.asked, what}

    def _answer(self, what: str, question: Callable[[], object]) -> None:
        self._unanswered.add(what)
        try:
            question()
        finally:
            self._unanswered.discard(what)

    def _ask_operators(self) -> None:
        self.acts = self._server.store.acts()

    def _ask_schedule(self) -> None:
        if self._server.app is not None:
            entries = Schedule(self._server).rows()
            for skip in skips_by_others(entries):
                skip["task_id"] = short(skip["task_id"])
            self.entries = as_now(entries)

    def _ask_workers(self) -> None:
        app = self._server.app
        if app is None:
            return
        if not app.conf.worker_enable_remote_control:
            raise Trouble("workers cannot be asked (worker_enable_remote_control is off)")
        answers = app.control.inspect(timeout=1.0).active_queues() or {}
        self.workers = {
            name: frozenset(str(queue.get("name")) for queue in queues or ())
            for name, queues in answers.items()
        }
        self.queues = idle_queues(app, frozenset().union(*self.workers.values()))

    def _check(self) -> None:
        self.findings = [*findings(self._server)]


def as_now(entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return entries with what can be told of them now: in half a minute each of them was due long ago."""
    return [{**row, "overdue": is_overdue(row), "told": told_of_state(row)} for row in entries]

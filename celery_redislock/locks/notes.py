"""What is added up in this process before the lock server is told: starts of runs, and refusals of one key.

A thread writes it a second later; an end of the process writes it at once. A process that is killed loses a
second. Everything else is counted by the scripts that carry it out: a start is the most frequent of all, and
a key that has refused one call mostly refuses many.
"""

import atexit
import os
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import Finalize, register_after_fork
from typing import Any, Protocol

from celery_redislock.exceptions import RedisLockError
from celery_redislock.log import logger
from celery_redislock.store.store import Hold, LockStore
from celery_redislock.wire.thread import original, start_thread, tell

#: Seconds between two writes, and for how long a key's refusals are added up.
PAUSE = 1.0

#: Keys whose refusals are added up. Those of others are noted one by one, by the scripts that refuse.
MOST_KEYS = 1000


class Term(Protocol):
    """A :class:`TaskLock`, as far as it is needed here."""

    @property
    def store(self) -> LockStore:
        """Where it is kept."""

    @property
    def key(self) -> str:
        """The lock's name."""

    @property
    def task(self) -> str:
        """The task's name."""

    def facts(self, state: str) -> str:
        """Describe the holder."""


class Refusals:
    """The refusals of a key that the server has not been told of.

    Attributes:
        times: how many there are.
        last: of the last one the lock, the state and token of the claim that was refused, and who refused it.
    """

    __slots__ = ("last", "times")

    def __init__(self) -> None:
        """Know of none yet."""
        self.times = 0
        self.last: tuple[Term, str, str, Hold]


class Notes:
    """What one process has not written yet. Any thread may call its methods, of which one alone sends.

    Attributes:
        start: counts that a run has taken a lock, a :class:`Term`.
    """

    def __init__(self) -> None:
        """Know of nothing; a forked child begins so, too."""
        self._started: deque[Term] = deque()
        self._refused: dict[tuple[str, str], Refusals] = {}
        self._has_thread = False
        self.start: Callable[[Term], None] = self._start_first

    def refusals(self, lock: Term) -> Refusals | None:
        """Return where to count one of this key; ``None`` where the script that refuses is to note it."""
        return self._refused.get((lock.key, lock.task))

    def begin(self, lock: Term) -> None:
        """Add up the refusals of this key from now on: one has just been noted."""
        if len(self._refused) < MOST_KEYS:
            self._refused.setdefault((lock.key, lock.task), Refusals())
            self._run_thread()

    def write(self) -> None:
        """Tell the servers; when one of them does not answer, what is left of this second is lost."""
        starts: Counter[tuple[LockStore, str]] = Counter()
        keys = {}
        with suppress(IndexError):  # it is empty
            while True:
                lock = self._started.popleft()
                starts[lock.store, lock.task] += 1
                keys[lock.store, lock.task] = lock.key.partition(" ")[0]  # of several resources
        refused = []
        for which, refusals in list(self._refused.items()):
            if refusals.times:
                refused.append((refusals.times, *refusals.last))
                refusals.times = 0
            else:
                self._refused.pop(which, None)
        with suppress(RedisLockError):
            for (store, task), times in starts.items():
                store.happened(keys[store, task], task=task, what="started", times=times)
            for times, lock, state, token, holder in refused:
                value = f"{token}\0{lock.facts(state)}"
                of: Any = {"task": lock.task, "value": value, "holder": holder.token}
                lock.store.happened(lock.key, times=times, **of)

    def _start_first(self, lock: Term) -> None:
        self._started.append(lock)
        self._run_thread()
        self.start = self._started.append

    def _run_thread(self) -> None:
        if not self._has_thread:
            self._has_thread = True
            start_thread(self._run, "redislock-notes")

    def _run(self) -> None:
        sleep = original("time", "sleep")  # native with gevent
        while True:
            sleep(PAUSE)
            try:
                self.write()
            except Exception as error:  # noqa: BLE001  the next second is counted all the same
                tell(logger.error, "could not write what happened to tasks", exc_info=error)


#: Those of this process.
NOTES = Notes()

atexit.register(NOTES.write)
# A process of multiprocessing ends without these, and forgets its parent's finalizers when it begins.
Finalize(None, NOTES.write, exitpriority=0)
register_after_fork(NOTES, lambda notes: Finalize(None, notes.write, exitpriority=0))

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=NOTES.__init__)  # type: ignore[misc]

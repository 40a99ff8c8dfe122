"""Looking at a task's state and then at its lock, again and again, while an ending happens."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from celery import states

from celery_redislock.publishing.handle import Holder
from tests.acceptance.harness import Project

#: Seconds between two looks.
APART = 0.01


class Glance(NamedTuple):
    """What was seen at one time."""

    asked: float  # ``time.monotonic()`` before anything was asked for
    when: float  # the same once it was seen
    state: str
    holder: Holder | None  # of the lock, or of the queued claim beside it, asked for after the state


class Watch:
    """Looks until it is told to stop, in a thread of its own.

    The state is read first: whoever has seen a result must find the lock free
    in the next look, not in the one before.
    """

    def __init__(self, project: Project, key: str, task_id: str) -> None:
        """Begin to look at a lock and a task id."""
        self.glances: list[Glance] = []
        # Of the scope that has two locks, as it answers for either; the key is the same in all scopes.
        lock = project.until_and_while.lock_for(key)
        # Evaluated in this order.
        self._look: Callable[[], Glance] = lambda: Glance(
            asked=time.monotonic(),
            state=project.app.backend.get_task_meta(task_id, cache=False)["status"],
            holder=lock.holder(),
            when=time.monotonic(),
        )
        self._task_id = task_id
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.glances.append(self._look())
        self._thread.start()

    @property
    def last(self) -> Glance:
        """The newest look."""
        return self.glances[-1]

    def is_ours(self, glance: Glance) -> bool:
        """Whether the task itself held the lock then."""
        return glance.holder is not None and glance.holder.owner == self._task_id

    def first_free(self, since: float) -> float | None:
        """Return when the task was first seen without the lock from some time on."""
        return next((one.when for one in self.glances if one.when >= since and not self.is_ours(one)), None)

    def first_with(self, state: str) -> Glance | None:
        """Return the first look that saw a state from which there is no way back."""
        if state not in states.READY_STATES:
            return None
        return next((one for one in self.glances if one.state == state), None)

    def held_before(self, when: float) -> Glance | None:
        """Return the last look before some time that saw the task hold the lock."""
        held = [one for one in self.glances if one.when < when and self.is_ours(one)]
        return held[-1] if held else None

    def gaps(self, since: float, until: float) -> Iterator[Glance]:
        """Return the looks in some time, from question to answer, that saw the task without the lock."""
        return (
            one for one in self.glances if since < one.asked and one.when < until and not self.is_ours(one)
        )

    def stop(self) -> None:
        """Look no more; returns when the last look is over. Idempotent."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(APART):
            self.glances.append(self._look())

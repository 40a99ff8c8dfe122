"""Threads of a small world that wait for a lock; they do what ``locks/attempt.py`` does."""

from collections.abc import Iterator
from typing import Any

from celery_redislock.store.store import NOBODY, Entry, Grant
from tools.explore.clients import Clients
from tools.explore.world import LEASE, LOOK, Copy, Run, State, Step


class Waiters(Clients):
    """Each call of the world is a thread, that takes its lock, or waits for it, and then releases it."""

    def _possible(self, state: State) -> Iterator[Step]:
        """Yield what may happen next. A thread that asks for nothing any more is one that stands still."""
        for number, job in enumerate(state.jobs):
            if job.stage == "new" and not self._has_equal_before(state, number):
                self.load(state)
                yield Step(f"thread {number} asks for its lock", self._take(state, number))
            elif job.stage == "waits":
                yield from self._wait(state, number)
        for run in state.runs:
            yield from self._hold(state, run)
        if state.store.lines:
            yield self._sweep(state)
        yield from self._time(state)

    def _take(self, state: State, number: int, **more: Any) -> State:
        """Return the state after a request for its lock."""
        token = f"{number}/c"
        name = self.world.names[number]
        answer = self.ask("acquire", name, token, LEASE, facts=_FACTS, limit=self.world.limit, **more)
        if not isinstance(answer, Grant):
            return self._after_call(state, number, "waits")
        run = Run(Copy(token), token, "body", LEASE)
        return self._after_call(state, number, "holds", runs=tuple(sorted((*state.runs, run))))

    def _wait(self, state: State, number: int) -> Iterator[Step]:
        token = f"{number}/c"
        names = self.world.names[number]
        self.load(state)
        if all(token in self.store._holders_of(name) for name in names.split()):
            yield Step(
                f"thread {number} takes what it was handed", self._take(state, number, starts_run=True)
            )
            return
        bell = f"{self.world.name}:bell:{number}"
        self.ask("park", names, token, Entry("ring", bell, LEASE, _FACTS, "1"), nonce="", within=LOOK)
        yield Step(f"thread {number} stands in line", self.after(state))
        self.load(state)
        self.ask("release", names, NOBODY)
        yield Step(f"thread {number} asks who holds it", self.after(state))

    def _hold(self, state: State, run: Run) -> Iterator[Step]:
        number = run.copy.job
        others = tuple(each for each in state.runs if each != run)
        self.load(state)
        self.ask("release", self.world.names[number], run.token)
        yield Step(f"thread {number} releases it", self._after_call(state, number, "over", runs=others))


#: Of a hold.
_FACTS = '{"state":"hold","since":0}'

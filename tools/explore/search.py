"""Every state of a world, breadth first, and the shortest story to one that breaks a law."""

import time
from collections import deque
from typing import Any, NamedTuple

from celery_redislock.store.memory import MemoryStore
from tools.explore.acts import MOVES
from tools.explore.clients import Clients
from tools.explore.frozen import ends
from tools.explore.laws import broken_by, passed_over
from tools.explore.waiters import Waiters
from tools.explore.world import LEASE, State, Step, World

#: Steps within which a fair schedule comes to an end, or goes in circles.
MOST_STEPS = 300


class Found(NamedTuple):
    """What was explored.

    Attributes:
        world: which one; ``states`` and ``steps``: how many; ``depth``: steps to the farthest.
        seconds: that it took. ``broken``: the law that is broken, '' for none; ``story``: the steps to it.
        longest: model seconds until all accepted calls had ended from a state, at most.
        seen: of each state the one before it, and what happened then.
    """

    world: World
    states: int
    steps: int
    depth: int
    seconds: float
    broken: str
    story: list[str]
    longest: float
    seen: dict[State, tuple[State, str] | None]


class _BrokenError(Exception):
    """A state, or what follows it, breaks a law."""

    def __init__(self, broken: str, state: State, *more: str) -> None:
        super().__init__(broken)
        self.state = state
        self.more = more


def explore(world: World, kind: type[MemoryStore] = MemoryStore, *, most: int = 2_000_000) -> Found:
    """Take every step from every state of a world, on stores of this kind.

    Raises:
        RuntimeError: there are more states than ``most``.
    """
    began = time.perf_counter()
    search = _Search(world, kind, most)
    broken = ""
    story: list[str] = []
    try:
        search.run()
    except _BrokenError as error:
        broken = str(error)
        story = [*told_to(search.seen, error.state), *error.more]
    seconds = time.perf_counter() - began
    states = len(search.seen)
    longest = search.fair.longest
    return Found(world, states, search.steps, search.depth, seconds, broken, story, longest, search.seen)


def told_to(seen: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    """Return what happens on the shortest way to a state."""
    story = []
    while (before := seen[state]) is not None:
        state, told = before
        story.append(told)
    return story[::-1]


def clients_of(world: World, kind: type[MemoryStore] = MemoryStore) -> Clients:
    """Return the clients of a world, of a store of this kind."""
    return (Waiters if world.blocks else Clients)(world, kind)


class _Search:
    """A search, breadth first."""

    def __init__(self, world: World, kind: type[MemoryStore], most: int) -> None:
        self._world = world
        self._most = most
        self._clients = clients_of(world, kind)
        # With clients of its own: steps are taken while those of another state are not all told yet.
        self.fair = _Fair(clients_of(world, kind))
        self.seen: dict[State, tuple[State, str] | None] = {self._clients.begin(): None}
        self.steps = 0
        self.depth = 0

    def run(self) -> None:
        """Look at all states, or raise."""
        todo = deque((state, 0) for state in self.seen)
        same: dict[Any, Any] = {}
        while todo:
            state, self.depth = todo.popleft()
            for step in self._clients.steps(state):
                self.steps += 1
                is_moved = step.told.startswith(MOVES)
                if why := step.broken or (not is_moved and passed_over(state, step.state)):
                    raise _BrokenError(why, state, step.told)
                if step.state not in self.seen:
                    # Equal parts are kept once.
                    after = State(*(same.setdefault(part, part) for part in step.state))
                    self.seen[after] = state, step.told
                    self._look_at(after)
                    todo.append((after, self.depth + 1))

    def _look_at(self, state: State) -> None:
        if len(self.seen) > self._most:
            raise RuntimeError(f"{self._world.name} has more than {self._most} states")
        if why := broken_by(self._world, state):
            raise _BrokenError(why, state)
        self.fair.check(state)


class _Fair:
    """Two schedules without faults: clients first; and a lease that passes before they do anything."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._left: dict[State, float] = {}
        self._known: set[State] = set()
        self.longest = 0.0

    def check(self, state: State) -> None:
        """Let all accepted calls of a state end in time, or raise."""
        if any(job.stage == "dead" for job in state.jobs):
            return  # the claim of a publisher that died lasts as long as that of a queued call
        stages = {"new": "never"}
        jobs = tuple(job._replace(stage=stages.get(job.stage, job.stage)) for job in state.jobs)
        quiet = state._replace(jobs=jobs, losses=0, kills=0, ticks=0, acts=0)
        if quiet in self._known:
            return
        self._known.add(quiet)
        self._end(quiet, state)
        self._end(self._lease_passes(quiet), state)

    def _end(self, quiet: State, of: State) -> None:
        """Let clients do all they can, and then time pass, until all calls have ended."""
        path: list[tuple[State, float]] = []
        told: list[str] = []
        while quiet not in self._left and _is_live(quiet):
            step, seconds = self._next(quiet)
            if step is None or len(path) > MOST_STEPS:
                raise _BrokenError("law 2: an accepted call never ends", of, *told[:20], "and so on")
            path.append((quiet, seconds))
            told.append(step.told)
            quiet = step.state
            if why := step.broken or broken_by(self._clients.world, quiet):
                raise _BrokenError(why, of, *told)
        left = self._left.get(quiet, 0.0)
        for state, seconds in reversed(path):
            left += seconds
            self._left[state] = left
        self.longest = max(self.longest, left)
        if left > self._clients.world.bound:
            raise _BrokenError(f"law 2: an accepted call ends after {left:g} s", of, *told)

    def _next(self, state: State) -> tuple[Step | None, float]:
        clients = self._clients
        for step in clients.steps(state):
            is_idle = step.state == state or " renews " in step.told or " its retry " in step.told
            if not (step.is_fault or is_idle):
                return step, 0.0
        found = ends(state.store)
        if not found:
            return None, 0.0
        return clients.wait(state, min(found)), min(found)

    def _lease_passes(self, state: State) -> State:
        passed = 0.0
        while passed < LEASE:
            state = self._clients.look(state)
            seconds = min([LEASE - passed, *ends(state.store)])
            state = self._clients.wait(state, seconds).state
            passed = round(passed + seconds, 3)
        return state


def _is_live(state: State) -> bool:
    return any(job.stage in {"live", "asked"} for job in state.jobs)

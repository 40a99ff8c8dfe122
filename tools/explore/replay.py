"""What is explored in memory, played on a server: the same requests, and the scripts as they are.

The shortest way to each state of a world is played, request by request. The answers are compared, and what
both keep then. A server's keys are taken out after each step, and put back (``DUMP``, ``RESTORE``) where
another way goes on from there: what two ways have in common is played once.
"""

import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from tools.explore.acts import MOVES
from tools.explore.clients import TIME, Asked
from tools.explore.kept import compared, kept_by_server, kept_in_memory
from tools.explore.laws import broken_by, passed_over
from tools.explore.search import Found, clients_of
from tools.explore.server import Key, Server, later
from tools.explore.world import Copy, State, Step, World

#: Seconds of the server's clock at which the model's begins.
BEGIN = 1_800_000_000

#: A server that stood still lets keys end sooner than the model does: what differs is played so often.
ATTEMPTS = 3

#: Steps of one kind that are played although they lead to no new state.
SOME = 20


class Difference(NamedTuple):
    """What a server says or keeps, and what the store in memory does, at the end of this story."""

    story: list[str]
    what: str
    server: Any
    memory: Any


class Replayed(NamedTuple):
    """What was played: states, requests, seconds, and what differs."""

    states: int
    requests: int
    seconds: float
    different: list[Difference]


def replay(found: Found, server: Server, *, most: int = 0) -> Replayed:
    """Play the shortest way to each state of a world that was explored.

    Steps to a state that is reached otherwise are played as well, some of each kind.

    *most*: differences after which it ends; 0: none.
    """
    began = time.perf_counter()
    world = found.world
    seen = found.seen
    after: defaultdict[State, list[Step]] = defaultdict(list)
    for state, before in seen.items():
        if before is not None:
            after[before[0]].append(Step(before[1], state))
    player = _Player(world, server)
    todo: list[tuple[State, _Played, list[str]]] = [(next(iter(seen)), _Played(), [])]
    while todo and not 0 < most <= len(player.different):
        state, played, story = todo.pop()
        left = after.pop(state, [])
        for asked in player.steps(state):
            step = asked.step._replace(broken="", is_fault=False)
            is_first = step in left
            if not is_first and not player.is_rare(asked):
                continue
            then = [*story, step.told]
            now = player.play(state, asked, played, then)
            if is_first:
                left.remove(step)
                todo += [] if now is None else [(step.state, now, then)]
    return Replayed(len(seen), player.requests, time.perf_counter() - began, player.different)


def wander(world: World, server: Server, *, seed: str, ways: int, steps: int) -> Replayed:
    """Play so many ways of so many steps at the most, each step drawn from those that are possible.

    The world may be too large to be explored. A way ends where it differs, or breaks a law.
    """
    began = time.perf_counter()
    player = _Player(world, server, looks_at_all=True)
    states = 0
    for number in range(ways):
        chance = random.Random(f"{seed} {world.name} {number}")  # noqa: S311  not for secrets
        state = clients_of(world).begin()
        played: _Played | None = _Played()
        story: list[str] = []
        while played is not None and len(story) < steps:
            # What is lost on its way is sent again by a server sooner than in memory.
            possible = [each for each in player.steps(state) if " is lost " not in each.step.told]
            if not possible:
                break
            drawn = chance.choice(possible)
            story.append(drawn.step.told)
            played = player.play(state, drawn, played, [*story])
            law = drawn.step.broken or broken_by(world, drawn.step.state)
            if not drawn.step.told.startswith(MOVES):
                law = law or passed_over(state, drawn.step.state)
            if law:
                player.different.append(Difference(story, law, "", ""))
                break
            state = drawn.step.state
            states += 1
    return Replayed(states, player.requests, time.perf_counter() - began, player.different)


class _Played(NamedTuple):
    """What was played: the server's keys then, the model's time in us, and when which call was made."""

    keys: tuple[Key, ...] = ()
    now: int = BEGIN * 1_000_000
    numbers: tuple[tuple[int, int], ...] = ()


class _Asking(NamedTuple):
    """A step, what it asks for, and the messages that the store pushes then."""

    step: Step
    asked: list[Asked]
    pushed: list[str]


class _Player:
    """Plays steps, and compares."""

    def __init__(self, world: World, server: Server, *, looks_at_all: bool = False) -> None:
        self.different: list[Difference] = []
        self.requests = 0
        self._times: Counter[Any] = Counter()
        self._clients = clients_of(world)
        self._clients.looks_at_all = looks_at_all
        self._server = server
        server.live_beside(world.homes)

    def steps(self, state: State) -> Iterator[_Asking]:
        """Yield each step from a state, and what it asks for."""
        for step in self._clients.steps(state):
            pushed = self._clients.store.queues.get("q", ())
            yield _Asking(step, list(self._clients.asked), [Copy.loads(text).token for text in pushed])

    def is_rare(self, asking: _Asking) -> bool:
        """Whether few steps of this kind, with these answers, were to be played before."""
        told = re.sub(r"[0-9]", "", asking.step.told)
        answers = [re.sub(r"[0-9]", "", str(compared(each.answer))) for each in asking.asked]
        kind = told, *answers
        self._times[kind] += 1
        return self._times[kind] <= SOME

    def play(self, before: State, asking: _Asking, played: _Played, story: list[str]) -> _Played | None:
        """Play a step; return what is there then, or ``None`` where it differs."""
        different: Difference | None = None
        for _ in range(ATTEMPTS):
            now, different = self._play(before, asking, played, story)
            if different is None:
                return now
        if different is not None:
            self.different.append(different)
        return None

    def _play(
        self, before: State, asking: _Asking, played: _Played, story: list[str]
    ) -> tuple[_Played, Difference | None]:
        after = asking.step.state
        keys, now, numbers = played
        known = dict(numbers)
        called = 2 * sum(job.stage != "new" for job in after.jobs)
        known.setdefault(called, now + called)
        self._server.put(keys, before)
        for each in asking.asked:
            if each.verb == TIME:
                now += round(each.rest[0] * 1_000_000)
                self._server.put(later(self._server.take(), round(each.rest[0] * 1000)), before)
                continue
            self.requests += 1
            if each.verb == "sweep" and self._clients.looks_at_all:
                self._server.look_at_all()
            at = now + each.called
            answer = self._server.ask(each, at, known)
            said = compared(answer)
            expected = compared(each.answer)
            if said != expected:
                return played, Difference(story, each.verb, said, expected)
        found = self._server.take()
        kept = kept_by_server(found, now / 1_000_000)
        expected = kept_in_memory(after)
        expected["queue"] = sorted([*(copy.token for copy in before.queue), *asking.pushed])
        for part, value in kept.items():
            if value != expected[part]:
                return played, Difference(story, part, value, expected[part])
        return _Played(tuple(found), now, tuple(known.items())), None

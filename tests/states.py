"""The shared states of a schedule in memory, on a clock of the test's own: what the scripts do, in Python."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.scheduling.state import Answer, State, States


def state_of(text: str) -> State:
    """Read what must be a state."""
    state = State.read(text)
    assert state is not None
    return state


class MemoryStates(States):
    """Stands in for :class:`States`; the beats of a test share one. Counts what is asked.

    Attributes:
        texts: the states by entry; paused: the entries that are.
        asked: the requests so far, by their names.
        before_take: called before a tick is asked for.
        is_away: no request is answered; is_full: no tick is taken, for lack of memory, but reads are.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.texts: dict[str, str] = {}
        self.paused: set[str] = set()
        self.asked: list[str] = []
        self.is_away = self.is_full = False
        self.before_take: Callable[[], None] = lambda: None
        self.server, self.app = "memory", "shop"

    def _count(self, what: str) -> None:
        self.asked.append(what)
        if self.is_away:
            raise LockUnavailable(self.server, what, "away")

    def take(self, entry: str, known: str, about: dict[str, Any], *, bound: float, next_in: float) -> Answer:
        self.before_take()
        self._count("take")
        if self.is_full:
            raise LockUnavailable(self.server, "take", "no memory")
        assert next_in >= 0
        said = json.dumps({"v": 1, "entry": entry, **about}, separators=(",", ":"))
        now, found = round(self._clock(), 3), self.texts.get(entry, "")
        until, _, rest = found.partition(" ")
        if rest.partition(" ")[2] == said:
            return Answer("taken" if until != "0" else "paused", found, now)
        is_sending = until.isdigit() and 0 < int(until) - now * 1000 <= 60_000
        if is_sending or found != known:
            return Answer("sending" if is_sending else "refused", found, now)
        is_paused = entry in self.paused
        until = "0" if is_paused else str(round((now + bound) * 1000))
        self.texts[entry] = f"{until} {round(now * 1000)} {said}"
        return Answer("paused" if is_paused else "taken", self.texts[entry], now)

    def replace(self, entry: str, mine: str, following: str, next_in: float) -> bool:  # noqa: ARG002  nothing expires
        self._count("replace")
        if self.texts.get(entry, "") not in {mine, following}:
            return False
        self.texts[entry] = following
        return True

    def read(self, entries: Sequence[str], what: str = "beat") -> tuple[float, list[str]]:  # noqa: ARG002  same
        self._count("read")
        return self._clock(), [self.texts.get(entry, "") for entry in entries]

    def write_nothing(self) -> None:
        self._count("probe")
        if self.is_full:
            raise LockUnavailable(self.server, "probe", "no memory")

    def state(self, entry: str) -> State:
        """What is there of an entry, which must be a state."""
        return state_of(self.texts[entry])

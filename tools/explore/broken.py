"""Stores that are broken on purpose: exploring finds each, or what it finds nowhere is not worth much."""

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from celery_redislock.store.memory import MemoryStore, _Place
from celery_redislock.store.store import Entry, Grant, Parked, Release
from tools.explore.frozen import BEFORE
from tools.explore.world import QUEUED_FOR


class ReleasesAnybody(MemoryStore):
    """A release compares no token."""

    def release(self, name: str, token: str, **how: Any) -> Release:
        for each in [*self._holders_of(name)]:
            super().release(name, each)
        return super().release(name, token, **how)


class RenewsAnybody(MemoryStore):
    """A renewal compares no token."""

    def _renew(self, name: str, token: str, until: float) -> bool | None:
        holders = self._holders_of(name)
        for each, held in holders.items():
            holders[each] = held._replace(until=until)
        return super()._renew(name, token, until)


class LooksAtNoMark(MemoryStore):
    """A start asks for no mark of its message."""

    def acquire(self, name: str, token: str, ttl: float, **terms: Any) -> Any:
        return super().acquire(name, token, ttl, **{**terms, "message": None})


class PassesTheLine(MemoryStore):
    """A free lock is given to whoever asks first, though others wait for it."""

    def _first_in_line(self, name: str) -> _Place | None:  # noqa: ARG002
        return None


class HasAPlaceMore(MemoryStore):
    """One more than may holds a lock."""

    def _room(self, name: str, limit: int | None) -> int:
        return super()._room(name, limit) + 1


class KeepsTheClaim(MemoryStore):
    """A run's lease stands beside the claim of its message."""

    def acquire(self, name: str, token: str, ttl: float, **terms: Any) -> Any:
        claim = self._holders_of(name).get(terms.get("instead_of") or "")
        answer = super().acquire(name, token, ttl, **terms)
        if claim is not None and isinstance(answer, Grant):
            self._holders[name][terms["instead_of"]] = claim
        return answer


class RepeatsAFence(MemoryStore):
    """A grant has the fence of the one before it."""

    def acquire(self, name: str, token: str, ttl: float, **terms: Any) -> Any:
        answer = super().acquire(name, token, ttl, **terms)
        return answer._replace(fence=BEFORE) if isinstance(answer, Grant) else answer


class IgnoresWhatIsDue(MemoryStore):
    """What waits for a time is handed its lock at once."""

    def _put(self, *place: Any) -> None:
        super()._put(*place)
        for line in self._lines.values():
            line[:] = [each._replace(due=0.0) for each in line]


class ForgetsToLook(MemoryStore):
    """A line is not noted for those who look."""

    def park(self, name: str, id: str, entry: Entry, **how: Any) -> Parked:  # noqa: A002
        answer = super().park(name, id, entry, **how)
        self._due.pop(name, None)
        return answer


class NeverExpires(MemoryStore):
    """A run that has waited holds its lock without an end."""

    def _keep(self, name: str, value: bytes, ttl: float, *rest: Any, **how: Any) -> bool:
        return super()._keep(name, value, inf if b'"line":1' in value else ttl, *rest, **how)


class HandsNothingOn(MemoryStore):
    """A retry is not given the lock of its run."""

    def hand_on(self, name: str, old: str, new: str, ttl: float, **how: Any) -> Release:  # noqa: ARG002
        return self.release(name, old, mark=how.get("mark"))


class LetsTheLastInFirst(MemoryStore):
    """Who comes to a line stands before all others."""

    def _put(self, name: str, new: _Place, *rest: Any) -> None:
        super()._put(name, new, *rest)
        self._lines[name].sort(key=lambda each: each.id != new.id)


class SendsOnce(MemoryStore):
    """What was handed its lock, and has lost it, is not put back in its line."""

    def _bring_back(self, name: str, only: str | None = None) -> None:
        pass


class CountsNoStarts(MemoryStore):
    """A rate lets everybody through."""

    def _closed(self, name: str, facts: str, but: str | None = None) -> float:  # noqa: ARG002
        return 0.0


class LooksAtNoPeriod(MemoryStore):
    """A period refuses nobody."""

    def acquire(self, name: str, token: str, ttl: float, **terms: Any) -> Any:
        return super().acquire(name, token, ttl, **{**terms, "period": None})


class HandsOffForAsLongAsAClaim(MemoryStore):
    """A message that is lost on its way from the line keeps its key for as long as one that is queued."""

    def park(self, name: str, id: str, entry: Entry, **how: Any) -> Parked:  # noqa: A002
        return super().park(name, id, entry._replace(ttl=QUEUED_FOR), **how)


class MarksTheNewestDone(MemoryStore):
    """A call whose place others may take is marked as done when it is parked."""

    def _let_merge(self, name: str, new: _Place, merge: Any) -> _Place:
        new = super()._let_merge(name, new, merge)
        self._marks[name, new.id] = (b"done", inf)
        return new


class KnowsOneSpelling(MemoryStore):
    """A process publishes nothing that was parked under another spelling of its broker."""

    def _is_home(self, to: str, home: str | None = None) -> bool:
        return to == (self.home if home is None else home).partition("\n")[0]


#: Each, and the world in which it is looked for.
BROKEN: Mapping[type[MemoryStore], str] = {
    ReleasesAnybody: "claim",
    RenewsAnybody: "claim",
    LooksAtNoMark: "redelivery",
    PassesTheLine: "line, one kill",
    HasAPlaceMore: "limit of two, three calls",
    KeepsTheClaim: "line, one kill",
    RepeatsAFence: "claim",
    IgnoresWhatIsDue: "debounce",
    ForgetsToLook: "line, one kill",
    NeverExpires: "line, one kill",
    HandsNothingOn: "retry",
    LetsTheLastInFirst: "order of three calls",
    SendsOnce: "line, one kill",
    CountsNoStarts: "rate",
    LooksAtNoPeriod: "period",
    HandsOffForAsLongAsAClaim: "line, one kill",
    MarksTheNewestDone: "coalesce",
    KnowsOneSpelling: "beside another broker, one kill",
}


class BrokenScript(NamedTuple):
    """A text of a script, what stands there instead, and the world in which a server differs then."""

    told: str
    text: str
    instead: str
    world: str


#: Scripts that are broken on purpose.
BROKEN_SCRIPTS = (
    BrokenScript(
        "A release compares no token", "local ours = belongs(held, token)", "local ours = held", "claim"
    ),
    BrokenScript(
        "A start asks for no mark of its message",
        "local state = mark and not ours and call('GET', mark)",
        "local state",
        "redelivery",
    ),
    BrokenScript(
        "A renewal compares no token",
        "string.sub(value, 1, #token + 1) ~= token .. '\\0'",
        "false",
        "claim",
    ),
    BrokenScript(
        "A thread that stands still leaves one of the lines in which it waits, not all",
        "would stand before those who go before it here.\n      take_out_of_all(stem, name, id, facts)",
        "would stand before those who go before it here.\n      take_out(stem, id)",
        "threads, two names",
    ),
    BrokenScript(
        "A copy that is refused several locks leaves some of the lines in which its message waits",
        "for at in pairs(word == 'refused' and kept or {}) do",
        "for at in pairs({}) do",
        "two names, one loss",
    ),
    BrokenScript(
        "A copy of one that is ending is told that it is done, where it is parked",
        "if named and call('GET', mark_of(stem, id)) == '1' then",
        "if named and call('EXISTS', mark_of(stem, id)) == 1 then",
        "coalesce",
    ),
    BrokenScript(
        "A period refuses nobody",
        "if accepted and not is_ours(accepted)",
        "if false and not is_ours(accepted)",
        "period",
    ),
)

"""The lock store in this process's memory: for tests, one process only."""

import math
import re
import threading
import time
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from celery_redislock.locks.clock import Clock, boottime
from celery_redislock.locks.store import (
    QUEUED,
    Entry,
    Grant,
    Hold,
    Limit,
    LockStore,
    Mark,
    Marked,
    Parked,
    Promotion,
    Refusal,
    Release,
    Renewal,
    Sweep,
    Term,
    Waiter,
    owner_of,
)

_Entry = tuple[bytes, float]

#: Seconds, as in ``lua/line.lua``: the longest time until a line is looked at again; until one is that only
#: another home can serve. And how long a request that parked is known, as on a server with its usual timeout.
_LATEST = 2.0
_AHEAD = 10.0
_OF_ANOTHER_HOME = 1.0
_NOTED = 15.0

_Ended = TypeVar("_Ended", Release, Parked, Sweep)


class _Place(NamedTuple):
    band: int
    id: str
    entry: Entry
    until: float


class _Woken(NamedTuple):
    """Who was handed a lock, and what the caller publishes for it."""

    id: str = ""
    promoted: tuple[Promotion, ...] = ()


_NOBODY = _Woken()


class MemoryStore(LockStore):
    """Keeps locks in a dictionary; the same verbs, answers and expiry as a server. Thread-safe.

    It excludes only within this process: a fork has its own. Its clock is the
    server's and this process's at once.

    Attributes:
        queues: what was pushed to queues and bells of this name, the first to be served on the right.
    """

    def __init__(self, *, clock: Clock = boottime, wall: Callable[[], float] = time.time) -> None:
        """Start empty; holds expire by ``clock``, fences are drawn from ``wall``, seconds since the epoch."""
        self._clock = clock
        self._wall = wall
        self._lock = threading.RLock()
        self._rung = threading.Condition(self._lock)
        self._locks: dict[str, _Entry] = {}
        self._permits: defaultdict[str, dict[str, _Entry]] = defaultdict(dict)
        self._limits: dict[str, _Entry] = {}
        self._periods: dict[str, _Entry] = {}
        self._marks: dict[tuple[str, str], _Entry] = {}
        self._lines: dict[str, list[_Place]] = {}
        self._due: dict[str, float] = {}
        self._notes: dict[str, _Entry] = {}
        self._fence = 0
        self.queues: defaultdict[str, deque[str]] = defaultdict(deque)

    @property
    def server(self) -> str:
        return "memory"

    def acquire(
        self,
        name: str,
        token: str,
        ttl: float,
        *,
        facts: str,
        instead_of: str | None = None,
        period: float | None = None,
        message: str | None = None,
        starts_run: bool = False,
        limit: int | None = None,
    ) -> Grant | Refusal | Marked:
        with self._lock:
            now = self._clock()
            permits = self._permits_of(name)
            by_one = self._live(self._locks, name)
            own = token if token in permits else instead_of or ""
            held = by_one or permits.get(own)
            repeated = held is not None and _belongs(held[0], token)
            taken_over = held is not None and not repeated and _belongs(held[0], instead_of)
            kept = repeated or taken_over
            mark = None if repeated else self._live(self._marks, (name, message or ""))
            if mark is not None:
                return Marked(mark[0] == b"done", mark[1] - now)
            copies = [] if kept else self._copies(name, token)
            if not kept and (copies or self._room(name, limit) <= 0):
                return Refusal(self._held_by(name, copies))
            value = f"{token}\0{facts}".encode()
            first = self._first_in_line(name) if held is None and (starts_run or limit) else None
            if first is not None:
                text = f'{first.id}\0{{"state":"queued","published":true}}'
                return Refusal((Hold(name, text.encode(), _OF_ANOTHER_HOME),))
            was_in_line = taken_over and held is not None and b'"line":1' in held[0]
            if not kept or was_in_line:
                accepted = self._live(self._periods, name) if period else None
                if accepted is not None and not _belongs(accepted[0], token, instead_of):
                    return Refusal((self._hold(name, accepted, is_period=True),))
                if period and accepted is None:
                    self._periods[name] = (value, now + period)
            if was_in_line:
                self._take_out(name, instead_of)
            self._keep(name, value, ttl, limit, instead_of=own if kept else None)
            self._fence = max(self._fence + 1, int(self._wall() * 1_000_000))
            several = permits and (len(permits) > 1 or self._limit(name, limit) > 1)
            fence = None if several else self._fence
            return Grant(fence, taken_over, now, self._clock(), repeated)

    def look(
        self, name: str, token: str, *, period: float | None = None, limit: int | None = None
    ) -> Refusal | None:
        with self._lock:
            if limit and (token in self._permits_of(name) or self._room(name, limit) > 0):
                accepted = self._live(self._periods, name)
                found = [] if accepted is None else [self._hold(name, accepted, is_period=True)]
                seen = tuple(found)
            else:
                seen = self.holders(name)
            if not seen or seen[0].token == token or (seen[0].is_period and not period):
                return None
            return Refusal(seen)

    def renew(self, terms: Sequence[Term], *, within: float | None = None) -> Renewal:  # noqa: ARG002
        with self._lock:
            now = self._clock()
            renewed: list[bool | None] = []
            for term in terms:
                permits = self._permits_of(term.name)
                held = self._live(self._locks, term.name) or permits.get(term.token)
                owned = held is not None and _belongs(held[0], term.token)
                if held is not None and term.token in permits:
                    permits[term.token] = (held[0], now + term.ttl)
                elif held is not None and owned:
                    self._locks[term.name] = (held[0], now + term.ttl)
                renewed.append(None if held is None else owned)
            return Renewal(renewed, now, self._clock())

    def release(
        self, name: str, token: str, *, opened_by: str | None = None, mark: Mark | None = None
    ) -> Release:
        with self._lock:
            self._leave(name, mark)
            accepted = self._live(self._periods, name)
            if accepted is not None and _belongs(accepted[0], opened_by):
                del self._periods[name]
            held = self._live(self._locks, name)
            if held is not None and not _belongs(held[0], token):
                return Release(released=False, held_by=self._hold(name, held, is_period=False))
            was_held = held is not None or token in self._permits_of(name)
            if self._drop(name, token):
                self._take_out(name, token)
            answer = Release(was_held, promoted=self._wake(name).promoted)
        return self._told(answer)

    def release_claims(self, owners: Collection[str]) -> Iterator[tuple[str, str]]:
        for name in {*self._locks, *self._permits}:
            for hold in self.holders(name):
                if hold.state != QUEUED or hold.is_period or hold.owner not in owners:
                    continue
                if self.release(name, hold.token, opened_by=hold.token).released:
                    yield name, hold.token

    def hand_on(
        self, name: str, old: str, new: str, ttl: float, *, facts: str, mark: Mark | None = None
    ) -> Release:
        with self._lock:
            permits = self._permits_of(name)
            held = permits.get(old) or permits.get(new) or self._live(self._locks, name)
            ours = held is not None and _belongs(held[0], old)
            if held is not None and not ours:
                self._leave(name, mark)
                if _belongs(held[0], new):
                    return Release(released=True)
                return Release(released=False, held_by=self._hold(name, held, is_period=False))
            woken = _NOBODY
            goes_on = ours and self._live(self._marks, (name, new)) is None
            self._leave(name, mark)
            if goes_on:
                self._keep(name, f"{new}\0{facts}".encode(), ttl, instead_of=old)
                if self._entry(name, new) is not None:
                    woken = self._wake(name, only=new)
            else:
                self._drop(name, old)
                woken = self._wake(name)
            answer = Release(ours, promoted=woken.promoted)
        return self._told(answer)

    def park(
        self, name: str, id: str, entry: Entry, *, nonce: str, how: str = "refused", band: int = 0,  # noqa: A002
        place: str = "last", most: int = 10_000, ahead: str = "",
        acknowledge: tuple[str, str, str] | None = None, within: float | None = None,  # noqa: ARG002
    ) -> Parked:  # fmt: skip
        with self._lock:
            if self._live(self._notes, nonce) is not None or self._entry(name, id) is not None:
                return Parked("repeated")
            held_by = self._held_by(name)
            is_own = any(hold.token == id for hold in held_by)
            room = self._room(name, _limit_in(entry.facts.encode()))
            held = None if room > 0 or not held_by else held_by[0]
            line = self._lines.get(name, [])
            if how != "refused" and (is_own or (how == "ask" and held is None and not line)):
                return Parked("runs")
            if len(line) >= most and not is_own:
                return Parked("full")
            until = math.inf if within is None else self._clock() + within
            before = [at for at, each in enumerate(line) if each.id == place]
            of_band = [each.band for each in line]
            if before:
                at = before[0]
                band = line[at].band
            else:
                at = bisect(of_band, band if place == "last" else band - 1)
            self._lines.setdefault(name, line).insert(at, _Place(band, id, entry, until))
            if entry.kind != "ring":
                self._notes[nonce] = (b"", self._clock() + _NOTED)
            woken = _NOBODY
            if is_own:
                woken = self._wake(name, only=id)
            elif held is None and how != "behind":
                woken = self._wake(name)
            if self._entry(name, id) is None:
                return Parked("woken")
            if held is None and how == "behind" and ahead:
                held = self._hold(name, (ahead.encode(), self._clock() + _AHEAD), is_period=False)
                self._locks[name] = (ahead.encode(), self._clock() + _AHEAD)
            left = held.expires_in if held is not None else _LATEST
            self._due.setdefault(name, self._clock() + min(left, _LATEST))
            rank = [each.id for each in self._lines[name]].index(id)
            answer = Parked("parked", rank, None if woken.promoted else held, woken.promoted)
        return self._told(answer)

    def leave(self, name: str, id: str, *, unless_held: bool = False) -> tuple[str, bytes, Release]:  # noqa: A002
        with self._lock:
            is_own = any(hold.token == id for hold in self._held_by(name))
            if is_own and unless_held:
                return "kept", b"", Release(released=False)
            entry = self._take_out(name, id)
            word = "missing" if entry is None else "left"
            woken = _NOBODY
            if is_own and self._drop(name, id):
                word = "released"
                woken = self._wake(name)
            answer = Release(word == "released", promoted=woken.promoted)
        return word, b"" if entry is None else entry.dumps().encode(), self._told(answer)

    def move(self, name: str, id: str, place: str) -> bool:  # noqa: A002
        with self._lock:
            line = self._lines.get(name, [])
            end = 0 if place == "first" else -1
            moved = [each._replace(band=line[end].band) for each in line if each.id == id]
            rest = [each for each in line if each.id != id]
            if moved:
                self._lines[name] = [*moved, *rest] if place == "first" else [*rest, *moved]
            return bool(moved)

    def await_bell(self, bell: str, seconds: float) -> bool:
        with self._lock:
            if not self._rung.wait_for(lambda: self.queues.get(bell), max(0.0, seconds)):
                return False
            self.queues[bell].popleft()
            if not self.queues[bell]:
                del self.queues[bell]
            return True

    def settle(self, name: str, id: str, ttl: float) -> bool:  # noqa: A002
        with self._lock:
            held = self._live(self._locks, name)
            self.renew([Term(name, id, ttl)])
            was_there = self._take_out(name, id) is not None
            if held is not None and name in self._due:
                self._due[name] = min(self._due[name], self._clock() + _LATEST)
            answer = Release(False, promoted=self._wake(name).promoted if held is None else ())
        self._told(answer)
        return was_there

    def drain(
        self, name: str = "", *, most: int = 100, ids: Sequence[str] = ()
    ) -> tuple[int, tuple[Promotion, ...]]:
        with self._lock:
            asked = [
                (each, place.id, place.entry)
                for each in ([name] if name else list(self._lines))
                for place in self._lines.get(each, ())
                if not ids or place.id in ids
            ]
            asked = [ask for ask in asked if ask[2].kind != "give" or ask[2].to == self.home]
            asked = [ask for ask in asked if self._live(self._notes, ask[1]) is None][:most]
            given = [ask for ask in asked if ask[2].kind == "give"]
            for _, id_, entry in given:
                self._notes[id_] = (b"", self._clock() + entry.ttl)
            leaves = [ask for ask in asked if ask[2].kind != "give"]
            for each, id_, entry in leaves:
                self._take_out(each, id_)
                if entry.kind == "push":
                    self.queues[entry.to].appendleft(entry.text)
            promoted = tuple(Promotion(each, id_, entry.text.encode()) for each, id_, entry in given)
        self._told(Release(False, promoted=promoted))
        return len(leaves), promoted

    def lines(self, *, limit: int = 1000) -> list[str]:
        with self._lock:
            return sorted(self._lines, key=lambda name: self._due.get(name, 0.0))[:limit]

    def sweep(self, *, most: int = 100) -> Sweep:
        with self._lock:
            now = self._clock()
            held_by: list[Hold] = []
            promoted: list[Promotion] = []
            for due, name in sorted((due, name) for name, due in self._due.items())[:most]:
                if due > now:
                    break
                held = self._live(self._locks, name)
                self._due[name] = now + (_LATEST if held is None else min(held[1] - now, _LATEST))
                holders = self._held_by(name)
                held_by += holders
                promoted += self._let_go(name) if holders else ()
                promoted += self._wake(name).promoted if held is None else ()
            next_in = max(0.0, min(self._due.values(), default=float("inf")) - now)
            answer = Sweep(next_in, tuple(held_by), (), tuple(promoted))
        return self._told(answer)

    def _let_go(self, name: str) -> list[Promotion]:
        """Let those go that have waited for too long; return what the caller publishes."""
        given = []
        now = self._clock()
        line = self._lines[name]
        for _, id_, entry, _ in [each for each in line if each.until <= now]:
            if entry.kind != "give":
                self.queues[entry.to].append(entry.text)
                self._take_out(name, id_)
            elif entry.to == self.home and not self._live(self._notes, id_):
                self._notes[id_] = (b"", now + entry.ttl)
                given.append(Promotion(name, id_, entry.text.encode()))
        if name in self._due:
            self._due[name] = min([self._due[name], *(each.until for each in line if each.until > now)])
        return given

    def waiting(self, name: str, *, first: int = 0, last: int = -1) -> tuple[int, list[Waiter]]:
        with self._lock:
            line = self._lines.get(name, [])
            first = max(0, first + len(line)) if first < 0 else first
            asked = line[first : len(line) + 1 + last if last < 0 else last + 1]
            return len(line), [
                Waiter(id_, entry.kind, entry.to, Hold(name, f"{id_}\0{entry.facts}".encode(), entry.ttl))
                for _, id_, entry, _ in asked
            ]

    def _wake(self, name: str, only: str | None = None, rank: int = 0) -> "_Woken":
        """Hand a lock to the first in its line, or to this one, which holds it already (``lua/line.lua``)."""
        line = self._lines.get(name, [])[rank:]
        if not line:
            return _NOBODY
        id_ = only or line[0].id
        entry = self._entry(name, id_)
        assert entry is not None  # noqa: S101  whoever asks for one has seen it in line
        now = self._clock()
        if entry.kind == "give" and entry.to != self.home:
            if only:
                self.renew([Term(name, id_, _OF_ANOTHER_HOME)])
            self._due[name] = now + _OF_ANOTHER_HOME
            return _NOBODY
        takes = self._live(self._marks, (name, id_)) is None
        limit = _limit_in(entry.facts.encode())
        if takes and not only and (id_ in self._permits_of(name) or self._copies(name, id_)):
            return self._wake(name, rank=rank + 1)
        if takes and not only and self._room(name, limit) <= 0:
            ends = [
                expiry for _, expiry in (*self._permits[name].values(), self._locks.get(name, (b"", inf)))
            ]
            self._due[name] = min(now + _LATEST, *ends)
            return _NOBODY
        has_permit = takes and self._keep(
            name, f"{id_}\0{entry.facts}".encode(), entry.ttl, limit, instead_of=only
        )
        if entry.kind == "give":
            self._lines[name] = [
                each._replace(until=math.inf) if each.id == id_ else each for each in self._lines[name]
            ]
            self._due[name] = now + (min(entry.ttl, _LATEST) if takes else entry.ttl)
            return _Woken(id_, (Promotion(name, id_, entry.text.encode()),))
        if entry.kind != "hold":
            self.queues[entry.to].append(entry.text)
            self._rung.notify_all()
        self._take_out(name, id_)
        if name in self._lines:
            self._due[name] = min(self._due.get(name, now + _LATEST), now + entry.ttl)
        if only and not takes:
            self._drop(name, only)
        return _Woken(id_) if takes and (only or not has_permit) else self._wake(name, rank=rank)

    def _entry(self, name: str, id_: str) -> Entry | None:
        return next((each.entry for each in self._lines.get(name, ()) if each.id == id_), None)

    def _take_out(self, name: str, id_: str | None) -> Entry | None:
        entry = self._entry(name, id_ or "")
        if entry is not None:
            self._lines[name] = [each for each in self._lines[name] if each.id != id_]
            if not self._lines[name]:
                del self._lines[name]
                self._due.pop(name, None)
        return entry

    def _told(self, answer: _Ended) -> _Ended:
        """Report the messages that an answer has promoted, and return it; without the lock of this store."""
        if answer.promoted and self.on_promoted is not None:
            self.on_promoted(answer.promoted)
        return answer

    def mark_done(self, name: str, message: str, ttl: float) -> None:
        with self._lock:
            self._leave(name, Mark(message, ttl, is_done=True))

    def _leave(self, name: str, mark: Mark | None) -> None:
        if mark is None:
            return
        is_there = self._live(self._marks, (name, mark.message)) is not None
        if mark.is_done or not is_there:
            value = b"done" if mark.is_done else b"ending"
            self._marks[name, mark.message] = (value, self._clock() + mark.ttl)

    def holders(self, name: str, *, to_decide: bool = False) -> tuple[Hold, ...]:  # noqa: ARG002  one copy
        with self._lock:
            accepted = self._live(self._periods, name)
            periods = () if accepted is None else (self._hold(name, accepted, is_period=True),)
            return self._held_by(name) or periods

    def limit(
        self, name: str, value: int | None = None, *, ttl: float | None = None, facts: str = ""
    ) -> Limit | None:
        with self._lock:
            if ttl is not None:
                self._limits.pop(name, None)
            if ttl is not None and value is not None:
                self._limits[name] = (f"{value}\0{facts}".encode(), self._clock() + ttl)
            found = self._live(self._limits, name)
            answer = Release(False, promoted=self._wake(name).promoted if ttl is not None else ())
        self._told(answer)
        return None if found is None else Limit.of(found[0], found[1] - self._clock())

    def _permits_of(self, name: str) -> dict[str, _Entry]:
        permits = self._permits[name]
        for token in list(permits):
            self._live(permits, token)
        return permits

    def _room(self, name: str, limit: int | None) -> int:
        """Return how many more may hold a lock (``lua/permits.lua``)."""
        permits = self._permits_of(name)
        if self._live(self._locks, name) is not None:
            return 0
        return self._limit(name, limit) - len(permits)

    def _limit(self, name: str, limit: int | None) -> int:
        told = self._live(self._limits, name)
        if limit is None or told is None:
            # Who knows of none is to be alone.
            return min([limit or 1, *(_limit_in(value) or 1 for value, _ in self._permits_of(name).values())])
        return int(told[0].partition(b"\0")[0])

    def _first_in_line(self, name: str) -> _Place | None:
        """Return the first in line that holds nothing, nor is another delivery of what holds it."""
        waiting = (
            each
            for each in self._lines.get(name, ())
            if each.id not in self._permits_of(name) and not self._copies(name, each.id)
        )
        return next(waiting, None)

    def _copies(self, name: str, token: str) -> list[str]:
        owner = owner_of(token)
        return [held for held in self._permits_of(name) if held != token and owner_of(held) == owner]

    def _held_by(self, name: str, only: Sequence[str] = ()) -> tuple[Hold, ...]:
        permits = self._permits_of(name)
        held = self._live(self._locks, name)
        asked = [permits[token] for token in only or permits] if held is None else [held]
        return tuple(self._hold(name, entry, is_period=False) for entry in sorted(asked, key=itemgetter(1)))

    def _keep(
        self, name: str, value: bytes, ttl: float, limit: int | None = None, *, instead_of: str | None = None
    ) -> bool:
        """Note a hold, in the place of another one's; tell whether it is one of several."""
        entry = (value, self._clock() + ttl)
        permits = self._permits_of(name)
        has_permit = permits.pop(instead_of or "", None) is not None
        if has_permit or (limit and name not in self._locks):
            permits[value.partition(b"\0")[0].decode()] = entry
            return True
        self._locks[name] = entry
        return False

    def _drop(self, name: str, token: str) -> bool:
        held = self._live(self._locks, name)
        if held is not None and _belongs(held[0], token):
            del self._locks[name]
            return True
        return self._permits_of(name).pop(token, None) is not None

    def force_release(self, name: str, *, expected: str | None = None) -> Release:
        with self._lock:
            holders = self.holders(name)
            seen = next((hold for hold in holders if expected in {None, hold.token}), None)
            if seen is None:
                return Release(released=False, held_by=next(iter(holders), None))
            is_one_of_several = self._permits_of(name).pop(expected or "", None) is not None
            if not is_one_of_several:
                self._permits.pop(name, None)
                self._locks.pop(name, None)
            accepted = self._live(self._periods, name)
            if accepted is not None and (
                not is_one_of_several or self._hold(name, accepted, is_period=True).owner == seen.owner
            ):
                del self._periods[name]
            answer = Release(released=True, held_by=seen, promoted=self._wake(name).promoted)
        return self._told(answer)

    def names(self, *, limit: int = 1000) -> list[str]:
        with self._lock:
            permits = {name: self._permits_of(name) for name in list(self._permits)}
            several = {name: max(each.values(), key=itemgetter(1)) for name, each in permits.items() if each}
            live = [
                (entry[1], name)
                for entries in (self._locks, self._periods, several)
                for name in list(entries)
                if (entry := self._live(entries, name)) is not None
            ]
            return list(dict.fromkeys(name for _, name in sorted(live)))[:limit]

    def _live(self, entries: dict[Any, _Entry], key: Any) -> _Entry | None:
        entry = entries.get(key)
        if entry is not None and entry[1] <= self._clock():
            del entries[key]
            return None
        return entry

    def _hold(self, name: str, entry: _Entry, *, is_period: bool) -> Hold:
        return Hold(name, entry[0], entry[1] - self._clock(), is_period)


def _limit_in(value: bytes) -> int | None:
    found = re.search(rb'"limit":(\d+)', value)
    return int(found[1]) if found else None


def _belongs(value: bytes, *tokens: str | None) -> bool:
    return any(token and value.startswith(f"{token}\0".encode()) for token in tokens)

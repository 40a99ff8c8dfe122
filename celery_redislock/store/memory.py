"""The lock store in this process's memory: for tests, one process only."""

import json
import math
import re
import threading
import time
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar

from celery_redislock.store.home import KEPT, Proof
from celery_redislock.store.store import (
    QUEUED,
    Entry,
    Grant,
    Hold,
    Limit,
    LockStore,
    Mark,
    Marked,
    Merge,
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
from celery_redislock.wire.clock import Clock, boottime

_Expiring = tuple[bytes, float]

#: Seconds, as in ``lua/line.lua``: the longest time until a line is looked at again; until one is that only
#: another home can serve. And how long a request that parked is known, as on a server with its usual timeout.
_LATEST = 2.0
_AHEAD = 10.0
_OF_ANOTHER_HOME = 1.0
_NOTED = 15.0
#: As in ``lua/sweep.lua`` and ``lua/sent.lua``: the last seconds of a claim, in which it is extended; sends
#: without a start after which a message goes to the end of its line.
_LAST = 5.0
_MOST_SENDS = 3
_HAND_OFF = 60.0
_MOST_EXACT = 1000
#: As in ``lua/acquire.lua``: what the facts of a task say whose duplicates coalesce.
_COALESCES = '"on_conflict":"coalesce"'

_Ended = TypeVar("_Ended", Release, Parked, Sweep)


class _Held(NamedTuple):
    value: bytes
    until: float
    is_alone: bool


class _Place(NamedTuple):
    """Of one that waits; or, where it ``is_sent``, was handed the lock and has not started."""

    band: int
    id: str
    entry: Entry
    until: float
    is_sent: bool = False
    due: float = 0.0


class _Waiting(NamedTuple):
    """Whose place calls of its task take: since when, how many have, and when the last one was made."""

    id: str
    first: float
    merged: int
    number: int


class _Woken(NamedTuple):
    """Who was handed a lock, and what the caller publishes for it."""

    id: str = ""
    promoted: tuple[Promotion, ...] = ()
    elsewhere: str = ""


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
        self._holders: defaultdict[str, dict[str, _Held]] = defaultdict(dict)
        self._limits: dict[str, _Expiring] = {}
        self._periods: dict[str, _Expiring] = {}
        self._marks: dict[tuple[str, str], _Expiring] = {}
        self._lines: dict[str, list[_Place]] = {}
        self._sends: dict[str, tuple[int, int]] = {}
        self._due: dict[str, float] = {}
        self._merging: dict[tuple[str, str], _Waiting] = {}
        self._newest: dict[tuple[str, str], tuple[str, int]] = {}
        self._starts: defaultdict[tuple[str, float], list[tuple[float, str]]] = defaultdict(list)
        self._notes: dict[str, _Expiring] = {}
        self._proofs: dict[str, tuple[str, float]] = {}
        self._fence = 0
        self.queues: defaultdict[str, deque[str]] = defaultdict(deque)

    @property
    def server(self) -> str:
        return "memory"

    def acquire(  # noqa: PLR0911, PLR0912  as ``lua/acquire.lua``
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
            holders = self._holders_of(name)
            repeated = token in holders
            held = holders.get(token if repeated else instead_of or "")
            copies = self._copies(name, token) if held is None else []
            value = f"{token}\0{facts}".encode()
            if held is None and not (starts_run or limit) and self._room(name, None) > 0:
                self._wake(name, home="")
            is_full = held is None and (bool(copies) or self._room(name, limit) < _weight_in(value))
            first = None if held is not None or is_full else self._first_in_line(name)
            mark = None if repeated else self._live(self._marks, (name, message or ""))
            if mark is not None:
                self._take_out(name, instead_of, of_all=False)
                return Marked(mark[0] == b"done", _whole_ms(mark[1] - now))
            number = self._now_us() if _COALESCES in facts else None
            if is_full:
                # Nobody holds it where fewer may than one asks for.
                found = self._held_by(name, copies) or (Hold(name, b"limit", _OF_ANOTHER_HOME),)
                return Refusal(found, number)
            taken = None if repeated else held
            if taken is not None and starts_run and not self._may_run(name, instead_of, limit):
                del holders[instead_of or ""]
                self._bring_back(name)
                return Refusal(self._held_by(name), number)
            was_in_line = taken is not None and b'"line":1' in taken.value
            if first is not None and first.id == instead_of:
                first = None
                was_in_line = True
            if first is not None:
                text = f'{first.id}\0{{"state":"queued","published":true}}'
                return Refusal((Hold(name, text.encode(), _OF_ANOTHER_HOME),), number)
            if not repeated and (taken is None or starts_run):
                by_rate = self._refused_by_rate(name, facts, instead_of, starts_run=starts_run, token=token)
                if by_rate is not None:
                    return by_rate._replace(number=number)
            if held is None or was_in_line:
                accepted = self._live(self._periods, name) if period else None
                if accepted is not None and not _belongs(accepted[0], token, instead_of):
                    self._let_wait(name, instead_of, accepted[1])
                    return Refusal((self._hold(name, accepted, is_period=True),), number)
                if period and accepted is None:
                    self._periods[name] = (value, now + period)
            # One that is in line yet is being sent now.
            sends = self._sends.get(instead_of or "", (0, 0))[0] + (instead_of in self._ids(name))
            sent_again = was_in_line and sends > 1
            if was_in_line:
                self._take_out(name, instead_of, of_all=False)
            if taken is not None and starts_run and name in self._due:
                self._due[name] = min(self._due[name], now + _LATEST)
            self._keep(name, value, ttl, limit, instead_of=token if repeated else instead_of)
            if held is None and _COALESCES in facts and '"state":"running"' not in facts:
                self._newest[name, _task_in(facts)] = token, self._now_us()
            self._fence = max(self._fence + 1, self._now_us())
            several = len(holders) > 1 or not (self._is_alone(name) or self._limit(name, limit or 1) == 1)
            fence = None if several else self._fence
            return Grant(fence, taken is not None or sent_again, now, self._clock(), repeated, sent_again)

    def look(
        self, name: str, token: str, *, period: float | None = None, limit: int | None = None,
        facts: str = "",
    ) -> Refusal | None:  # fmt: skip
        with self._lock:
            is_free = self._room(name, limit) > 0
            if not is_free and token not in self._holders_of(name):
                return Refusal(self._held_by(name))
            closed = self._closed(name, facts) if is_free else 0.0
            if closed > 0:
                return Refusal((self._by_rate(name, facts, closed),))
            accepted = self._live(self._periods, name) if period else None
            if accepted is None or _belongs(accepted[0], token) or (not is_free and self._is_alone(name)):
                return None
            return Refusal((self._hold(name, accepted, is_period=True),))

    def renew(self, terms: Sequence[Term], *, within: float | None = None) -> Renewal:  # noqa: ARG002
        with self._lock:
            now = self._clock()
            renewed: list[bool | None] = []
            for names, token, ttl in terms:
                # Several names: of JoinedMemory.
                of_each = [self._renew(name, token, now + ttl) for name in names.split()]
                renewed.append(None if None in of_each else all(of_each))
            return Renewal(renewed, now, self._clock())

    def _renew(self, name: str, token: str, until: float) -> bool | None:
        holders = self._holders_of(name)
        held = holders.get(token)
        if held is not None:
            holders[token] = held._replace(until=until)
        return True if held is not None else False if self._is_alone(name) else None

    def release(
        self, name: str, token: str, *, opened_by: str | None = None, mark: Mark | None = None
    ) -> Release:
        with self._lock:
            self._leave(name, mark)
            accepted = self._live(self._periods, name)
            if accepted is not None and _belongs(accepted[0], opened_by):
                del self._periods[name]
            self._take_out(name, token, of_all=False)
            if token not in self._holders_of(name) and self._is_alone(name):
                return Release(released=False, held_by=self._held_by(name)[0])
            held = self._holders_of(name).pop(token, None)
            if opened_by and held is not None:
                self._forget_newest(name, token)
            answer = Release(held is not None, promoted=self._wake(name).promoted)
        return self._told(answer)

    def release_claims(self, owners: Collection[str]) -> Iterator[tuple[str, str]]:
        for name in list(self._holders):
            for hold in self.holders(name):
                if hold.state != QUEUED or hold.is_period or hold.owner not in owners:
                    continue
                if self.release(name, hold.token, opened_by=hold.token).released:
                    yield name, hold.token
        with self._lock:
            for each in [each for each, of in self._merging.items() if owner_of(of.id) in owners]:
                del self._merging[each]
            for each in [each for each, (id_, _) in self._newest.items() if owner_of(id_) in owners]:
                del self._newest[each]

    def hand_on(
        self, name: str, old: str, new: str, ttl: float, *, facts: str, mark: Mark | None = None
    ) -> Release:
        with self._lock:
            holders = self._holders_of(name)
            ours = old in holders
            if not ours and (new in holders or self._is_alone(name)):
                self._leave(name, mark)
                held_by = None if new in holders else self._held_by(name)[0]
                return Release(new in holders, held_by)
            woken = _NOBODY
            goes_on = ours and self._live(self._marks, (name, new)) is None
            self._leave(name, mark)
            if goes_on:
                entry = self._entry(name, new)
                if old != new and entry is not None and new in self._ids(name, is_sent=True):
                    # It waited for several locks, and was handed them with the one before this.
                    facts = entry.facts
                    ttl = entry.ttl
                self._keep(name, f"{new}\0{facts}".encode(), ttl, instead_of=old)
                if old == new:
                    self._take_out(name, old)
                elif new in self._ids(name):
                    woken = self._wake(name, only=new)
            else:
                holders.pop(old, None)
                woken = self._wake(name)
            answer = Release(ours, promoted=woken.promoted)
        return self._told(answer)

    def downgrade(self, name: str, token: str, ttl: float, *, facts: str) -> Release:
        with self._lock:
            holders = self._holders_of(name)
            if token not in holders:
                return Release(released=False, held_by=next(iter(self._held_by(name)), None))
            holders[token] = _Held(f"{token}\0{facts}".encode(), self._clock() + ttl, is_alone=False)
            answer = Release(released=True, promoted=self._wake(name).promoted)
        return self._told(answer)

    def park(  # noqa: PLR0911, PLR0912  as ``lua/park.lua``
        self, name: str, id: str, entry: Entry, *, nonce: str, how: str = "refused", band: int = 0,  # noqa: A002
        place: str = "last", most: int = 10_000, ahead: str = "",
        acknowledge: tuple[str, str, str] | None = None, within: float | None = None,  # noqa: ARG002
        merge: Merge | None = None,
    ) -> Parked:  # fmt: skip
        with self._lock:
            until = math.inf if within is None else self._clock() + within
            if self._live(self._notes, nonce) is not None:
                return Parked("repeated")
            mark = None if merge is None else self._live(self._marks, (name, id))
            if mark is not None and mark[0] == b"done":
                return Parked("done")
            held_by = self._held_by(name)
            is_own = id in self._holders_of(name)
            if not is_own:
                # Where several hold it, all who were handed it and hold it no more are in line again.
                self._bring_back(name, None if held_by and not self._is_alone(name) else id)
            waits = id in self._ids(name)
            if waits or (how == "refused" and self._entry(name, id) is not None):
                if merge is None:  # else its place may have been taken since
                    self._change(name, id, **({"until": until} if entry.kind == "ring" else {"entry": entry}))
                return Parked("repeated")
            facts = entry.facts.encode()
            has_room = self._room(name, _limit_in(facts)) >= _weight_in(facts)
            held = None if has_room or not held_by else held_by[0]
            places = self._lines.get(name, [])
            line = self._ids(name)
            is_free = held is None and not line and bool(held_by or not places)
            is_free = is_free and not self._closed(name, entry.facts, id)
            is_put_off = merge is not None and merge.pause > 0
            if how != "refused" and (is_own or (how == "ask" and is_free and not is_put_off)):
                return Parked("runs")
            met = None if merge is None or is_own else self._met(name, id, entry, merge, place)
            if met is not None and met.word != "merged":
                return met
            if len(line) >= most and not is_own and met is None:
                return Parked("full")
            new = _Place(band, id, entry, until)
            self._put(name, new, place, met and met.held_by, None if is_own else merge)
            if entry.kind != "ring":
                self._notes[nonce] = (b"", self._clock() + _NOTED)
            woken = _NOBODY
            if is_own:
                woken = self._wake(name, only=id)
            elif held is None and how != "behind":
                woken = self._wake(name)
            if id not in self._ids(name):
                return Parked("woken")
            if is_free and how == "behind" and ahead:
                self._keep(name, ahead.encode(), _AHEAD)
                held = self._held_by(name)[0]
            left = held.expires_in if held is not None else _LATEST
            due = self._due.get(name, self._clock() + min(left, _LATEST))
            new = next(each for each in self._lines[name] if each.id == id)
            self._due[name] = min(due, new.until, new.due or due)
            rank = self._ids(name).index(id)
            answer = Parked("parked", rank, None if woken.promoted else held, woken.promoted)
        return self._told(answer)

    def _put(
        self, name: str, new: _Place, place: str, older: Hold | None, merge: Merge | None
    ) -> None:  # fmt: skip
        """Put one into a line (``lua/place.lua``), in the place of this older one if there is one."""
        places = self._lines.get(name, [])
        waiting = [(at, each) for at, each in enumerate(places) if not each.is_sent]
        before = [at for at, each in waiting if each.id == place]
        before += [at for at, each in waiting if place != "last" and each.band == new.band]
        at = before[0] if before else bisect([each.band for each in places], new.band)
        new = new._replace(band=places[at].band if before else new.band)
        if older is not None:
            at, former = next(one for one in enumerate(places) if one[1].id == older.token)
            new = new._replace(band=former.band, until=former.until)
        if merge is not None:
            new = self._let_merge(name, new, merge)
        if merge is not None and older is not None:
            self._take_out(name, older.token)
            self._leave(name, Mark(older.token, merge.mark_ttl, is_done=True))
        places = self._lines.get(name, [])
        self._lines[name] = [*places[:at], new, *places[at:]]

    def _met(self, name: str, id_: str, entry: Entry, merge: Merge, place: str) -> Parked | None:
        """Return the one of its task that waits, and which of them gives way; ``None`` for no other.

        Or the newest one that was accepted, where this is older.
        """
        newest, made = self._newest.get((name, _task_in(entry.facts)), ("", 0))
        if merge.number is not None and newest not in {"", id_} and made > merge.number:
            return Parked("newer", held_by=Hold(name, f"{newest}\0".encode(), 0.0))
        found = self._merging.get((name, _task_in(entry.facts)))
        if found is None:
            return None
        waiting = self._entry(name, found.id)
        text = f"{found.id}\0{'' if waiting is None else waiting.facts}"
        hold = Hold(name, text.encode(), 0.0)
        is_older = place != "last" if merge.number is None else merge.number < found.number
        word = "newer" if is_older else "older" if merge.instead_of != found.id else "merged"
        return Parked(word, held_by=hold)

    def _let_merge(self, name: str, new: _Place, merge: Merge) -> _Place:
        """Let later calls of its task take this place; return it with its times (``lua/merge.lua``)."""
        task = _task_in(new.entry.facts)
        former = self._merging.get((name, task))
        now = self._clock()
        first = now if former is None else former.first
        merged = 0 if former is None else former.merged + 1
        due = (
            min(now + merge.pause, first + merge.longest if merge.longest else math.inf)
            if merge.pause
            else 0.0
        )
        number = self._now_us() if merge.number is None else merge.number
        self._merging[name, task] = _Waiting(new.id, first, merged, number)
        self._newest[name, task] = new.id, number
        shift = self._wall() - now
        in_ms = [0 if due == 0.0 else round(1000 * (due + shift)), round(1000 * (first + shift))]
        times = f'{{"due":{in_ms[0]},"first":{in_ms[1]},"merged":{merged},'
        return new._replace(due=due, entry=new.entry._replace(facts=times + new.entry.facts[1:]))

    def newest(self, name: str, task: str, id: str, number: int | None) -> str:  # noqa: A002
        with self._lock:
            newest, at = self._newest.get((name, json.dumps(task)[1:-1]), ("", 0))
            if newest not in {"", id} and at > (number or 0):
                return newest
            if number is not None:
                self._newest[name, json.dumps(task)[1:-1]] = id, number
            return ""

    def _refused_by_rate(
        self, name: str, facts: str, held: str | None, *, starts_run: bool, token: str
    ) -> Refusal | None:
        """Return how long a rate refuses somebody, who loses what it holds; else note that it starts."""
        now = self._clock()
        rates = _rates_in(facts)
        closed = self._closed(name, facts, held)
        if closed > 0:
            self._let_wait(name, held, now + closed)
            return Refusal((self._by_rate(name, facts, closed),))
        for _, span in rates if starts_run else ():
            noted = self._starts[name, span]
            noted[:] = [*(each for each in noted if each[0] + span > now), (now, token)]
        return None

    def _by_rate(self, name: str, facts: str, closed: float) -> Hold:
        """Return what stands in the holder's place: who started last."""
        last = self._last_of(name, _rates_in(facts))
        return Hold(
            name, f'{last}\0{{"state":"rate","task":"{_task_in(facts)}"}}'.encode(), _whole_ms(closed)
        )

    def _let_wait(self, name: str, held: str | None, until: float) -> None:
        """Take away what one holds that cannot start before then; it waits again if it was in line."""
        if self._holders_of(name).pop(held or "", None) is not None:
            self._bring_back(name)
            if name in self._due:
                self._look_by(name, until)

    def _last_of(self, name: str, rates: Sequence[tuple[int, float]]) -> str:
        """Return who started last."""
        starts = [
            each for number, span in rates if number <= _MOST_EXACT for each in self._starts[name, span]
        ]
        return max(reversed(starts), default=(0.0, "rate"), key=itemgetter(0))[1]

    def _closed(self, name: str, facts: str, but: str | None = None) -> float:
        """Return the seconds until who has these facts may start: a rate, a period (``lua/rate.lua``)."""
        rates = _rates_in(facts)
        now = self._clock()
        accepted = self._live(self._periods, name) if '"period":1' in facts else None
        if accepted is not None and f'"message":"{but}"'.encode() not in accepted[0]:
            return accepted[1] - now
        if not rates:
            return 0.0
        held = self._holders_of(name).items()
        pending = sum(
            token != but and self._is_on_its_way(each.value) for token, each in held if not each.is_alone
        )
        longest = 0.0
        for number, span in rates:
            at = [each for each, _ in self._starts[name, span] if each + span > now]
            free = number - pending
            if free < 1:
                longest = max(longest, min(span, _LATEST))
            elif len(at) >= free:
                longest = max(longest, at[-free] + span - now)
        return longest

    def _is_on_its_way(self, value: bytes) -> bool:
        """Whether a hold is one that starts soon, and does not wait for a time (``lua/permits.lua``)."""
        since = re.search(rb'"since":(\d+)', value)
        is_fresh = b'"line":1' in value or (
            since is not None and abs(self._wall() - int(since[1])) < _HAND_OFF
        )
        return b'"state":"running"' not in value and is_fresh

    def clock(self, name: str = "") -> float:  # noqa: ARG002  one clock
        return self._wall()

    def _now_us(self) -> int:
        return int(self._wall() * 1_000_000)

    def leave(self, name: str, id: str, *, unless_held: bool = False) -> tuple[str, bytes, Release]:  # noqa: A002
        with self._lock:
            is_own = id in self._holders_of(name)
            is_sent = id in self._ids(name, is_sent=True)
            if is_own and unless_held and not is_sent:
                return "kept", b"", Release(released=False)
            entry = self._take_out(name, id)
            if entry is not None:
                self._forget_newest(name, id)
            is_left = is_sent and unless_held
            word = "released" if is_own and not is_left else "missing" if entry is None else "left"
            self._holders_of(name).pop(id, None)
            for other in _others(name, entry.facts.encode()) if entry and is_own else ():
                self._holders_of(other).pop(id, None)
                if other in self._due:
                    self._due[other] = self._clock()
            woken = self._wake(name) if is_own else _NOBODY
            answer = Release(word == "released", promoted=woken.promoted)
        return word, b"" if entry is None else entry.dumps().encode(), self._told(answer)

    def move(self, name: str, id: str, place: str) -> bool:  # noqa: A002
        with self._lock:
            entry = self._entry(name, id)
            if entry is None or id not in self._ids(name):
                return False
            for each in [name, *_others(name, entry.facts.encode())]:
                self._move(each, id, place)
            return True

    def _move(self, name: str, id_: str, place: str) -> None:
        places = self._lines.get(name, [])
        line = self._ids(name)
        if id_ not in line or id_ == line[0 if place == "first" else -1]:
            return
        end = places[-1]
        if place == "first":
            end = next(each for each in places if each.id == line[0])
        rest = [each for each in places if each.id != id_]
        at = rest.index(end) if place == "first" else len(rest)
        moved = next(each for each in places if each.id == id_)
        self._lines[name] = [*rest[:at], moved._replace(band=end.band), *rest[at:]]

    def await_bell(self, bell: str, seconds: float) -> bool:
        with self._lock:
            if not self._rung.wait_for(lambda: self.queues.get(bell), max(0.0, seconds)):
                return False
            self.queues[bell].popleft()
            if not self.queues[bell]:
                del self.queues[bell]
            return True

    def settle(self, name: str, id: str, ttl: float, *, sent: bool = True) -> bool:  # noqa: A002
        with self._lock:
            entry = self._entry(name, id)
            was_there = False
            if id in self._holders_of(name):
                names = [name] if entry is None else [name, *_others(name, entry.facts.encode())]
                self.renew([Term(each, id, ttl) for each in names])
                was_there = self._hand_over(names, id, sent=sent)
            elif self._live(self._marks, (name, id)) or self._live(self._notes, id):
                was_there = self._take_out(name, id) is not None
                self._forget_newest(name, id)
            is_alone = self._is_alone(name)
            if is_alone and name in self._due:
                self._due[name] = min(self._due[name], self._clock() + _LATEST)
            answer = Release(False, promoted=() if is_alone else self._wake(name).promoted)
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
                if not place.is_sent and (not ids or place.id in ids)
            ]
            asked = [ask for ask in asked if ask[2].kind != "give" or self._is_home(ask[2].to)]
            asked = [ask for ask in asked if self._live(self._notes, ask[1]) is None][:most]
            for _, _, entry in asked:
                if entry.kind == "push":
                    self.queues[entry.to].appendleft(entry.text)
            promoted = tuple(given for ask in asked if (given := self._let_one_go(*ask)))
        self._told(Release(False, promoted=promoted))
        return len(asked) - len(promoted), promoted

    def end_pauses(self) -> int:
        """Let every call that is put off be due now, as if its ``lock_debounce`` had passed.

        One whose key is held waits for its end, as any other. For tests, which need not sleep then; from any
        thread.

        Returns:
            How many calls were put off.
        """
        with self._lock:
            now = self._clock()
            put_off = [(name, each) for name, line in self._lines.items() for each in line if each.due > now]
            for name, each in put_off:
                facts = re.sub(r'"due":\d+', '"due":0', each.entry.facts, count=1)
                self._change(name, each.id, due=0.0, entry=each.entry._replace(facts=facts))
            promoted = [given for name, _ in put_off for given in self._wake(name).promoted]
        self._told(Release(False, promoted=tuple(promoted)))
        return len(put_off)

    def lines(self, *, limit: int = 1000) -> list[str]:
        with self._lock:
            return sorted(self._lines, key=lambda name: self._due.get(name, 0.0))[:limit]

    def sweep(self, *, most: int = 100) -> Sweep:
        with self._lock:
            now = self._clock()
            held_by: list[Hold] = []
            promoted: list[Promotion] = []
            elsewhere: list[tuple[str, str]] = []
            for due, name in sorted((due, name) for name, due in self._due.items())[:most]:
                if due > now:
                    break
                if name not in self._due:
                    continue  # who waited here has left with another line
                self._bring_back(name)
                holders = self._held_by(name)
                is_alone = self._is_alone(name)
                self._due[name] = min([self._next_of(hold) for hold in holders], default=now + _LATEST)
                if holders:
                    self._extend(name)
                    promoted += self._let_go(name)
                woken = _NOBODY if is_alone else self._wake(name)
                promoted += woken.promoted
                if not (holders or woken.id):  # only a time, or its home, keeps who waits from it
                    first = self._first_in_line(name)
                    closed = 0.0 if first is None else self._closed(name, first.entry.facts, first.id)
                    if closed > 0:
                        later = (each.due for each in self._lines[name] if each.due > now)
                        self._due[name] = min([now + closed, *later])
                    promoted += self._let_go(name)
                held_by += self._held_by(name) if holders else ()
                elsewhere += [(name, woken.elsewhere)] if woken.elsewhere else []
            next_in = max(0.0, min(self._due.values(), default=float("inf")) - self._clock())
            answer = Sweep(next_in, tuple(held_by), (), tuple(promoted), elsewhere=tuple(elsewhere))
        return self._told(answer)

    def _let_go(self, name: str) -> list[Promotion]:
        """Let those go that have waited for too long; return what the caller publishes."""
        given = []
        now = self._clock()
        line = self._lines.get(name, [])
        holders = self._holders_of(name)
        late = [each for each in line if each.until <= now and not each.is_sent and each.id not in holders]
        for _, id_, entry, *_ in late:
            if entry.kind not in {"give", "ring"}:
                self.queues[entry.to].append(entry.text)
            if entry.kind != "give" or (self._is_home(entry.to) and not self._live(self._notes, id_)):
                given.append(self._let_one_go(name, id_, entry))
        if name in self._due:
            self._due[name] = min([self._due[name], *(each.until for each in line if each.until > now)])
            if {each.id for each in late}.intersection(self._ids(name)):
                self._look_by(name, now + _LATEST)  # for those that another process publishes
        return list(filter(None, given))

    def _let_one_go(self, name: str, id_: str, entry: Entry) -> Promotion | None:
        """Let one go without its lock; return it where the caller publishes it."""
        if entry.kind != "give":
            self._take_out(name, id_)
            self._forget_newest(name, id_)
            return None
        self._notes[id_] = (b"", self._clock() + entry.ttl)
        return Promotion(name, id_, entry.text.encode())

    def _is_there(self, entry: Entry) -> bool:  # noqa: ARG002
        """Whether a message is in its queue, or in hand (``lua/found.lua``): here none gets lost."""
        return True

    def _next_of(self, hold: Hold) -> float:
        """Return when the line of a lock is looked at again because of this holder (``lua/sweep.lua``)."""
        age = 0.0 if hold.since is None else self._wall() - hold.since
        later = math.inf if "line" in hold.facts else max(_LATEST, age / 4)
        return self._clock() + min(hold.expires_in, later)

    def _extend(self, name: str) -> None:
        """Extend the claims of what was pushed, and is there yet."""
        for _, id_, entry, _, is_sent, _ in self._lines.get(name, ()):
            held = self._holders_of(name).get(id_)
            if entry.kind != "push" or held is None or not (is_sent and self._is_there(entry)):
                continue
            last = min(_LAST, entry.ttl / 2)
            if held.until - self._clock() <= last:
                names = [name, *_others(name, entry.facts.encode())]
                self.renew([Term(each, id_, entry.ttl) for each in names])
                sends, kept = self._sends.get(id_, (0, 0))
                self._sends[id_] = (sends, kept + 1)
            until = self._holders_of(name)[id_].until
            self._due[name] = min(self._due[name], until - last)

    def homes(self, spelling: str = "", name: str = "") -> Mapping[str, Proof]:
        with self._lock:
            now = self._clock()
            self._proofs = {each: proof for each, proof in self._proofs.items() if now - proof[1] < KEPT}
            if spelling:
                self._proofs[spelling] = (name, now)
            return {each: Proof(known, now - at) for each, (known, at) in self._proofs.items()}

    def waiting(
        self, name: str, *, first: int = 0, last: int = -1, handed_on: bool = False
    ) -> tuple[int, list[Waiter]]:  # fmt: skip
        with self._lock:
            line = [each for each in self._lines.get(name, ()) if each.is_sent == handed_on]
            asked = line[first : None if last < 0 else last + 1]
            return len(line), [
                Waiter(id_, entry.kind, entry.to, hold, self._sends.get(id_, (0, 0))[0])
                for _, id_, entry, *_ in asked
                for hold in [Hold(name, f"{id_}\0{entry.facts}".encode(), entry.ttl)]
            ]

    def _wake(  # noqa: PLR0911  as ``lua/line.lua``
        self, name: str, only: str | None = None, rank: int = 0, home: str | None = None,
        pushed: list[str] | None = None,
    ) -> "_Woken":  # fmt: skip
        """Hand a lock to the first in its line, or to this one, which holds it already (``lua/line.lua``).

        ``pushed``: the queues of those that were handed it at once, of whom the first is received first.
        """
        pushed = [] if pushed is None else pushed
        self._bring_back(name)
        line = [each for each in self._lines.get(name, ()) if not each.is_sent][rank:]
        if not line:
            return _NOBODY
        id_ = only or line[0].id
        entry = self._entry(name, id_)
        assert entry is not None  # noqa: S101  whoever asks for one has seen it in line
        now = self._clock()
        if not only and line[0].due > now:
            self._look_by(name, line[0].due)
            return self._wake(name, rank=rank + 1, home=home, pushed=pushed)
        if entry.kind == "give" and not self._is_home(entry.to, home):
            if only:
                self.renew([Term(name, id_, _OF_ANOTHER_HOME)])
            self._look_by(name, now + _OF_ANOTHER_HOME)
            return _Woken(elsewhere=entry.to)
        takes = self._live(self._marks, (name, id_)) is None
        is_dead = entry.kind == "ring" and line[0].until <= now and not only
        if is_dead:
            self._take_out(name, id_)
        facts = entry.facts.encode()
        limit = _limit_in(facts)
        is_waiting = takes and not only
        is_here = id_ in self._holders_of(name) or self._copies(name, id_)
        if is_dead or (is_waiting and is_here and not self._is_alone(name)):
            return self._wake(name, rank=rank if is_dead else rank + 1, home=home, pushed=pushed)
        others = _others(name, facts) if is_waiting else []
        has_room = self._room(name, limit) >= _weight_in(facts)
        if is_waiting and not (has_room and all(self._is_next(each, id_) for each in others)):
            ends = [each.until for each in self._holders[name].values()]
            self._look_by(name, min([now + _LATEST, *ends]))
            return _NOBODY
        closed = self._closed(name, entry.facts, id_) if is_waiting else 0.0
        if closed > 0:
            self._look_by(name, now + closed)
            return _NOBODY
        has_permit = takes and self._keep(
            name, f"{id_}\0{entry.facts}".encode(), entry.ttl, limit, instead_of=only
        )
        self._end_merging(name, id_)
        for each in others:
            self._keep(each, f"{id_}\0{entry.facts}".encode(), entry.ttl)
            self._look_by(each, now + _LATEST)
        if entry.kind == "give":
            self._look_by(name, now + (min(entry.ttl, _LATEST) if takes else entry.ttl))
            sends = self._sends.get(id_, (0, 0)) if takes else (0, 0)
            return _Woken(id_, (Promotion(name, id_, entry.text.encode(), *sends),))
        self._send(name, id_, entry, pushed, takes=takes)
        if name in self._lines:
            self._due[name] = min(self._due.get(name, now + _LATEST), now + entry.ttl)
        if only and not takes:
            self._holders_of(name).pop(only, None)
        return (
            _Woken(id_)
            if takes and (only or not has_permit or self._room(name, limit) < 1)
            else self._wake(name, rank=rank, home=home, pushed=pushed)
        )

    def _look_by(self, name: str, by: float) -> None:
        """Look at a line by then, or sooner where it is due sooner."""
        self._due[name] = min(self._due.get(name, by), by)

    def _send(self, name: str, id_: str, entry: Entry, pushed: list[str], *, takes: bool) -> None:
        """Tell who waits that its turn has come. What was pushed, and is there, is not pushed again."""
        is_there = takes and self._sends.get(id_, (0, 0))[0] > 0 and self._is_there(entry)
        if entry.kind != "hold" and not is_there:
            queue = self.queues[entry.to]
            queue.insert(len(queue) - pushed.count(entry.to), entry.text)
            pushed.append(entry.to)
            self._rung.notify_all()
        if entry.kind == "push" and takes:
            self._hand_over([name, *_others(name, entry.facts.encode())], id_, sent=not is_there)
        else:
            self._take_out(name, id_)

    def _hand_over(self, names: Sequence[str], id_: str, *, sent: bool) -> bool:
        """Move it from these lines; tell whether it was there (``lua/sent.lua``)."""
        was_there = any(id_ in self._ids(name) for name in names)
        for name in names:
            self._change(name, id_, is_sent=True)
        if was_there:
            sends, kept = self._sends.get(id_, (0, 0))
            self._sends[id_] = (sends + 1, 0) if sent else (sends, kept + 1)
        return was_there

    def _bring_back(self, name: str, only: str | None = None) -> None:
        """Let those wait again, in their places, that were handed the lock and have lost it; or this one."""
        for id_ in self._ids(name, is_sent=True):
            if only != id_ if only else id_ in self._holders_of(name):
                continue
            entry = self._entry(name, id_)
            sends, kept = self._sends.get(id_, (0, 0))
            for each in [name, *_others(name, entry.facts.encode() if entry else b"")]:
                self._change(each, id_, is_sent=False)
                places = self._lines.get(each, [])
                if sends > 0 and sends % _MOST_SENDS == 0 and kept == 0:
                    self._change(each, id_, band=places[-1].band)
                    places.sort(key=lambda place: place.id == id_)

    def _ids(self, name: str, *, is_sent: bool = False) -> list[str]:
        """Return who waits, in order; or who was handed the lock and has not started."""
        return [each.id for each in self._lines.get(name, ()) if each.is_sent == is_sent]

    def _change(self, name: str, id_: str, **fields: Any) -> None:
        line = self._lines.get(name, [])
        line[:] = [each._replace(**fields) if each.id == id_ else each for each in line]

    def _is_home(self, to: str, home: str | None = None) -> bool:
        return to in (self.home if home is None else home).split("\n")

    def _entry(self, name: str, id_: str) -> Entry | None:
        return next((each.entry for each in self._lines.get(name, ()) if each.id == id_), None)

    def _end_merging(self, name: str, id_: str | None) -> None:
        for each in [each for each, of in self._merging.items() if each[0] == name and of.id == id_]:
            del self._merging[each]

    def _forget_newest(self, name: str, id_: str) -> None:
        """One that leaves without a run is nobody's newer one."""
        for each in [each for each, (newest, _) in self._newest.items() if (each[0], newest) == (name, id_)]:
            del self._newest[each]

    def _take_out(self, name: str, id_: str | None, *, of_all: bool = True) -> Entry | None:
        """Take it out of this line, and out of those of the other locks that it waits for."""
        entry = self._entry(name, id_ or "")
        self._end_merging(name, id_)
        others = _others(name, entry.facts.encode()) if entry and of_all else []
        for each in [] if entry is None else [name, *others]:
            self._lines[each] = [place for place in self._lines.get(each, ()) if place.id != id_]
            if not self._lines[each]:
                del self._lines[each]
                self._due.pop(each, None)
        self._sends.pop(id_ or "", None)
        return entry

    def _is_next(self, name: str, id_: str) -> bool:
        """Whether one that waits for several locks may have this one: it is free, with nobody before it."""
        holders = self._holders_of(name)
        line = [each for each in self._lines.get(name, ()) if each.due <= self._clock()]
        is_free = not (holders or self._ids(name, is_sent=True))
        return id_ in holders or (is_free and (not line or line[0].id == id_))

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
        return None if found is None else Limit.of(found[0], _whole_ms(found[1] - self._clock()))

    def _holders_of(self, name: str) -> dict[str, _Held]:
        """Return who holds a lock, by token; what is put in or taken out counts."""
        holders = self._holders[name]
        ended = [token for token, held in holders.items() if held.until <= self._clock()]
        for token in ended:
            del holders[token]
        # Where nobody holds it any more, those wait again when somebody asks for it.
        for token in ended if holders else ():
            self._bring_back(name, token)
        return holders

    def _is_alone(self, name: str) -> bool:
        """Whether its holder is the only one, whatever others know (``lua/permits.lua`` counts no other)."""
        return any(held.is_alone for held in self._holders_of(name).values())

    def _room(self, name: str, limit: int | None) -> int:
        """Return how many more may hold a lock."""
        taken = sum(_weight_in(held.value) for held in self._holders_of(name).values())
        return 0 if self._is_alone(name) else self._limit(name, limit) - taken

    def _may_run(self, name: str, token: str | None, limit: int | None) -> bool:
        """Whether one that has a permit may run beside those that run, under whatever limit it has that."""
        holders = self._holders_of(name)
        beside = [held.value for each, held in holders.items() if each != token]
        running = sum(_weight_in(value) for value in beside if b'"state":"running"' in value)
        return not beside or running < self._limit(name, limit, beside)

    def _limit(self, name: str, limit: int | None, holders: Sequence[bytes] | None = None) -> int:
        told = self._live(self._limits, name)
        if limit is None or told is None:
            # Who knows of none is to be alone.
            if holders is None:
                holders = [held.value for held in self._holders_of(name).values()]
            return min([limit or 1, *(_limit_in(value) or 1 for value in holders)])
        return int(told[0].partition(b"\0")[0])

    def _first_in_line(self, name: str) -> _Place | None:
        """Return the first in line that holds nothing, nor is another delivery of what holds it."""
        self._bring_back(name)
        waiting = (
            each
            for each in self._lines.get(name, ())
            if each.due <= self._clock()
            and each.id not in self._holders_of(name)
            and not self._copies(name, each.id)
        )
        return next(waiting, None)

    def _copies(self, name: str, token: str) -> list[str]:
        owner = owner_of(token)
        return [held for held in self._holders_of(name) if held != token and owner_of(held) == owner]

    def _held_by(self, name: str, only: Sequence[str] = ()) -> tuple[Hold, ...]:
        holders = self._holders_of(name)
        asked = sorted((holders[token] for token in only or holders), key=attrgetter("until", "value"))
        return tuple(self._hold(name, held[:2], is_period=False) for held in asked)

    def _keep(
        self, name: str, value: bytes, ttl: float, limit: int | None = None, *, instead_of: str | None = None
    ) -> bool:
        """Note a hold, in the place of another one's; tell whether it is one of several."""
        holders = self._holders_of(name)
        before = holders.pop(instead_of or "", None)
        is_alone = limit is None if before is None else before.is_alone
        token = value.partition(b"\0")[0].decode("utf-8", "replace")
        holders[token] = _Held(value, self._clock() + ttl, is_alone)
        return not is_alone

    def force_release(self, name: str, *, expected: str | None = None, by: str = "") -> Release:  # noqa: ARG002
        with self._lock:
            holders = self.holders(name)
            seen = next((hold for hold in holders if expected in {None, hold.token}), None)
            if seen is None:
                return Release(released=False, held_by=next(iter(holders), None))
            is_one_of_several = expected in self._holders_of(name) and not self._is_alone(name)
            gone = [expected] if is_one_of_several else list(self._holders[name])
            for token in gone:
                self._holders[name].pop(token or "")
            accepted = self._live(self._periods, name)
            if accepted is not None and (
                not is_one_of_several or self._hold(name, accepted, is_period=True).owner == seen.owner
            ):
                del self._periods[name]
            answer = Release(released=True, held_by=seen, promoted=self._wake(name).promoted)
        return self._told(answer)

    def names(self, *, limit: int = 1000) -> list[str]:
        with self._lock:
            ends = [
                (max(held.until for held in holders.values()), name)
                for name in list(self._holders)
                if (holders := self._holders_of(name))
            ]
            ends += [
                (accepted[1], name)
                for name in list(self._periods)
                if (accepted := self._live(self._periods, name)) is not None
            ]
            return list(dict.fromkeys(name for _, name in sorted(ends)))[:limit]

    def _live(self, entries: dict[Any, _Expiring], key: Any) -> _Expiring | None:
        entry = entries.get(key)
        if entry is not None and entry[1] <= self._clock():
            del entries[key]
            return None
        return entry

    def _hold(self, name: str, entry: _Expiring, *, is_period: bool) -> Hold:
        return Hold(name, entry[0], _whole_ms(entry[1] - self._clock()), is_period)


def _whole_ms(seconds: float) -> float:
    """Return a time that is left as servers tell it, in whole milliseconds: a day is a day by any clock."""
    return round(seconds, 3)


def _others(name: str, facts: bytes) -> list[str]:
    """Return the other locks that who has these facts waits for as well."""
    return [each for each in json.loads(facts)["names"] if each != name] if b'"names":[' in facts else []


@lru_cache(maxsize=10_000)
def _limit_in(value: bytes) -> int | None:
    found = re.search(rb'"limit":(\d+)', value)
    return int(found[1]) if found else None


def _rates_in(facts: str) -> list[tuple[int, float]]:
    found = re.search(r'"rate":"([\d/ ]+)"', facts)
    pairs = [each.split("/") for each in found[1].split()] if found else []
    return [(int(number), int(span) / 1000) for number, span in pairs]


def _task_in(facts: str) -> str:
    found = re.search(r'"task":"([^"]*)"', facts)
    return found[1] if found else ""


def _belongs(value: bytes, *tokens: str | None) -> bool:
    return any(token and value.startswith(f"{token}\0".encode()) for token in tokens)


@lru_cache(maxsize=10_000)
def _weight_in(value: bytes) -> int:
    found = re.search(rb'"permits":(\d+)', value)
    return int(found[1]) if found else 1

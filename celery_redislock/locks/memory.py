"""The lock store in this process's memory: for tests, one process only."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from celery_redislock.locks.clock import Clock, boottime
from celery_redislock.locks.store import (
    QUEUED,
    Grant,
    Hold,
    LockStore,
    Mark,
    Marked,
    Refusal,
    Release,
    Renewal,
    Term,
)

_Entry = tuple[bytes, float]


class MemoryStore(LockStore):
    """Keeps locks in a dictionary; the same verbs, answers and expiry as a server. Thread-safe.

    It excludes only within this process: a fork has its own. Its clock is the
    server's and this process's at once.
    """

    def __init__(self, *, clock: Clock = boottime, wall: Callable[[], float] = time.time) -> None:
        """Start empty; holds expire by ``clock``, fences are drawn from ``wall``, seconds since the epoch."""
        self._clock = clock
        self._wall = wall
        self._lock = threading.RLock()
        self._locks: dict[str, _Entry] = {}
        self._periods: dict[str, _Entry] = {}
        self._marks: dict[tuple[str, str], _Entry] = {}
        self._fence = 0

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
        starts_run: bool = False,  # noqa: ARG002  no server, no limit
    ) -> Grant | Refusal | Marked:
        with self._lock:
            now = self._clock()
            held = self._live(self._locks, name)
            repeated = held is not None and _belongs(held[0], token)
            taken_over = held is not None and not repeated and _belongs(held[0], instead_of)
            kept = repeated or taken_over
            mark = None if repeated else self._live(self._marks, (name, message or ""))
            if mark is not None:
                return Marked(mark[0] == b"done", mark[1] - now)
            if held is not None and not kept:
                return Refusal((self._hold(name, held, is_period=False),))
            value = f"{token}\0{facts}".encode()
            if not kept:
                accepted = self._live(self._periods, name) if period else None
                if accepted is not None and not _belongs(accepted[0], token, instead_of):
                    return Refusal((self._hold(name, accepted, is_period=True),))
                if period and accepted is None:
                    self._periods[name] = (value, now + period)
            self._locks[name] = (value, now + ttl)
            self._fence = max(self._fence + 1, int(self._wall() * 1_000_000))
            return Grant(self._fence, taken_over, now, self._clock(), repeated)

    def look(self, name: str, token: str, *, period: bool = False) -> Refusal | None:
        with self._lock:
            seen = self.inspect(name)
            if seen is None or seen.token == token or (seen.is_period and not period):
                return None
            return Refusal((seen,))

    def renew(self, terms: Sequence[Term], *, within: float | None = None) -> Renewal:  # noqa: ARG002
        with self._lock:
            now = self._clock()
            renewed: list[bool | None] = []
            for term in terms:
                held = self._live(self._locks, term.name)
                owned = held is not None and _belongs(held[0], term.token)
                if held is not None and owned:
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
            if held is None:
                return Release(released=False)
            if not _belongs(held[0], token):
                return Release(released=False, held_by=self._hold(name, held, is_period=False))
            del self._locks[name]
            return Release(released=True)

    def release_claims(self, owners: Collection[str]) -> Iterator[tuple[str, str]]:
        for name, held in list(self._locks.items()):
            hold = self._hold(name, held, is_period=False)
            if hold.state != QUEUED or hold.owner not in owners:
                continue
            if self.release(name, hold.token, opened_by=hold.token).released:
                yield name, hold.token

    def hand_on(
        self, name: str, old: str, new: str, ttl: float, *, facts: str, mark: Mark | None = None
    ) -> Release:
        with self._lock:
            held = self._live(self._locks, name)
            if held is None or not _belongs(held[0], old):
                self._leave(name, mark)
                if held is None or _belongs(held[0], new):
                    return Release(released=held is not None)
                return Release(released=False, held_by=self._hold(name, held, is_period=False))
            if self._live(self._marks, (name, new)) is not None:
                del self._locks[name]
            else:
                self._locks[name] = (f"{new}\0{facts}".encode(), self._clock() + ttl)
            self._leave(name, mark)
            return Release(released=True)

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

    def inspect(self, name: str, *, to_decide: bool = False) -> Hold | None:  # noqa: ARG002  there is one
        with self._lock:
            held = self._live(self._locks, name)
            if held is not None:
                return self._hold(name, held, is_period=False)
            accepted = self._live(self._periods, name)
            return None if accepted is None else self._hold(name, accepted, is_period=True)

    def force_release(self, name: str, *, expected: str | None = None) -> Release:
        with self._lock:
            seen = self.inspect(name)
            if seen is None or (expected is not None and seen.token != expected):
                return Release(released=False, held_by=seen)
            self._locks.pop(name, None)
            self._periods.pop(name, None)
            return Release(released=True, held_by=seen)

    def names(self, *, limit: int = 1000) -> list[str]:
        with self._lock:
            live = [
                (entry[1], name)
                for entries in (self._locks, self._periods)
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


def _belongs(value: bytes, *tokens: str | None) -> bool:
    return any(token and value.startswith(f"{token}\0".encode()) for token in tokens)

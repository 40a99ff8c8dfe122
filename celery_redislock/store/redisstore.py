"""The lock store on Redis or Valkey, single server or Sentinel.

Keys (``N`` is the lock's name; its braces make one hash tag, so that all keys
of a lock live in one slot of a Cluster; the prefix is ``redislock`` unless
set otherwise, with Celery's ``global_keyprefix`` in front):

============================  ======  ==========================  ===========================================
key                           type    value                       expiry; written by
============================  ======  ==========================  ===========================================
``redislock:{N}:lock``        string  ``token NUL json``          lease or claim ttl; all that list a hold
``redislock:{N}:period``      string  ``token NUL json``          ``lock_period``; acquire, claim_and_push
``redislock:{N}:fence``       string  last strict fence           7 days; as the period's, fence
``redislock:{N}:mark:NONCE``  string  ``ending``; ``1``: done     the mark's ttl; release, hand_on, mark_done
``redislock:{N}:note:NONCE``  string  what a request has done,    three socket timeouts; claim_and_push,
                                      for its repetition          park, leave, happened; sweep, drain: as long
                                                                  as the message may take to be published
``redislock:index``           zset    name (period: ``name NUL    twice the longest of them at most; acquire,
                                      period``), score expiry ms  renew, hand_on, claim_and_push
``redislock:{N}:line``        zset    id -> place                 when empty; park, claim_or_park
``redislock:{N}:sent``        zset    id -> place: was handed     when empty; what ends a hold, settle
                                      the lock, has not started
``redislock:{N}:parked``      hash    id -> entry of these two    when empty; park, claim_or_park
``redislock:{N}:until``       zset    id -> when it goes without  when empty; park, claim_or_park
                                      its lock, ms
``redislock:{N}:merge``       hash    task -> who waits, whose    with the entry; park, claim_or_park
                                      place calls take; NUL id
                                      -> task (merge.lua)
``redislock:{N}:newest``      hash    task -> ``id NUL us``       an hour; as ``merge``, acquire, newest
``redislock:{N}:starts:MS``   list    ``ms token``; many: ``ms     the span of the rate; acquire (rate.lua)
                                      count``, newest first
``redislock:{N}:bell:NONCE``  list    empty text: it has rung     the claim's ttl; all that end a hold
``redislock:lines``           zset    name, score when to look    when empty; park, sweep, what ends a hold
                                      next, ms
``redislock:homes``           hash    a broker's spelling -> ``ms  7 days; homes
                                      NUL name``
``redislock:{N}:permits``     zset    token, score expiry ms      with the last permit; as the lock's, where
``redislock:{N}:holders``     hash    token -> json               several may hold it: that is a marker then
``redislock:{N}:limit``       string  ``N NUL json``              as it was set; limit
``redislock:{N}:refused``     hash    task -> who was refused     an hour; acquire, look, claim_and_push
``redislock:{N}:forced``      string  json: who released it       an hour; force_release
``redislock:refusals``        zset    name, score when, ms        an hour; as ``refused``
``redislock:acts``            zset    json: what an operator did  30 days; acts
                                      -> when, ms
``redislock:counts``          hash    ``task NUL what`` -> how    30 days; all that grant, refuse, park or end
                                      often                       a task's hold (history.lua)
============================  ======  ==========================  ===========================================

``GET 'redislock:{N}:lock'`` and ``TTL`` in redis-cli tell the story; so does
any client's ``SET NX`` lock on the same key, which excludes ours and is
excluded by it. No key is ever without a TTL, but for lines: what waits in them is data.
"""

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache, partial
from itertools import chain, islice, pairwise
from json.encoder import encode_basestring_ascii
from typing import Any
from uuid import uuid4

from celery_redislock.exceptions import LockKeyError, LockOptionError, LockUnavailable
from celery_redislock.store.home import KEPT, Proof
from celery_redislock.store.store import (
    ACCEPTED,
    MOST_TOLD,
    QUEUED,
    RUNNING,
    Counts,
    Entry,
    Grant,
    History,
    Hold,
    Limit,
    Line,
    LockStore,
    Mark,
    Marked,
    Merge,
    Parked,
    Promotion,
    Refusal,
    Refused,
    Release,
    Renewal,
    Sweep,
    Term,
    Turn,
    Unstarted,
    Waiter,
    facts_in,
    owner_name,
    owner_of,
    short,
    sliced,
)
from celery_redislock.wire.clock import Clock, boottime
from celery_redislock.wire.connection import Connections
from celery_redislock.wire.scripts import Scripts
from celery_redislock.wire.wire import expect

#: The scripts of a lock store, one file each under ``lua/``; some include others.
SCRIPTS = (
    "acquire", "acts", "claim_and_push", "claim_or_park", "counts", "downgrade", "drain", "fence",
    "force_release", "hand_on", "happened", "heads", "homes", "inspect", "leave", "limit", "look", "move",
    "names", "newest", "park", "release", "release_and_store", "release_claims", "renew", "ring",
    "settle", "survey", "sweep", "waiting",
)  # fmt: skip

#: How long a strict fence outlives the last acquire that drew it: longer than any paused holder.
STRICT_FENCE_TTL = 7 * 24 * 3600.0

#: Bytes of a nonce, from which on it is random, and alone tells the messages of a lock apart.
SHORTEST_NONCE = 12

#: The value of a mark whose message is done: Redis keeps small numbers once for all keys.
DONE = "1"

#: Renewals per call: bounds how long one script keeps the server (about 2.4 µs each).
RENEWALS_PER_CALL = 200


#: Locks that one call lists: bounds likewise (about half a millisecond).
NAMES_PER_CALL = 1000

#: Likewise by the script that is asked first, which takes several times as long for each.
FIRST_NAMES = 100

#: Locks that one call looks at: bounds likewise.
VALUES_PER_CALL = 500

#: Lines whose heads one call tells: bounds likewise (about 20 µs each).
HEADS_PER_CALL = 50

#: Waiters that one call tells: bounds likewise (about 6 µs each, 50 where their messages have 20 kB).
WAITERS_PER_CALL = 100

#: What operators did is kept for so many seconds, and so many acts of it.
ACTS_KEPT = 30 * 86400.0
MOST_ACTS = 1000

#: Requests of a thousand keys each in which other prefixes are looked for.
SCANS = 100

#: How long a key lives that is not there, as ``PTTL`` says it.
GONE = -2

#: Locks that one call looks at for claims: bounds likewise (about 2 ms).
LOCKS_PER_CALL = "1000"


class RedisStore(LockStore):
    """Keeps locks on one Redis or Valkey server (6.2 or later), or on a Sentinel service.

    Every verb is one script, one round trip.
    """

    is_shared = True

    def __init__(
        self,
        connections: Connections,
        *,
        prefix: str = "redislock",
        strict_fence: bool = False,
        min_replicas: int = 0,
        clock: Clock = boottime,
    ) -> None:
        """Keep locks on the server these connections lead to.

        Arguments: see :func:`celery_redislock.locks.connect`; ``clock`` is injected by tests.

        Raises:
            LockOptionError: ``min_replicas`` is no number in its range.
        """
        if type(min_replicas) is not int or not 0 <= min_replicas <= 100:
            problem = f"min_replicas={min_replicas!r} is no whole number (0 … 100)"
            raise LockOptionError("lock server", [problem])
        self.connections = connections
        self.prefix = prefix
        self._start = f"{prefix}:{{"
        self._index = f"{prefix}:index"
        self._lines = f"{prefix}:lines"
        self._counts = f"{prefix}:counts"
        self._refusals = f"{prefix}:refusals"
        self._strict_ms = in_ms(STRICT_FENCE_TTL) if strict_fence else ""
        self.min_replicas = min_replicas
        self._clock = clock
        self.patience = 2 * connections.socket_timeout
        self._note_ms = in_ms(3 * connections.socket_timeout)
        self._scripts = self._runner(SCRIPTS, [__package__])

    @property
    def server(self) -> str:
        return self.connections.server

    def acquire(self, name: str, token: str, ttl: float, **terms: Any) -> Grant | Refusal | Marked:
        return self.begin(name, token, ttl, **terms)()

    def begin(
        self, name: str, token: str, ttl: float, *, facts: str = "", **terms: Any
    ) -> Callable[[], Grant | Refusal | Marked]:
        keys = [f"{self._start}{name}}}:lock", self._index]
        args = [f"{token}\0{facts}", in_ms(ttl), name]
        if terms or self._strict_ms:
            self._add(keys, args, name, **terms)
        if not self.min_replicas:
            return self._scripts.begin("acquire", keys, args, granted, name=name)
        return partial(self._acquire_confirmed, name, token, keys, args)

    def claim_and_push(
        self, name: str, token: str, ttl: float, *, queue: str, text: str, facts: str = "",
        turn: Turn | None = None, **terms: Any,
    ) -> Grant | Refusal | Marked | Parked:  # fmt: skip
        keys = [self._base(name) + "lock", self._index]
        args = [f"{token}\0{facts}", in_ms(ttl), name]
        if terms or self._strict_ms:
            self._add(keys, args, name, **terms)
        keys += (f"{self._base(name)}note:{token.rpartition('/')[2]}", queue)
        args += (self._note_ms, text)
        if turn is None:
            return self._scripts.begin("claim_and_push", keys, args, granted, name=name)()
        *said, hand_off, within, merge = turn
        args += (*map(str, said), "" if within is None else in_ms(within), in_ms(hand_off))
        args += ("", "0", "0") if merge is None else (merge.names, *_times_of(merge))
        return self._scripts.begin("claim_or_park", keys, args, _granted_or_parked, name=name)()

    def look(
        self, name: str, token: str, *, period: float | None = None, limit: int | None = None, facts: str = ""
    ) -> Refusal | None:
        keys = [f"{self._start}{name}}}:lock", self._index]
        args = [f"{token}\0{facts}"]
        if period:
            keys.append(self._base(name) + "period")
        if limit is not None:
            args.append(str(limit))
        holds = self._scripts.begin("look", keys, args, _found, name=name)()
        return Refusal(holds) if holds else None

    def _add(
        self,
        keys: list[str],
        args: list[str],
        name: str,
        instead_of: str | None = None,
        period: float | None = None,
        message: str | None = None,
        starts_run: bool = False,
        limit: int | None = None,
    ) -> None:
        """Add the keys and arguments of an acquire that does more than take a free lock."""
        strict = self._strict_ms
        base = f"{self._start}{name}}}:"
        args += [f"{instead_of}\0" if instead_of else "", "1" if starts_run else ""]
        if message or period or strict:
            keys.append(self._mark_of(name, message or ""))
        if period or strict:
            keys.append(base + "period")
            args.append(in_ms(period) if period else "0")
            if strict:
                keys.append(base + "fence")
                args.append(strict)
        if limit:
            args += ["0", "", str(limit)][len(args) - 5 :]

    def _acquire_confirmed(
        self, name: str, token: str, keys: Sequence[str], args: Sequence[str]
    ) -> Grant | Refusal | Marked:
        confirm = ("WAIT", str(self.min_replicas))
        answer, replicas = self._scripts.begin(
            "acquire", keys, args, _confirmed, name=name, confirm=confirm
        )()
        if not isinstance(answer, Grant) or replicas >= self.min_replicas:
            return answer
        with suppress(LockUnavailable):  # what is not given back is owed by who is told of what is missing
            self._give_back(name, token)
        missing = f"only {replicas} of {self.min_replicas} replicas confirmed the lock"
        raise LockUnavailable(self.server, "acquire", missing)

    def _give_back(self, name: str, token: str) -> None:
        """Release what was not confirmed."""
        self.release(name, token, opened_by=token)

    @property
    def is_open(self) -> bool:
        return self.connections.is_open

    def scripts(self, names: Sequence[str], package: str) -> Scripts:
        return self._runner(names, [package, __package__])

    def _runner(self, names: Sequence[str], packages: Sequence[str]) -> Scripts:
        return Scripts(self.connections, names=names, packages=packages, clock=self._clock)

    def leads_to(self, address: Mapping[str, Any]) -> bool:
        return self.connections.leads_to(address)

    def reaches(self, address: Mapping[str, Any]) -> bool:
        return not self.min_replicas and self.connections.leads_to(address)

    def renew(self, terms: Sequence[Term], *, within: float | None = None) -> Renewal:
        if not terms:
            now = self._clock()
            return Renewal((), now, now)
        if any(" " in term.name for term in terms):
            return self._renew_joined(terms, within)
        more = terms[RENEWALS_PER_CALL:]
        terms = terms[:RENEWALS_PER_CALL]
        understand = partial(renewed, len(terms))
        words = self._to_renew(terms)
        first = self._scripts.begin("renew", *words, understand, name=terms[0].name, within=within)()
        if not more:
            return first
        rest = self.renew(more, within=within)
        return Renewal([*first.renewed, *rest.renewed], first.sent_at, rest.answered_at)

    def _to_renew(self, terms: Sequence[Term]) -> tuple[list[str], list[str]]:
        """Return the keys and arguments of a renewal."""
        keys = [*(self._base(term.name) + "lock" for term in terms), self._index]
        return keys, [part for term in terms for part in (term.token, in_ms(term.ttl), term.name)]

    def _renew_joined(self, terms: Sequence[Term], within: float | None) -> Renewal:
        """Renew holds of which some are of several names (:class:`~.joined.JoinedStore`)."""
        names = [term.name.split() for term in terms]
        each = [Term(name, term[1], term[2]) for term, of in zip(terms, names, strict=True) for name in of]
        answer = self.renew(each, within=within)
        found = iter(answer.renewed)
        renewed = [_worst(list(islice(found, len(of)))) for of in names]
        return Renewal(renewed, answer.sent_at, answer.answered_at)

    def release(
        self, name: str, token: str, *, opened_by: str | None = None, mark: Mark | None = None
    ) -> Release:
        keys = [f"{self._start}{name}}}:lock", self._index]
        args = [token + "\0", name, self.home]
        if opened_by or mark is not None:
            self._leave(mark, name, keys, args, opened_by)
        return self._ended(self._scripts.begin("release", keys, args, released, name=name)())

    def release_and_store(
        self, name: str, token: str, key: str, result: str, seconds: int,
        *, opened_by: str | None = None, mark: Mark | None = None,
    ) -> tuple[Release, bool]:  # fmt: skip
        keys = [f"{self._start}{name}}}:lock", self._index]
        args = [token + "\0", name, self.home]
        if opened_by or mark is not None:
            self._leave(mark, name, keys, args, opened_by)
        keys.append(key)
        args += (result, str(seconds))
        begun = self._scripts.begin("release_and_store", keys, args, _released_and_stored, name=name)
        answer, is_stored = begun()
        return self._ended(answer), is_stored

    def _leave(
        self, mark: Mark | None, name: str, keys: list[str], args: list[str], opened_by: str | None = None
    ) -> None:
        """Add the keys and arguments that end a period, and that leave a mark."""
        if opened_by:
            keys.append(self._base(name) + "period")
            args.append(opened_by + "\0")
        if mark is not None:
            keys.append(self._mark_of(name, mark.message))
            args += (DONE if mark.is_done else "ending", in_ms(mark.ttl))

    def hand_on(
        self, name: str, old: str, new: str, ttl: float, *, facts: str, mark: Mark | None = None
    ) -> Release:
        base = self._base(name)
        keys = [base + "lock", self._index, self._mark_of(name, new)]
        args = [old, new, in_ms(ttl), facts, name, self.home]
        self._leave(mark, name, keys, args)
        return self._ended(self._scripts.begin("hand_on", keys, args, released, name=name)())

    def downgrade(self, name: str, token: str, ttl: float, *, facts: str) -> Release:
        keys = [self._base(name) + "lock", self._index]
        args = [token, in_ms(ttl), facts, name, self.home]
        return self._ended(self._scripts.begin("downgrade", keys, args, released, name=name)())

    def release_claims(self, owners: Collection[str]) -> Iterator[tuple[str, str]]:
        cursor = "0"
        while True:
            args = [cursor, LOCKS_PER_CALL, self._start, *map(owner_name, owners)]
            cursor, claims = self._scripts.begin(
                "release_claims", [self._index], args, _claims, name=self._index
            )()
            yield from claims
            if cursor == "0":
                return

    def park(
        self, name: str, id: str, entry: Entry, *, nonce: str, how: str = "refused", band: int = 0,  # noqa: A002
        place: str = "last", most: int = 10_000, ahead: str = "",
        acknowledge: tuple[str, str, str] | None = None, within: float | None = None,
        merge: Merge | None = None,
    ) -> Parked:  # fmt: skip
        home = self.home
        keys, args = self._to_park(name, id, entry, home, nonce, how, band, place, most, ahead, within)
        *theirs, tag = acknowledge or ("",)
        keys += theirs
        args.append(tag)
        if merge is not None:
            number = "" if merge.number is None else str(merge.number)
            args += (merge.names, number, *_times_of(merge), merge.instead_of, in_ms(merge.mark_ttl))
        answer = self._scripts.begin("park", keys, args, parked, name=name)()
        self._tell(answer.promoted)
        return answer

    def _to_park(
        self, name: str, id: str, entry: Entry, home: str, nonce: str, how: str = "refused",  # noqa: A002
        band: int = 0, place: str = "last", most: int = 10_000, ahead: str = "", within: float | None = None,
    ) -> tuple[list[str], list[str]]:  # fmt: skip
        """Return the keys and arguments of a parking that acknowledges nothing."""
        base = self._base(name)
        keys = [base + "lock", self._index, f"{base}note:{nonce}"]
        until = "" if within is None else in_ms(within)
        args = [id, name, entry.dumps(), how, home, str(band), place, str(most), self._note_ms, ahead, until]
        return keys, args

    def newest(self, name: str, task: str, id: str, number: int | None) -> str:  # noqa: A002
        keys = [self._base(name) + "lock"]
        args = [encode_basestring_ascii(task)[1:-1], id, "" if number is None else str(number)]
        newer: str = self._scripts.begin("newest", keys, args, _newest, name=name)()
        return newer

    def leave(self, name: str, id: str, *, unless_held: bool = False) -> tuple[str, bytes, Release]:  # noqa: A002
        keys, args = self._to_leave(name, id, self.home, unless_held)
        answer = self._scripts.begin("leave", keys, args, left, name=name)()
        self._tell(answer[2].promoted)
        return answer

    def _to_leave(
        self, name: str, id: str, home: str, unless_held: bool  # noqa: A002
    ) -> tuple[list[str], list[str]]:  # fmt: skip
        keys = [self._base(name) + "lock", self._index, f"{self._base(name)}note:{uuid4().hex}"]
        return keys, [id, name, home, "1" if unless_held else "0", self._note_ms]

    def move(self, name: str, id: str, place: str) -> bool:  # noqa: A002
        keys = [self._base(name) + "line"]
        return self._scripts.begin("move", keys, [id, place, name], _moved, name=name)()

    def await_bell(self, bell: str, seconds: float) -> bool:
        seconds = max(0.001, seconds)  # 0 would wait for ever
        command = ("BLPOP", bell, f"{seconds:.3f}")
        rung: bool = self._scripts.send("await_bell", *command, understand=_rung, waits=seconds)
        return rung

    def settle(self, name: str, id: str, ttl: float, *, sent: bool = True) -> bool:  # noqa: A002
        keys = [self._base(name) + "lock", self._index]
        args = [id, name, in_ms(ttl), self.home, "1" if sent else "0"]
        was_there, promoted = self._scripts.begin("settle", keys, args, _settled, name=name)()
        self._tell(promoted)
        return was_there

    def sweep(self, *, most: int = 100) -> Sweep:
        keys = [self._lines, self._index]
        args = [self._start, self.home, str(most)]
        answer = self._scripts.begin("sweep", keys, args, _swept, name=self._lines)()
        self._tell(answer.promoted)
        return answer

    def drain(
        self, name: str = "", *, most: int = 100, ids: Sequence[str] = ()
    ) -> tuple[int, tuple[Promotion, ...]]:
        args = [self._start, self.home, str(most), name, *ids]
        count, promoted = self._scripts.begin("drain", [self._lines], args, _drained, name=self._lines)()
        self._tell(promoted)
        return count, promoted

    def waiting(
        self, name: str, *, first: int = 0, last: int = -1, handed_on: bool = False
    ) -> tuple[int, list[Waiter]]:  # fmt: skip
        keys = [self._base(name) + "lock"]
        of = "sent" if handed_on else "line"
        found: list[Waiter] = []
        is_more = True
        while is_more:
            most = WAITERS_PER_CALL if last < 0 else min(WAITERS_PER_CALL, last + 1 - first - len(found))
            args = [str(first + len(found)), str(most), of, *(each.id for each in found[-1:])]
            length, some, is_more = self._scripts.begin("waiting", keys, args, _waiting, name=name)()
            found += some
            is_more = is_more and (last < 0 or first + len(found) <= last)
        return length, found

    def lines(self, *, limit: int = 1000) -> list[str]:
        return self._list(self._lines, limit, "-inf")

    def homes(self, spelling: str = "", name: str = "") -> Mapping[str, Proof]:
        key = f"{self.prefix}:homes"
        args = [in_ms(KEPT), *([spelling, name] if spelling else [])]
        return self._scripts.begin("homes", [key], args, _homes, name=key)()

    def mark_done(self, name: str, message: str, ttl: float) -> None:
        key = self._mark_of(name, message)
        self._scripts.send("mark_done", "SET", key, DONE, "PX", in_ms(ttl))

    def holders(self, name: str, *, to_decide: bool = False) -> tuple[Hold, ...]:
        base = self._base(name)
        keys = [base + "lock", base + "period"]
        return self._scripts.begin("inspect", keys, ["1" if to_decide else "0"], _found, name=name)()

    def holders_of_each(self, names: Iterable[str]) -> Iterator[tuple[Hold, ...]]:
        if type(self._scripts) is not Scripts:  # on many nodes
            yield from super().holders_of_each(names)
            return
        for some in sliced(names, VALUES_PER_CALL):
            for name, found in zip(some, self._look_at(some), strict=True):
                # What is no lock is asked for again, and raised then.
                yield self.holders(name) if found is None else found

    def walk_holds(self, *, limit: int = 100_000) -> Iterator[list[Hold]]:
        ends = self._ends(self._index, 2 * limit)
        names = dict.fromkeys(member.partition("\0")[0] for member in ends)
        for some in sliced(islice(names, limit)):
            each = chain.from_iterable(
                self._look_at(part, MOST_TOLD, ends) for part in sliced(some, VALUES_PER_CALL)
            )
            if found := [hold for holds in each for hold in holds or ()]:
                yield found

    def _look_at(
        self, names: Sequence[str], most: int = -1, ends: Mapping[str, float] | None = None
    ) -> list[tuple[Hold, ...] | None]:
        """Return the holders of each of these locks, which are in one slot; ``None`` for what is no lock.

        ``most``: holders of each; -1: all. ``ends``: of members of the index, in ms of the server's clock:
        most values are not asked how long they live (:func:`_is_as_listed`).
        """
        found: dict[str, tuple[Hold, ...] | None] = {}
        for part, end in (("lock", ""), ("period", "\0period")):  # what is free may have a period
            left = [name for name in names if name not in found]
            if not left:
                break
            keys = [self._base(name) + part for name in left]
            values, now = self._scripts.pipeline(
                "walk", [("MGET", *keys), ("TIME",)], partial(_values, len(keys))
            )
            nothing = [key for key, value in zip(keys, values, strict=True) if value is None]
            is_any = bool(nothing) and self._scripts.pipeline("walk", [("EXISTS", *nothing)], _count) > 0
            unsure: dict[str, tuple[str, bytes | None]] = {}
            several: list[str] = []
            for name, key, value in zip(left, keys, values, strict=True):
                if value is not None and _is_marker(value):
                    several.append(name)
                elif value is not None:
                    listed_to = ends.get(name + end, 0.0) if ends else 0.0
                    hold = Hold(name, value, (listed_to - now) / 1000, bool(end))
                    if _is_as_listed(hold):
                        found[name] = (hold,)
                    else:
                        unsure[name] = key, value
                elif is_any:
                    unsure[name] = key, value
            found.update(self._several(several, most, now))
            commands = [("PTTL", key) for key, _ in unsure.values()]
            pttls = self._scripts.pipeline("walk", commands, _numbers) if commands else []
            for (name, (_, value)), pttl in zip(unsure.items(), pttls, strict=True):
                if value is None and pttl != GONE:  # of another type, or taken meanwhile
                    found[name] = self._inspect(name, most)
                elif pttl != GONE:
                    found[name] = _holds(name, b"period" if end else b"held", 1, value, pttl)
        return [found.get(name, ()) for name in names]

    def _several(
        self, names: Sequence[str], most: int, now: float
    ) -> Iterator[tuple[str, tuple[Hold, ...] | None]]:
        """Yield each of these names, of locks that several hold, and its holders; in two requests, mostly."""
        stems = [self._base(name) for name in names]
        valid = f"({now:.0f}", "+inf", "WITHSCORES", "LIMIT", "0", str(most)
        of_each: list[list[tuple[bytes, float]]] = [[] for _ in names]
        facts: Iterator[bytes | None] = iter(())
        with suppress(LockKeyError):  # one is no lock: each is asked by itself
            asked = [("ZRANGEBYSCORE", f"{stem}permits", *valid) for stem in stems]
            permits = self._scripts.pipeline("walk", asked, _scored_each) if asked else []
            tokens = [(stem, token) for stem, some in zip(stems, permits, strict=True) for token, _ in some]
            gets = [("HGET", f"{stem}holders", token.decode("utf-8", "replace")) for stem, token in tokens]
            facts = iter(self._scripts.pipeline("walk", gets, list) if gets else ())
            of_each = permits
        for name, some in zip(names, of_each, strict=True):
            # Who has none has let go meanwhile.
            known = ((token, end, next(facts)) for token, end in some)
            holds = [
                Hold(name, token + b"\0" + said, (end - now) / 1000)
                for token, end, said in known
                if said is not None
            ]
            yield name, tuple(holds) or self._inspect(name, most)

    def _inspect(self, name: str, most: int) -> tuple[Hold, ...] | None:
        base = self._base(name)
        keys = [base + "lock", base + "period"]
        with suppress(LockKeyError):
            return self._scripts.begin("inspect", keys, ["0", str(most)], _found, name=name)()
        return None

    def walk_lines(self, *, limit: int = 10_000) -> Iterator[list[Line]]:
        for some in sliced(RedisStore.lines(self, limit=limit)):
            lines: list[Line] = []
            at = 0
            while names := some[at : at + HEADS_PER_CALL]:
                keys = [self._base(name) + "lock" for name in names]
                heads = self._scripts.begin("heads", keys, [], partial(_heads, names), name=self._lines)()
                lines += filter(None, heads)
                at += len(heads)
            if lines:
                yield lines

    def limit(
        self, name: str, value: int | None = None, *, ttl: float | None = None, facts: str = ""
    ) -> Limit | None:
        args = [name, self.home]
        if ttl is not None:
            args += ["" if value is None else f"{value}\0{facts}", in_ms(ttl)]
        keys = [self._base(name) + "lock", self._index]
        found, promoted = self._scripts.begin("limit", keys, args, _limited, name=name)()
        self._tell(promoted)
        return found

    def force_release(self, name: str, *, expected: str | None = None, by: str = "") -> Release:
        base = self._base(name)
        keys = [base + "lock", base + "period", self._index]
        args = [expected or "", name, "1" if expected is None else "0", self.home, by]
        return self._ended(self._scripts.begin("force_release", keys, args, released, name=name)())

    def names(self, *, limit: int = 1000) -> list[str]:
        # A lock that is held and has a period is on it twice.
        return self._list(self._index, 2 * limit)[:limit]

    def _list(self, index: str, most: int, *least: str) -> list[str]:
        """Return the names in an index in order, from this score on, or from now on."""
        if most <= 2 * NAMES_PER_CALL or type(self._scripts) is not Scripts:
            return self._scripts.begin("names", [index], [str(most), *least], listed, name=index)()
        return list(dict.fromkeys(member.partition("\0")[0] for member in self._ends(index, most, *least)))

    def _ends(self, index: str, most: int, least: str = "") -> dict[str, float]:
        """Return the scores of so many members of an index, in order, from this one on, or from now on.

        0 for one that was put back while they were read.
        """
        found: dict[bytes, float] = {}
        edges: list[str] = []
        for some in self._pieces(index, least):
            found.update(some)
            edges += (repr(score) for _, score in some[-1:])
            if len(found) >= most:
                break
        else:
            edges[-1:] = ["+inf"]
        if len(edges) > 1:
            # A name may be put back behind the piece that is read next, as by the first renewal of a run.
            again = self._first(index, least)
            for _, score in again[-1:]:
                bounds = [edge for edge in dict.fromkeys(edges) if float(edge) > score]
                for before, edge in pairwise([repr(score), *bounds]):
                    asked = "ZRANGEBYSCORE", index, before, edge
                    members = self._scripts.send("list", *asked, understand=_members)
                    again += ((member, 0.0) for member in members)
            found = {**dict(again), **found}
        return {member.decode("utf-8", "replace"): end for member, end in islice(found.items(), most)}

    def _first(self, index: str, least: str) -> list[tuple[bytes, float]]:
        args = [str(FIRST_NAMES), least, "scores"]
        return self._scripts.begin("names", [index], args, _scored, name=index)()

    def _pieces(self, index: str, least: str) -> Iterator[list[tuple[bytes, float]]]:
        """Yield members of an index in order, and their scores. The last of a piece begins the next one."""
        size = FIRST_NAMES
        some = self._first(index, least)
        while some:
            yield some
            if len(some) < size:
                return
            # Plain: four times as fast as a script. More where so many may be listed as of the last score.
            size = 2 * size if some[0][1] == some[-1][1] else NAMES_PER_CALL
            asked = index, repr(some[-1][1]), "+inf", "WITHSCORES", "LIMIT", "0", str(size)
            some = self._scripts.send("list", "ZRANGEBYSCORE", *asked, understand=_scored)

    def happened(
        self, name: str, *, task: str = "", what: str = "", times: int = 1, value: str = "", holder: str = ""
    ) -> History:
        keys = [self._base(name) + "lock", self._index]
        args = [encode_basestring_ascii(task)[1:-1]]
        if task:
            args += [what, str(times), uuid4().hex, self._note_ms, name, value, holder]
        return self._scripts.begin("happened", keys, args, _happened, name=name)()

    def refused(self, *, limit: int = 1000) -> list[str]:
        args = [str(limit), "-inf", "last"]
        return self._scripts.begin("names", [self._refusals], args, listed, name=self._refusals)()

    def counts(self) -> Counts:
        return self._scripts.begin("counts", [self._counts], [], _counted, name=self._counts)()

    def clock(self, name: str = "") -> float | None:
        keys = [self._base(name) + "lock"] if name else []
        return self._scripts.begin("survey", keys, ["", ""], _surveyed, name=name or "clock")()[0]

    def acts(self, noted: str = "") -> list[Mapping[str, Any]]:
        key = f"{self.prefix}:acts"
        if not noted:  # a plain command, for a user who may only read
            asked = "ZRANGEBYSCORE", key, f"({in_ms(time.time() - ACTS_KEPT)}", "+inf"
            return list(self._scripts.send("history", *asked, understand=_acts))
        args = [in_ms(ACTS_KEPT), str(MOST_ACTS), noted]
        return self._scripts.begin("acts", [key], args, _acts, name=key)()

    def other_prefixes(self, name: str = "", token: str = "") -> list[str]:
        end = f":{{{name}}}:lock" if name else ":index"
        keys = self.others("*" + re.sub(r"[*?\[\]\\]", r"\\\g<0>", end))
        found = {key.removesuffix(end) for key in keys} - {self.prefix}
        return sorted(prefix for prefix in found if self._keeps_locks(prefix, name, token))

    def others(self, pattern: str, *, endless: bool = False) -> set[str]:
        found: set[str] = set()
        cursor = "0"
        for _ in range(SCANS):
            args = [cursor, pattern, "1" if endless else ""]
            _, cursor, keys = self._scripts.begin("survey", [], args, _surveyed, name=pattern)()
            found.update(keys)
            if cursor == "0":
                break
        return found

    def _keeps_locks(self, prefix: str, name: str, token: str) -> bool:
        """Whether what is called as an index, or a lock, of ours is one: it names a lock that is held."""
        with suppress(LockKeyError):
            other = copy(self)
            other._start = f"{prefix}:{{"
            other._index = f"{prefix}:index"
            names = [name] if name else RedisStore.names(other, limit=10)
            holds = [hold for each in names for hold in RedisStore.holders(other, each)]
            return any(token in {"", hold.token} for hold in holds)
        return False

    def server_says(self, section: str, name: str) -> str | None:
        # INFO, not CONFIG GET: managed servers often refuse the latter.
        value: str | None = self._scripts.send("info", "INFO", section, understand=partial(_said, name))
        return value

    def close(self) -> None:
        self.connections.drop_idle()

    def _ended(self, answer: Release) -> Release:
        """Return the answer of a verb that may have ended a hold, and report the messages it has promoted.

        Every such verb passes its answer through here.
        """
        if answer.promoted:
            self._tell(answer.promoted)
        return answer

    def _tell(self, promoted: Sequence[Promotion]) -> None:
        if promoted and self.on_promoted is not None:
            self.on_promoted(promoted)

    def _base(self, name: str) -> str:
        return f"{self._start}{name}}}:"

    def _mark_of(self, name: str, message: str) -> str:
        """Return the key of a message's mark, as ``mark_of`` in ``lua/keys.lua`` does."""
        nonce = message.rpartition("/")[2]
        return f"{self._base(name)}mark:{message if len(nonce.encode()) < SHORTEST_NONCE else nonce}"


def _worst(renewed: Sequence[bool | None]) -> bool | None:
    """Return what became of the hold on several locks of which these were renewed."""
    return None if None in renewed else all(renewed)


# The scripts' answers (``wire.Answers``). An answer of another shape raises one of ``scripts.OTHER_SHAPES``.

#: The words by which a hold is granted, and those by which a mark refuses it.
_GRANTED = frozenset((b"granted", b"taken_over"))
_MARKED = frozenset((b"done", b"ending"))

#: Whether several hold a lock, by its value (``MARKER`` in ``lua/keys.lua``).
_is_marker = re.compile(rb'permits/-?\d+\0{"limit":-?\d+').match

#: Whether a hold was ended, by the first word of the answer.
_ENDED = {b"released": True, b"handed_on": True, b"missing": False, b"kept": False}

#: Whether it is a period, by the word that holders follow.
_HOLDERS = {b"held": False, b"period": True, b"line": False, b"rate": False}

#: The answer to nearly every release.
_RELEASED = Release(released=True)


def granted(
    name: str, reply: Any, sent_at: float, answered_at: float, *_: object
) -> Grant | Refusal | Marked:
    """Read the answer to a request for a hold."""
    word = reply[0]
    if word in _GRANTED:
        return Grant(int(reply[1]) or None, word == b"taken_over", sent_at, answered_at)
    if word == b"refused":
        if reply[-2] == b"number":
            return Refusal(_holds(name, *reply[1:-2]), int(reply[-1]))
        return Refusal(_holds(name, *reply[1:]))
    if word == b"repeated":
        fence = int(reply[1]) if len(reply) > 1 else None
        return Grant(fence or None, False, sent_at, answered_at, True)
    if word == b"sent_again":
        return Grant(int(reply[1]) or None, True, sent_at, answered_at, sent_again=True)
    expect(word in _MARKED)
    return Marked(word == b"done", int(reply[1]) / 1000)


def _confirmed(name: str, replies: Any, *when: Any) -> tuple[Grant | Refusal | Marked, int]:
    """Read the answer to a request for a hold, and how many replicas confirmed it (``WAIT``)."""
    reply, replicas = replies
    return granted(name, reply, *when), int(replicas)


def renewed(count: int, _name: str, reply: Any, sent_at: float, answered_at: float, *_: object) -> Renewal:
    """Read which of so many holds were renewed."""
    expect(reply.__class__ is list and len(reply) == count)
    return Renewal([None if one == 0 else one == 1 for one in reply], sent_at, answered_at)


def released(name: str, reply: Any, _sent_at: float, _answered_at: float, repeated: bool) -> Release:
    """Read whether the hold was ended, who holds or held, if anybody, and which messages were promoted."""
    if reply == [b"released"] and not repeated:
        return _RELEASED
    word, *rest = reply
    held_by, promoted = _held_and_promoted(name, rest)
    return Release(_ENDED[word], held_by, repeated, promoted)


def _held_and_promoted(name: str, rest: list[Any]) -> tuple[Hold | None, tuple[Promotion, ...]]:
    held_by = None
    if rest and rest[0] in _HOLDERS:
        end = 2 + 2 * rest[1]
        held_by = _holds(name, *rest[:end])[0]
        rest = rest[end:]
    return held_by, _promoted(name, rest)


def _promoted(name: str, fields: list[Any]) -> tuple[Promotion, ...]:
    if not fields:
        return ()
    what, sends, kept, id_, text = fields
    expect(what == b"promoted")
    return (Promotion(name, id_.decode(), text, sends, kept),)


#: The words that say what became of an entry that was to be parked.
_PARKED = {
    word.encode(): word for word in ("parked", "repeated", "woken", "runs", "full", "unclaimed", "done")
}
#: Likewise of one that meets another call of its task in line.
_MET = {word.encode(): word for word in ("merged", "newer", "older")}

#: Likewise of one that was to leave.
_LEFT = {word.encode(): word for word in ("left", "released", "kept", "missing")}


def parked(name: str, reply: Any, *_: object) -> Parked:
    """Read what became of an entry that was to be parked."""
    word, *rest = reply
    if word in _MET:
        *place, value = rest
        return Parked(_MET[word], place[0] if place else 0, Hold(name, value, 0.0))
    place = rest.pop(0) if rest else 0
    held_by, promoted = _held_and_promoted(name, rest)
    return Parked(_PARKED[word], place, held_by, promoted)


def _granted_or_parked(name: str, reply: Any, *when: Any) -> Grant | Refusal | Marked | Parked:
    is_parked = reply[0] in {b"parked", b"unclaimed", b"merged"}
    return parked(name, reply) if is_parked else granted(name, reply, *when)


def _newest(_name: str, reply: Any, *_: object) -> str:
    word, *newer = reply
    expect(word in {b"newest", b"older"} and len(newer) == (word == b"older"))
    return newer[0].decode("utf-8", "replace") if newer else ""


def left(name: str, reply: Any, *_: object) -> tuple[str, bytes, Release]:
    """Read what became of an entry that was to leave its line."""
    word, entry, *rest = reply
    known = _LEFT[word]
    return known, entry, Release(known == "released", promoted=_promoted(name, rest))


def _moved(_name: str, reply: Any, *_: object) -> bool:
    (word,) = reply
    return {b"moved": True, b"missing": False}[word]


def _settled(name: str, reply: Any, *_: object) -> tuple[bool, tuple[Promotion, ...]]:
    word, *rest = reply
    return {b"settled": True, b"missing": False}[word], _promoted(name, rest)


def _rung(_name: str, reply: Any, *_: object) -> bool:
    expect(reply is None or len(reply) == 2)
    return reply is not None


def _swept(_name: str, reply: Any, *_: object) -> Sweep:
    word, next_ms, what, count, *fields = reply
    expect(word == b"swept" and what == b"lines" and len(fields) == 6 * count)
    held: list[Hold] = []
    broken: list[tuple[str, str]] = []
    promoted: list[Promotion] = []
    unstarted: list[Unstarted] = []
    elsewhere: list[tuple[str, str]] = []
    for at in range(0, 6 * count, 6):
        name = fields[at].decode("utf-8", "replace")
        kind, first, second, number, more = fields[at + 1 : at + 6]
        if kind == b"held":
            held.append(Hold(name, first, 0.0))
        elif kind == b"broken":
            broken.append((name, first.decode("utf-8", "replace")))
        elif kind == b"promoted":
            promoted.append(Promotion(name, first.decode(), second, number, more))
        elif kind == b"elsewhere":
            elsewhere.append((name, first.decode("utf-8", "replace")))
        else:
            queue = second.decode("utf-8", "replace")
            is_lost = {b"often": True, b"lies": False}[kind]
            unstarted.append(Unstarted(name, first.decode(), queue, number, is_lost))
    next_in = next_ms / 1000 if next_ms >= 0 else float("inf")
    found = tuple(held), tuple(broken), tuple(promoted), tuple(unstarted), tuple(elsewhere)
    return Sweep(next_in, *found)


def _homes(_name: str, reply: Any, *_: object) -> dict[str, Proof]:
    word, count, *fields = reply
    expect(word == b"homes" and len(fields) == 3 * count)
    spellings, names = ([each.decode("utf-8", "replace") for each in fields[at::3]] for at in (0, 1))
    proofs = [Proof(name, age / 1000) for name, age in zip(names, fields[2::3], strict=True)]
    return dict(zip(spellings, proofs, strict=True))


def _acts(_name: str, reply: Any, *_: object) -> list[Mapping[str, Any]]:
    return [*map(facts_in, reply)]


def _drained(_name: str, reply: Any, *_: object) -> tuple[int, tuple[Promotion, ...]]:
    word, count, what, given, *fields = reply
    expect(word == b"drained" and what == b"promoted" and len(fields) == 3 * given)
    texts = [field.decode("utf-8", "replace") for field in fields]
    return count, tuple(map(Promotion, texts[::3], texts[1::3], fields[2::3]))


def _waiting(name: str, reply: Any, *_: object) -> tuple[int, list[Waiter], bool]:
    word, length, what, is_more, *fields = reply
    expect(word == b"waiting" and what == b"more" and len(fields) % 3 == 0)
    entries = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
    return length, [_waiter(name, *each) for each in entries], bool(is_more)


def _waiter(name: str, id_: bytes, entry: bytes, sends: bytes) -> Waiter:
    kind, to, ttl, facts = [*entry.split(b"\0"), b"", b"0", b""][:4]
    hold = Hold(name, id_ + b"\0" + facts, int(ttl or 0) / 1000)
    return Waiter(hold.token, kind.decode(), to.decode("utf-8", "replace"), hold, int(sends))


def _released_and_stored(name: str, reply: Any, *when: Any) -> tuple[Release, bool]:
    is_stored, *release = reply
    return released(name, release, *when), {b"stored": True, b"unstored": False}[is_stored]


def _claims(_name: str, reply: Any, *_: object) -> tuple[str, list[tuple[str, str]]]:
    """Read the cursor of the next request, and the claims that were released."""
    word, cursor, what, count, *fields = reply
    expect(word == b"walked" and what == b"claims" and len(fields) == 2 * count)
    texts = [field.decode("utf-8", "replace") for field in fields]
    return cursor.decode(), list(zip(texts[::2], texts[1::2], strict=True))


def _found(name: str, reply: Any, *_: object) -> tuple[Hold, ...]:
    word, *holders = reply
    if word == b"free":
        return ()
    expect(word in {b"found", b"refused"})
    return _holds(name, *holders)


def _limited(name: str, reply: Any, *_: object) -> tuple[Limit | None, tuple[Promotion, ...]]:
    word, value, pttl, *rest = reply
    expect(word == b"limit")
    return Limit.of(value, pttl / 1000) if value else None, _promoted(name, rest)


def _happened(name: str, reply: Any, *_: object) -> History:
    word, forced, count, *fields = reply
    expect(word == b"happened" and len(fields) == 2 * count)
    refused = []
    for entry in fields[1::2]:
        times, first, last, holder, value = entry.split(b"\0", 4)
        token = holder.decode("utf-8", "replace")
        owner = owner_of(token) if "/" in token else short(token)
        hold = Hold(name, value, 0.0)
        refused.append(Refused(int(times), int(first) / 1000, int(last) / 1000, owner, hold))
    refused.reverse()  # of the same time, by the server's clock, the later one is behind
    refused.sort(key=lambda each: -each.last)
    return History(tuple(refused), facts_in(forced))


def _counted(_name: str, reply: Any, *_: object) -> Counts:
    numbers = {}
    for field, value in zip(reply[::2], reply[1::2], strict=True):
        task, *what = field.decode("utf-8", "replace").split("\0")
        with suppress(ValueError):  # a name with a quotation mark was cut
            task = json.loads(f'"{task}"')
        words = [task, *what]
        numbers[tuple(words)] = int(value)
    since = numbers.pop(("since",), None)
    return Counts(None if since is None else since / 1000, numbers)


def _surveyed(_name: str, reply: Any, *_: object) -> tuple[float, str, list[str]]:
    seconds, microseconds, cursor, *keys = [each.decode("utf-8", "replace") for each in reply]
    return int(seconds) + int(microseconds) / 1e6, cursor, keys


def _heads(names: Sequence[str], _name: str, reply: Any, *_: object) -> list[Line | None]:
    heads: list[Line | None] = []
    for name, length, *first in zip(names, reply[::4], reply[1::4], reply[2::4], reply[3::4], strict=False):
        heads.append(Line(name, length, _waiter(name, *first), length == 0) if first[0] else None)
    expect(0 < len(heads) * 4 == len(reply))
    return heads


def _values(count: int, replies: list[Any]) -> tuple[list[bytes | None], float]:
    """Read values, and the server's clock in ms."""
    values, (seconds, microseconds) = replies
    expect(len(values) == count and not any(value.__class__ is list for value in values))
    return values, int(seconds) * 1000 + int(microseconds) / 1000


def _count(replies: list[Any]) -> int:
    (number,) = _numbers(replies)
    return number


def _numbers(replies: list[Any]) -> list[int]:
    expect(all(reply.__class__ is int for reply in replies))
    return replies


def _members(_name: str, reply: Any, *_: object) -> list[bytes]:
    expect(reply.__class__ is list and None not in reply)
    return [*reply]


def _scored(_name: str, reply: Any, *_: object) -> list[tuple[bytes, float]]:
    # Protocol 3 has a list for each.
    flat = [*chain.from_iterable(reply)] if reply and reply[0].__class__ is list else reply
    expect(all(each.__class__ is bytes for each in flat))
    return [*zip(flat[::2], map(float, flat[1::2]), strict=True)]


def _scored_each(replies: list[Any]) -> list[list[tuple[bytes, float]]]:
    return [_scored("", reply) for reply in replies]


def _is_as_listed(hold: Hold) -> bool:
    """Whether a hold ends when the index says, as far as anybody judges by it.

    A run is listed as its claim was until its first renewal, and is late where half of its ttl has passed:
    one that may be late, or lives too long, is asked itself. Nobody judges a claim or a period by its end.
    What another program has put there is not listed, and what an operator holds is asked, too.
    """
    state = hold.state
    if state == RUNNING:
        ttl = hold.facts.get("ttl")
        return isinstance(ttl, int | float) and ttl / 2 < hold.expires_in <= ttl
    return state in {QUEUED, ACCEPTED} and hold.expires_in > 0


def listed(_name: str, reply: Any, *_: object) -> list[str]:
    """Read names, each once."""
    return list(dict.fromkeys(member.partition(b"\0")[0].decode("utf-8", "replace") for member in reply))


def _said(field: str, _name: str, reply: Any, *_: object) -> str | None:
    found = re.search(rb"^%b:(\S+)" % field.encode(), reply, re.MULTILINE)
    return None if found is None else found[1].decode()


def _holds(name: str, what: bytes, count: int, *fields: Any) -> tuple[Hold, ...]:
    """Read so many holders, each a value and its ttl."""
    value, pttl, *more = fields
    # -1: a foreign client's lock without a TTL.
    expires_in = pttl / 1000 if pttl >= 0 else float("inf")
    first = Hold(name, value, expires_in, _HOLDERS[what])
    if count == 1 and not more:
        return (first,)
    pairs = zip(more[::2], more[1::2], strict=True)
    holds = (first, *chain.from_iterable(_holds(name, what, 1, *pair) for pair in pairs))
    expect(len(holds) == count)
    return holds


def _times_of(merge: Merge) -> tuple[str, str]:
    """Return its pause, and its longest time, as scripts take them."""
    return str(round(1000 * merge.pause)), str(round(1000 * merge.longest))


@lru_cache(maxsize=256)
def in_ms(seconds: float) -> str:
    """Return a time as scripts take it."""
    return str(max(1, round(seconds * 1000)))

"""The lock store on Redis or Valkey, single server or Sentinel.

Keys (``N`` is the lock's name; its braces make one hash tag, so that all keys
of a lock live in one slot of a Cluster; the prefix is ``redislock`` unless
set otherwise, with Celery's ``global_keyprefix`` in front):

============================  ======  ==========================  ===========================================
key                           type    value                       expiry; written by
============================  ======  ==========================  ===========================================
``redislock:{N}:lock``        string  ``token NUL json``          lease or claim ttl; all that list a hold
``redislock:{N}:window``      string  ``token NUL json``          ``lock_period``; acquire, claim_and_push
``redislock:{N}:fence``       string  last strict fence           7 days; acquire (strict only)
``redislock:{N}:mark:MSG``    string  ``ending`` or ``done``      the mark's ttl; release, hand_on, mark_done
``redislock:{N}:note:NONCE``  string  empty: the message of this  three socket timeouts; claim_and_push
                                      token has been pushed
``redislock:index``           zset    name (window: ``name NUL    twice the longest of them at most; acquire,
                                      window``), score expiry ms  renew, hand_on, claim_and_push
============================  ======  ==========================  ===========================================

``GET 'redislock:{N}:lock'`` and ``TTL`` in redis-cli tell the story; so does
any client's ``SET NX`` lock on the same key, which excludes ours and is
excluded by it. No key is ever without a TTL.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.connection import Connections
from celery_redislock.locks.lease import Clock, boottime
from celery_redislock.locks.scripts import Call, Scripts
from celery_redislock.locks.store import Grant, Hold, LockStore, Mark, Marked, Refusal, Release, Renewal, Term

#: How long a strict fence outlives the last acquire that drew it: longer than any paused holder.
STRICT_FENCE_TTL = 7 * 24 * 3600.0

#: Renewals per call: bounds how long one script keeps the server (about 2.4 µs each).
RENEWALS_PER_CALL = 200


class RedisStore(LockStore):
    """Keeps locks on one Redis or Valkey server (6.2 or later), or on a Sentinel service.

    Every verb is one script, one round trip.
    """

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
        """
        self._connections = connections
        self._start, self._index = f"{prefix}:{{", f"{prefix}:index"
        self._strict_ms = _ms(STRICT_FENCE_TTL) if strict_fence else ""
        self._min_replicas = min_replicas
        self._clock = clock
        self._note_ms = _ms(3 * connections.socket_timeout)
        self._scripts = Scripts(connections, clock=clock)
        self.leads_to = connections.leads_to

    @property
    def server(self) -> str:
        return self._connections.server

    def acquire(self, name: str, token: str, ttl: float, **terms: Any) -> Grant | Refusal | Marked:
        keys, args = self._wish(name, token, ttl, **terms)
        read = self._scripts.begin("acquire", keys, args, name=name, replicas=self._min_replicas)
        return self._answer(name, token, read())

    def begin(
        self, name: str, token: str, ttl: float, **terms: Any
    ) -> Callable[[], Grant | Refusal | Marked]:
        keys, args = self._wish(name, token, ttl, **terms)
        read = self._scripts.begin("acquire", keys, args, name=name, replicas=self._min_replicas)
        return lambda: self._answer(name, token, read(self._clock()))

    def _wish(
        self,
        name: str,
        token: str,
        ttl: float,
        about: str,
        instead_of: str | None = None,
        period: float | None = None,
        message: str | None = None,
        starts_run: bool = False,
    ) -> tuple[list[str], list[str]]:
        """Return the keys and arguments of an acquire: no more than its script has to look at."""
        keys = [f"{self._start}{name}}}:lock", self._index]
        args, strict = [f"{token}\0{about}", _ms(ttl), name], self._strict_ms
        if instead_of or starts_run or period or message or strict:
            base = self._base(name)
            args += [f"{instead_of}\0" if instead_of else "", "1" if starts_run else ""]
            if message or period or strict:
                keys.append(f"{base}mark:{message or ''}")
            if period or strict:
                keys.append(base + "window")
                args.append(_ms(period) if period else "0")
            if strict:
                keys.append(base + "fence")
                args.append(strict)
        return keys, args

    def _answer(self, name: str, token: str, call: Call) -> Grant | Refusal | Marked:
        """Read the answer to an acquire."""
        reply: Any = call.reply
        if reply.__class__ is bytes:
            return _refusal(name, reply)
        is_repeated = reply.__class__ is list
        if is_repeated:
            status, reply, *left = reply
            if status == 3:
                return Marked(reply == 1, _seconds(*left))
        if call.replicas < self._min_replicas:
            self.release(name, token, undo=True)
            reason = f"only {call.replicas} of {self._min_replicas} replicas confirmed the lock"
            raise LockUnavailable(self.server, "acquire", reason)
        return Grant(abs(reply), reply < 0, call.sent_at, call.answered_at, is_repeated)

    @property
    def is_open(self) -> bool:
        return self._connections.is_open

    def reaches(self, address: Mapping[str, Any]) -> bool:
        return not self._min_replicas and self._connections.leads_to(address)

    def claim_and_push(
        self,
        name: str,
        token: str,
        ttl: float,
        *,
        queue: str,
        message: str,
        about: str,
        period: float | None = None,
    ) -> Grant | Refusal:
        base, nonce = self._base(name), token.rpartition("/")[2]
        keys = [base + "lock", self._index, f"{base}note:{nonce}", queue]
        args = [f"{token}\0{about}", _ms(ttl), name, self._note_ms, message]
        if period:
            keys, args = [*keys, base + "window"], [*args, _ms(period)]
        call = self._scripts.begin("claim_and_push", keys, args, name=name)()
        if call.reply.__class__ is bytes:
            return _refusal(name, call.reply)
        return Grant(0, False, call.sent_at, call.answered_at, call.reply == 4)

    def renew(self, terms: Sequence[Term], *, within: float | None = None) -> Renewal:
        renewed: list[bool | None] = []
        sent_at = answered_at = self._clock()
        for start in range(0, len(terms), RENEWALS_PER_CALL):
            batch = terms[start : start + RENEWALS_PER_CALL]
            call = self._scripts.begin(
                "renew",
                [*(self._base(term.name) + "lock" for term in batch), self._index],
                [part for term in batch for part in (term.token, _ms(term.ttl), term.name)],
                name=batch[0].name,
                within=within,
            )()
            renewed += [None if answer == 0 else answer == 1 for answer in call.reply]
            sent_at, answered_at = (call.sent_at if start == 0 else sent_at), call.answered_at
        return Renewal(renewed, sent_at, answered_at)

    def release(self, name: str, token: str, *, undo: bool = False, mark: Mark | None = None) -> Release:
        keys, args = self._farewell(name, token, mark, undo=undo)
        return _release(name, self._scripts.begin("release", keys, args, name=name)())

    def release_and_store(
        self, name: str, token: str, key: str, result: str, seconds: int, *, mark: Mark | None = None
    ) -> tuple[Release, bool]:
        """Release, and store a task's result; also whether that, or a success before it, is stored now.

        The result is announced on the channel ``key``, and lives for so many seconds, with 0 for ever.
        """
        keys, args = self._farewell(name, token, mark)
        call = self._scripts.begin(
            "release_and_store", [*keys, key], [*args, result, str(seconds)], name=name
        )()
        is_stored, status, *held = call.reply
        return Release(status > 0, _hold(name, *held) if held else None, call.repeated), is_stored == 1

    def _farewell(
        self, name: str, token: str, mark: Mark | None, *, undo: bool = False
    ) -> tuple[list[str], list[str]]:
        """Return the keys and arguments of a release."""
        keys, args = [f"{self._start}{name}}}:lock", self._index], [token + "\0", name]
        if undo or mark is not None:
            base = self._base(name)
            key, *left = _left(base, mark)
            keys, args = [*keys, key, *[base + "window"] * undo], [*args, *left]
        return keys, args

    def hand_on(
        self, name: str, old: str, new: str, ttl: float, *, about: str, mark: Mark | None = None
    ) -> Release:
        base = self._base(name)
        keys = [base + "lock", self._index, f"{base}mark:{new}"]
        args: list[object] = [old, new, _ms(ttl), about, name]
        if mark is not None:
            key, *left = _left(base, mark)
            keys, args = [*keys, key], [*args, *left]
        return _release(name, self._scripts.begin("hand_on", keys, args, name=name)())

    def mark_done(self, name: str, message: str, ttl: float) -> None:
        key = f"{self._base(name)}mark:{message}"
        self._scripts.send("mark_done", "SET", key, "done", "PX", _ms(ttl), awaited=False)

    def inspect(self, name: str, *, to_decide: bool = False) -> Hold | None:
        base = self._base(name)
        keys = [base + "lock", base + "window"]
        reply = self._scripts.begin("inspect", keys, [int(to_decide)], name=name)().reply
        return _hold(name, *reply) if reply else None

    def force_release(self, name: str, *, expected: str | None = None) -> Release:
        base = self._base(name)
        keys = [base + "lock", base + "window", self._index]
        args = [expected or "", name, int(expected is None)]
        return _release(name, self._scripts.begin("force_release", keys, args, name=name)())

    def names(self, *, limit: int = 1000) -> list[str]:
        # A lock that is held and has a window is on it twice.
        members = self._scripts.begin("names", [self._index], [2 * limit], name=self._index)().reply
        names = dict.fromkeys(member.partition(b"\0")[0].decode("utf-8", "replace") for member in members)
        return list(names)[:limit]

    def eviction_policy(self) -> str | None:
        # INFO, not CONFIG GET: managed servers often refuse the latter.
        found = re.search(rb"maxmemory_policy:(\S+)", self._scripts.send("info", "INFO", "memory"))
        return found[1].decode() if found else None

    def close(self) -> None:
        self._connections.drop_idle()

    def _base(self, name: str) -> str:
        return f"{self._start}{name}}}:"


def _left(base: str, mark: Mark | None) -> tuple[str, str, str]:
    """Return what a script leaves behind: a mark's key, its state, and its ttl, 0 for none."""
    if mark is None:
        return f"{base}mark:", "", "0"
    return f"{base}mark:{mark.message}", "done" if mark.is_done else "ending", _ms(mark.ttl)


def _release(name: str, call: Call) -> Release:
    """Read a script's answer: what became of the hold, and who holds or held, if anybody."""
    if call.reply.__class__ is int:
        return Release(call.reply > 0, None, call.repeated)
    status, *held = call.reply
    return Release(status > 0, _hold(name, *held), call.repeated)


def _refusal(name: str, reply: bytes) -> Refusal:
    left, is_window, value = reply.split(b" ", 2)
    return Refusal(_hold(name, value, int(left), int(is_window)))


def _hold(name: str, value: bytes, pttl: int, is_window: int = 0) -> Hold:
    return Hold.parse(name, value, _seconds(pttl), is_window=is_window == 1)


@lru_cache(maxsize=256)
def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def _seconds(pttl: int) -> float:
    # -1: a foreign client's lock without a TTL.
    return pttl / 1000 if pttl >= 0 else float("inf")

"""A store under test, and what a test may do behind its back: age a lock, look at raw keys.

Every verb called through :attr:`StoreCase.store` is followed by a scan of the
test's keys: none but those of lines may be without a time to live, whatever was just done.
"""

import json
import os
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, cast

import pytest
import redis

from celery_redislock.locks import LockStore, MemoryStore, connect
from celery_redislock.store.store import Entry, Grant, Hold, Parked, Promotion, Refusal, Sweep
from tests.clocks import AheadClock
from tests.cluster import Cluster
from tests.facts import wait_until
from tests.servers import EmbeddedServer

#: Tokens of as many jobs.
JOBS = A, B, C, D, E, F = tuple(f"job-{each}/1" for each in "abcdef")

#: Where entries that are given are published from.
HOME = "amqp:here"

#: What a claim says that a line has handed over.
IN_LINE = '{"state":"queued","line":1}'

#: What holders say about themselves in these tests.
FACTS = {"host": "here", "state": "running"}
ABOUT = json.dumps(FACTS)


def granted(answer: object) -> Grant:
    """The answer, which must be a grant."""
    assert isinstance(answer, Grant), answer
    return answer


def refused(answer: object) -> Refusal:
    """The answer, which must be a refusal."""
    assert isinstance(answer, Refusal), answer
    return answer


def hold_of(
    token: str, facts: object, expires_in: float = 1.0, *, name: str = "n", is_period: bool = False
) -> Hold:
    """A holder who wrote these facts about itself."""
    return Hold(name, f"{token}\0{json.dumps(facts)}".encode(), expires_in, is_period)


class StoreCase(ABC):
    """One kind of store, with the means to check it."""

    store: LockStore

    def queue(self, name: str = "q") -> str:
        """The full name of a queue of this test, as an entry has it."""
        return name

    def take(self, token: str, ttl: float = 30.0, *, name: str = "n", **options: Any) -> Any:
        """Acquire, with the arguments most tests do not care about."""
        return self.store.acquire(name, token, ttl, facts=ABOUT, **options)

    def holder(self, name: str = "n") -> str | None:
        """The token that holds now."""
        hold = self.store.inspect(name)
        return None if hold is None else hold.token

    @abstractmethod
    def expire(self, name: str = "n", part: str = "lock") -> None:
        """Let the lock's hold (or period, or ``mark:MESSAGE``) reach its end, as a fact."""

    @abstractmethod
    def expire_permit(self, token: str, name: str = "n") -> None:
        """Let the hold of one of several holders reach its end."""

    @abstractmethod
    def remaining(self, name: str = "n", part: str = "lock") -> float | None:
        """Seconds the hold (or period) has left on the server; ``None`` if there is none."""

    @abstractmethod
    def pushed(self, queue: str = "q") -> list[str]:
        """What lies in a queue, or a bell, of the broker: the next one to be received is the last."""

    @abstractmethod
    def lines(self) -> list[str]:
        """The names of the locks whose lines are looked at sometime."""

    @abstractmethod
    def make_due(self, name: str = "n") -> None:
        """Let the time come when a line that is looked at sometime is looked at."""

    @abstractmethod
    def make_late(self, id_: str, name: str = "n") -> None:
        """Let the time come until which an entry of a line waits at most."""

    @abstractmethod
    def come_due(self, id_: str, name: str = "n") -> None:
        """Let the time come before which an entry of a line does not start."""

    @abstractmethod
    def bounded(self, name: str = "n") -> set[str]:
        """The entries of a line that wait for some time at most."""

    @abstractmethod
    def check_every_key_expires(self) -> None:
        """Assert the invariant of all invariants."""


class MemoryCase(StoreCase):
    """The store in memory, on a clock that a test moves ahead."""

    def __init__(self) -> None:
        self.clock = AheadClock()
        self.memory = MemoryStore(clock=self.clock)
        self.store = _watched(self.memory, self)

    def expire(self, name: str = "n", part: str = "lock") -> None:
        self.clock.advance((self.remaining(name, part) or 0.0) + 0.001)

    def expire_permit(self, token: str, name: str = "n") -> None:
        holders = self.memory._holders[name]
        holders[token] = holders[token]._replace(until=self.clock())

    def remaining(self, name: str = "n", part: str = "lock") -> float | None:
        ends = {
            "lock": [held.until for held in self.memory._holders[name].values()],
            "period": [entry[1] for key, entry in self.memory._periods.items() if key == name],
        }
        marks = [entry[1] for key, entry in self.memory._marks.items() if f"mark:{key[1]}" == part]
        left = max(ends.get(part, marks), default=0.0) - self.clock()
        return left if left > 0 else None

    def pushed(self, queue: str = "q") -> list[str]:
        return list(self.memory.queues[queue])

    def lines(self) -> list[str]:
        return sorted(self.memory._due)

    def make_due(self, name: str = "n") -> None:
        assert name in self.memory._due
        self.memory._due[name] = self.clock()

    def make_late(self, id_: str, name: str = "n") -> None:
        assert id_ in self.bounded(name)
        self.memory._change(name, id_, until=self.clock())

    def come_due(self, id_: str, name: str = "n") -> None:
        self.memory._change(name, id_, due=0.0)

    def bounded(self, name: str = "n") -> set[str]:
        return {each.id for each in self.memory._lines.get(name, ()) if each.until < float("inf")}

    def check_every_key_expires(self) -> None:
        entries = [*self.memory._periods.values(), *self.memory._marks.values()]
        holders = [held.until for holders in self.memory._holders.values() for held in holders.values()]
        assert max([expiry for _, expiry in entries] + holders, default=0.0) < float("inf")


#: How keys end that say what happened; they outlive it.
HISTORY = (":counts", ":refusals", ":acts", "}:refused", "}:forced")


class RedisCase(StoreCase):
    """The store on a server, with a client beside it."""

    def __init__(
        self,
        url: str,
        options: str = "",
        *,
        client_url: str | None = None,
        named: Any = None,
        beside: redis.Redis | None = None,
        **store_options: Any,
    ) -> None:
        """``named``: a client, or a callable, that names the server in place of its URL."""
        self.url = url
        self.prefix = f"test-{secrets.token_hex(6)}"
        full_url = f"{url}{'&' if '?' in url else '?'}{options}" if options else url
        self.redis = connect(named or full_url, prefix=self.prefix, **store_options)
        self.store = _watched(self.redis, self)
        self.client: redis.Redis = beside or redis.Redis.from_url(client_url or url)

    def key(self, name: str = "n", part: str = "lock") -> str:
        """The raw key."""
        return f"{self.prefix}:{{{name}}}:{part}"

    def queue(self, name: str = "q") -> str:
        return f"{self.prefix}:{name}"

    def keys(self) -> list[str]:
        """All raw keys of this test, but for notes of requests, which outlive them, and of what happened."""
        return [key for key in self.all_keys() if not key.endswith(HISTORY)]

    def all_keys(self) -> list[str]:
        """Those, and the notes of what happened."""
        found = self.client.scan_iter(match=f"{self.prefix}:*", count=1000)
        return sorted(key.decode() for key in found if b":note:" not in key)

    def expire(self, name: str = "n", part: str = "lock") -> None:
        key = self.key(name, part)
        self.client.pexpire(key, 1)
        assert wait_until(lambda: not self.client.exists(key), 5)

    def expire_permit(self, token: str, name: str = "n") -> None:
        permits = self.key(name, "permits")
        assert self.client.zadd(permits, {token: 1}, xx=True, ch=True) == 1
        if self.client.zcount(permits, 2, "+inf") == 0:
            # The marker lives exactly as long as the last of them, and so do these.
            self.client.delete(self.key(name), permits, self.key(name, "holders"))

    def remaining(self, name: str = "n", part: str = "lock") -> float | None:
        pttl = self.client.pttl(self.key(name, part))
        assert pttl != -1, "a key without a ttl"
        return None if pttl == -2 else pttl / 1000

    def pushed(self, queue: str = "q") -> list[str]:
        found: Any = self.client.lrange(self.queue(queue), 0, -1)
        return [text.decode() for text in found]

    def lines(self) -> list[str]:
        found: Any = self.client.zrange(f"{self.prefix}:lines", 0, -1)
        return sorted(name.decode() for name in found)

    def make_due(self, name: str = "n") -> None:
        assert self.client.zadd(f"{self.prefix}:lines", {name: 1}, xx=True, ch=True) == 1

    def make_late(self, id_: str, name: str = "n") -> None:
        assert self.client.zadd(self.key(name, "until"), {id_: 1}, xx=True, ch=True) == 1

    def come_due(self, id_: str, name: str = "n") -> None:
        entry: Any = self.client.hget(self.key(name, "parked"), id_)
        assert re.search(rb'{"due":[1-9]\d*', entry)
        self.client.hset(self.key(name, "parked"), id_, re.sub(rb'{"due":\d+', b'{"due":1', entry, count=1))

    def bounded(self, name: str = "n") -> set[str]:
        found: Any = self.client.zrange(self.key(name, "until"), 0, -1)
        return {id_.decode() for id_ in found}

    def check_every_key_expires(self) -> None:
        # What waits in a line is data, as what is in a queue: it lives until it is served.
        data = ("}:line", "}:parked", "}:sent", "}:until", "}:merge", ":lines", self.queue())
        keys = [key for key in self.all_keys() if key not in self.foreign and not key.endswith(data)]
        assert [key for key in keys if self.client.pttl(key) == -1] == []

    #: Keys the test itself wrote without a ttl.
    foreign: tuple[str, ...] = ()

    def close(self) -> None:
        """Remove this test's keys and close its connections."""
        for key in self.all_keys():
            self.client.delete(key)
        self.client.close()
        self.redis.close()

    @property
    def scripts(self) -> dict[str, Any]:
        """The scripts the store sends; a test may put a mutant among them."""
        return self.redis._scripts._scripts


class ClusterCase(RedisCase):
    """The store on a Cluster, with a client of all its nodes beside it."""

    def __init__(self, cluster: Cluster, **store_options: Any) -> None:
        super().__init__(cluster.url, beside=cluster.client, **store_options)

    def all_keys(self) -> list[str]:
        # The slots that were ever used are kept.
        return [key for key in RedisCase.all_keys(self) if key != f"{self.prefix}:slots"]

    def close(self) -> None:
        """Remove this test's keys and close its connections; the client is the Cluster's."""
        for key in RedisCase.all_keys(self):
            self.client.delete(key)
        self.redis.close()

    def queue(self, name: str = "q") -> str:
        # In the slot of the lock, as a bell is; a broker's queue never is on a Cluster.
        return self.key(part=name)

    def lines(self) -> list[str]:
        return sorted(name.decode() for key in self._indexes() for name in self.client.zrange(key, 0, -1))

    def make_due(self, name: str = "n") -> None:
        slot: Any = self.client.keyslot(self.key(name))
        (index,) = (key for key in self._indexes() if self.client.keyslot(key) == slot)
        assert self.client.zadd(index, {name: 1}, xx=True, ch=True) == 1
        self.client.zadd(f"{self.prefix}:slots", {str(slot): 1}, xx=True)

    def _indexes(self) -> list[str]:
        """Each slot has an index of its lines."""
        return [key for key in self.keys() if key.endswith(":lines")]


class QuorumCase(StoreCase):
    """The store on several servers, with a client beside each."""

    def __init__(self, urls: Sequence[str], **store_options: Any) -> None:
        self.prefix = f"test-{secrets.token_hex(6)}"
        self.quorum = connect(urls, prefix=self.prefix, **store_options)
        self.store = _watched(self.quorum, self)
        self.each = [RedisCase(url) for url in urls]
        for case in self.each:
            case.prefix = self.prefix

    @property
    def tokens(self) -> list[str | None]:
        """Who holds the lock ``n`` on each server."""
        values: list[Any] = [case.client.get(case.key()) for case in self.each]
        return [value and value.partition(b"\0")[0].decode() for value in values]

    def expire(self, name: str = "n", part: str = "lock") -> None:
        for case in self.each:
            case.expire(name, part)

    def remaining(self, name: str = "n", part: str = "lock") -> float | None:
        left = [case.remaining(name, part) or 0.0 for case in self.each]
        return sorted(left)[len(left) // 2] or None

    def check_every_key_expires(self) -> None:
        for case in self.each:
            case.check_every_key_expires()

    def close(self) -> None:
        """Remove this test's keys and close its connections."""
        for case in self.each:
            case.close()
        self.quorum.close()

    def _nothing(self, *_: object) -> Any:
        raise NotImplementedError("a quorum keeps neither lines nor permits")

    expire_permit = pushed = lines = make_due = make_late = come_due = bounded = _nothing


def park(
    case: StoreCase, id_: str, kind: str = "push", *,
    to: str | None = None, name: str = "n", facts: str = IN_LINE, text: str | None = None, store: Any = None,
    **options: Any,
) -> Parked:  # fmt: skip
    """Park an entry whose text is its id, with what most tests do not care about."""
    to = to or {"push": case.queue(), "give": HOME, "ring": case.queue("q:bell"), "hold": ""}[kind]
    entry = Entry(kind, to, options.pop("ttl", 30.0), facts, text or id_)
    parked: Parked = (store or case.store).park(
        name, id_, entry, **{"nonce": secrets.token_hex(8), **options}
    )
    return parked


def line_up(case: StoreCase, *ids: str, kind: str = "push", **options: Any) -> None:
    """Let A hold the lock, and these wait."""
    case.take(A)
    for id_ in ids:
        park(case, id_, kind, **options)


def in_line(case: StoreCase, name: str = "n", *, handed_on: bool = False) -> list[str]:
    """The ids that wait, in order; or of those that were handed the lock and have not started."""
    length, waiters = case.store.waiting(name, handed_on=handed_on)
    assert handed_on or length == len(waiters)
    return [waiter.id for waiter in waiters]


def at_home(case: Any, home: str = HOME) -> list[Promotion]:
    """Let the store's process publish what it is given, and note it."""
    store = case.memory if isinstance(case, MemoryCase) else case.redis
    given: list[Promotion] = []
    store.home = home
    store.on_promoted = given.extend
    return given


def look(case: StoreCase, name: str = "n") -> Sweep:
    """Let a worker look at the line."""
    case.make_due(name)
    return case.store.sweep()


def server_names() -> list[str]:
    """The servers the contract is tested on: embedded, redis-server, and what the environment names."""
    more = os.environ.get("CELERY_REDISLOCK_TEST_SERVERS", "").replace(",", " ").split()
    return ["embedded", "redis-server", *more]


def binary_named(name: str) -> str | None:
    """The server binary to start for a name, ``None`` for the embedded one; skips where there is none."""
    if name == "embedded":
        return None
    found = shutil.which(name)
    if found is None:
        reason = (
            f"no server {name!r}: install one (apt-get install redis-server, brew install redis), "
            "or correct CELERY_REDISLOCK_TEST_SERVERS"
        )
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def start_server(name: str, **options: Any) -> EmbeddedServer:
    """Start a server of one's own from a name in :func:`server_names`; the caller stops it."""
    return EmbeddedServer(binary=binary_named(name), **options).start()


def _watched(store: LockStore, case: StoreCase) -> LockStore:
    """The store, checking the invariant after every verb."""

    class Watched:
        def __getattr__(self, name: str) -> Any:
            value = getattr(store, name)
            return _then_check(value, case) if callable(value) else value

    return cast("LockStore", Watched())


def _then_check(verb: Callable[..., Any], case: StoreCase) -> Callable[..., Any]:
    @wraps(verb)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        finally:
            case.check_every_key_expires()

    return checked

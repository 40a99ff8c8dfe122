"""The lock store on a Redis or Valkey Cluster: each lock on the node that serves its slot.

All keys of a lock have its name as their hash tag, so they are in one slot, and the scripts of one server run
there as they are. What stands beside the locks of a server, the index of locks and that of lines, stands here
in each slot (:func:`tag_of`), so that a line never stands without its entry. One key more has the slots:

===================  ======  =============================  ==============================================
``redislock:slots``  zset    slot, score when to look at    stays; slot_used, before the first lock of a
                             its lines, ms, or infinity     process in it, and before each parking
===================  ======  =============================  ==============================================

A slot that is being moved refuses scripts (TRYAGAIN, ASK), a node that has died does not answer, and one that
has lost a slot says who has it (MOVED). Each of these is asked again under the same token, within two socket
timeouts, or four where it waits for a bell. Every script declares all keys that it may touch, so that a slot
that is being moved refuses it as a whole.
"""

import binascii
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count
from typing import Any, TypeVar

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from celery_redislock.exceptions import LockOptionError, LockUnavailable
from celery_redislock.store.redisstore import RENEWALS_PER_CALL, RedisStore, in_ms, listed, renewed
from celery_redislock.store.store import (
    Counts,
    Hold,
    Line,
    Parked,
    Promotion,
    Renewal,
    Sweep,
    Term,
)
from celery_redislock.wire.clock import Clock, boottime
from celery_redislock.wire.connection import Connections
from celery_redislock.wire.nodes import Nodes
from celery_redislock.wire.scripts import OTHER_SHAPES, Scripts, T, Understand, digested
from celery_redislock.wire.wire import ErrorReply, expect

Told = TypeVar("Told", Hold, Line)

#: What a node says that another attempt may find otherwise.
PASSING = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "READONLY", "MASTERDOWN", "UNBLOCKED")

#: Seconds between two attempts while a slot is being moved, or its node elected.
PAUSE = 0.02

#: Seconds after which a process writes down again that a slot is in use.
REMEMBERED = 60.0

#: Parts of a lock's keys that its scripts derive. One that is not declared stops a script halfway where its
#: slot is being moved.
_DERIVED = (
    *("line", "sent", "parked", "until", "permits", "holders", "limit", "period", "fence"),
    *("refused", "forced"),
)

#: What stands beside the locks of a server, and here in each slot.
_BESIDE = ("index", "lines", "counts", "refusals")

#: The scripts of a store on a Cluster, beside those of any.
OF_SLOTS = ("slot_used", "slots_due")

#: Takes off a script's keys those that are only declared.
_PROLOGUE = "for _ = 1, tonumber(table.remove(ARGV)) do\n  table.remove(KEYS)\nend\n"

#: Seconds, as in ``lua/line.lua``: the longest time until a slot with lines is looked at again.
LATEST = 2.0

#: Milliseconds until somebody looks at the line of one who is about to stand in it.
LOOK_IN_MS = in_ms(LATEST)

#: Slots that are swept at a time.
SLOTS = 100


@dataclass
class Asking:
    """A request that is made again until a node answers, or the time is up.

    Attributes:
        server: for errors.
        clock: by which the time is up at ``give_up``.
        was_sent: an attempt may have been carried out.
    """

    server: str
    clock: Clock
    give_up: float
    was_sent: bool = False

    def needs_nodes(self, error: LockUnavailable | redis.RedisError) -> bool:
        """Whether the nodes are to be found again before the next attempt.

        Raises:
            LockUnavailable: there is no next one: this was an answer, or the time is up.
        """
        code = ""
        if isinstance(error, LockUnavailable):
            lost = error
            code = error.reason.partition(" ")[0]
            # Also where it was carried out, and what has to confirm it was refused.
            if code not in PASSING and (error.was_refused or isinstance(error.__cause__, ErrorReply)):
                raise error
            self.was_sent = self.was_sent or (error.was_sent and not error.was_refused)
        else:  # of redis-py, which found no node
            lost = LockUnavailable(self.server, "finding its nodes", str(error))
            lost.was_sent = self.was_sent
        if self.clock() + PAUSE >= self.give_up:
            raise lost
        return code not in {"TRYAGAIN", "ASK"}


class ClusterScripts(Scripts):
    """Runs each script on the node that serves the slot of its first key. Thread-safe."""

    def __init__(
        self, nodes: Nodes, *, prefix: str, names: Sequence[str], packages: Sequence[str],
        clock: Clock = boottime,
    ) -> None:  # fmt: skip
        """Run the scripts of these names on these nodes; *prefix*: of the indexes."""
        self._nodes = nodes
        self._of_node: dict[int, Scripts] = {}
        self._names = names
        self._packages = packages
        self._clock = clock
        self._prefix = prefix

    def begin(
        self, operation: str, keys: Sequence[str], args: Sequence[str], understand: Understand[T],
        *, name: str, confirm: Sequence[str] = (), within: float | None = None,
    ) -> Callable[[], T]:  # fmt: skip
        """As :meth:`Scripts.begin`; nothing is sent before the returned function is called."""
        slot = key_slot(keys[0].encode())
        words = in_slot(self._prefix, slot, keys, args)
        asked = partial(self._once, operation, *words, understand, name=name, confirm=confirm)
        return partial(self._until_answered, slot, asked, 0.0, within)

    def on_node(
        self, operation: str, calls: Mapping[int, tuple[Sequence[str], Sequence[str]]], within: float | None
    ) -> tuple[dict[int, Any], float, float]:
        """Run a script in several slots of one node by one request, once.

        *calls* are the keys and arguments by their slots. Returns the answers of those that have carried it
        out, and when they were asked and had answered; raises as :meth:`Scripts.at_once`.
        """
        words = [in_slot(self._prefix, slot, *call) for slot, call in calls.items()]
        replies, sent_at, answered_at = self._at(next(iter(calls))).at_once(operation, words, within)
        told = zip(calls, replies, strict=True)
        answers = {slot: reply for slot, reply in told if reply.__class__ is not ErrorReply}
        return answers, sent_at, answered_at

    def send(
        self, operation: str, *command: str, understand: Understand[Any] | None = None, waits: float = 0.0
    ) -> Any:
        """As :meth:`Scripts.send`: to the node of the command's key; without one, to any."""
        has_key = command[0] in {"SET", "BLPOP", "ZRANGEBYSCORE"}
        slot = key_slot(command[1].encode()) if has_key else 0

        def asked(scripts: Scripts, _was_sent: bool, _within: float) -> Any:
            return scripts.send(operation, *command, understand=understand, waits=waits)

        return self._until_answered(slot, asked, waits, None)

    def pipeline(
        self, operation: str, commands: Sequence[Sequence[str]], understand: Callable[[list[Any]], T]
    ) -> T:
        """As :meth:`Scripts.pipeline`: to the node of the commands' keys, which are in one slot."""

        def asked(scripts: Scripts, _was_sent: bool, _within: float) -> T:
            return scripts.pipeline(operation, commands, understand)

        return self._until_answered(key_slot(commands[0][1].encode()), asked, 0.0, None)

    def _once(
        self, operation: str, keys: Sequence[str], args: Sequence[str], understand: Understand[T],
        scripts: Scripts, was_sent: bool, within: float, **more: Any,
    ) -> T:  # fmt: skip
        """Make one attempt; ``was_sent``: one before it may have been carried out."""
        read = repeated(understand, was_sent)
        return scripts.begin(operation, keys, args, read, within=within, **more)()

    def _until_answered(
        self, slot: int, asked: Callable[[Scripts, bool, float], T], waits: float, within: float | None
    ) -> T:
        """Ask the node of a slot, whichever that is by then, until it answers or the time is up."""
        patience = 2 * (self._nodes.socket_timeout + waits)
        give_up = self._clock() + (patience if within is None else min(within, patience))
        asking = Asking(self._nodes.server, self._clock, give_up)
        while True:
            try:
                return asked(self._at(slot), asking.was_sent, max(0.002, give_up - self._clock()))
            except (LockUnavailable, redis.RedisError) as error:
                if asking.needs_nodes(error):
                    with suppress(redis.RedisError):
                        self._nodes.look_again()
            time.sleep(PAUSE)

    def _at(self, slot: int) -> Scripts:
        connections = self._nodes.of_slot(slot)
        scripts = self._of_node.get(id(connections))
        if scripts is None:
            scripts = _Declaring(connections, names=self._names, packages=self._packages, clock=self._clock)
            self._of_node[id(connections)] = scripts
        return scripts


class _Declaring(Scripts):
    """Runs scripts that declare more keys than they read by their number."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(connections, **options)
        self._scripts = declaring(self._scripts)


def declaring(scripts: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return scripts that are told how many of their keys are only declared."""
    return {name: digested(_PROLOGUE + text) for name, (text, _) in scripts.items()}


def repeated(understand: Understand[T], was_sent: bool) -> Understand[T]:
    """Return what reads an answer; ``was_sent``: an attempt before it may have been carried out."""

    def read(name: str, reply: Any, sent_at: float, answered_at: float, repeated: bool) -> T:
        return understand(name, reply, sent_at, answered_at, repeated or was_sent)

    return read


def in_slot(
    prefix: str, slot: int, keys: Sequence[str], args: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the keys and arguments of a script as they are sent to the node of this slot.

    Declared are the keys that it derives from those of its locks, and one that is never there.

    Because of that one, a slot that is being moved refuses every script before its first write, also one
    that finds its locks in an index (Redis 7.0 to Valkey 9, ``cluster.c``, ``getNodeByQuery``: of several
    keys, one is not there).
    """
    indexes = {f"{prefix}:{what}": index_of(prefix, slot, what) for what in _BESIDE}
    keys = [indexes.get(key, key) for key in keys]
    stems = [key[: -len("lock")] for key in keys if key.endswith("}:lock")]
    derived = [stem + part for stem in stems for part in _DERIVED]
    never = next(iter(indexes.values())) + ":never"
    declared = [key for key in (*derived, *indexes.values(), never) if key not in keys]
    return [*keys, *declared], [*args, str(len(declared))]


def tag_of(slot: int) -> str:
    """Return the text that stands for a slot, as a hash tag, in every process: the first number in it."""
    return _tags()[slot]


@cache
def _tags() -> dict[int, str]:
    # All at once, in about a tenth of a second: two threads that begin together find the same ones.
    found: dict[int, str] = {}
    numbers = count()
    while len(found) < REDIS_CLUSTER_HASH_SLOTS:
        text = str(next(numbers))
        found.setdefault(binascii.crc_hqx(text.encode(), 0) % REDIS_CLUSTER_HASH_SLOTS, text)
    return found


class ClusterStore(RedisStore):
    """Keeps locks on a Redis or Valkey Cluster.

    The verbs of :class:`RedisStore`; those that look at many locks look at each slot in turn.
    """

    _scripts: ClusterScripts

    def __init__(self, nodes: Nodes, *, prefix: str = "redislock", **options: Any) -> None:
        """Keep locks on these nodes; arguments as for :class:`RedisStore`, and raises likewise."""
        self._nodes = nodes
        self._slots = f"{prefix}:slots"
        self._registered: dict[int, float] = {}
        self._empty: set[int] = set()
        super().__init__(nodes, prefix=prefix, **options)  # type: ignore[arg-type]  # as a RedisStore asks it

    def _runner(self, names: Sequence[str], packages: Sequence[str]) -> ClusterScripts:
        return ClusterScripts(
            self._nodes, prefix=self.prefix, names=(*names, *OF_SLOTS), packages=packages, clock=self._clock
        )

    def begin(self, name: str, token: str, ttl: float, **terms: Any) -> Any:
        """As :meth:`LockStore.begin`, once it is noted that the slot is in use.

        Two round trips for the first lock of a process in a slot.
        """
        self._register(name)
        return super().begin(name, token, ttl, **terms)

    def park(self, name: str, id: str, *args: Any, **how: Any) -> Parked:  # noqa: A002
        """As :meth:`LockStore.park`; two round trips: the slot is noted before anything stands in it."""
        self._register(name, is_line=True)
        return super().park(name, id, *args, **how)

    def renew(self, terms: Sequence[Term], *, within: float | None = None) -> Renewal:
        """As :meth:`LockStore.renew`; one script a slot, one round trip a node.

        What a node has not carried out at once is asked again, slot by slot. Those of a node that is away are
        unanswered.
        """
        by_node: dict[object, dict[int, list[int]]] = {}
        for at, term in enumerate(terms):
            slot = self._slot_of(term.name)
            by_node.setdefault(self._nodes.name_of(slot), {}).setdefault(slot, []).append(at)
        renewed: list[bool | None] = [None] * len(terms)
        unanswered: dict[int, str] = {}
        answers: list[Renewal] = []
        for slots in by_node.values():
            trouble: LockUnavailable | None = None
            of_slots = {slot: [terms[at] for at in places] for slot, places in slots.items()}
            left = within
            try:
                told = self._renew_at_once(of_slots, within)
            except (redis.RedisError, OSError, *OTHER_SHAPES):
                told = {}
                left = (within or self.patience) / 2
            for slot, places in slots.items():
                try:
                    if trouble is not None:
                        raise trouble
                    answers.append(told.get(slot) or super().renew(of_slots[slot], within=left))
                except LockUnavailable as error:
                    trouble = error
                    unanswered.update(dict.fromkeys(places, error.reason))
                else:
                    for at, one in zip(places, answers[-1].renewed, strict=True):
                        renewed[at] = one
        if terms and not answers:
            raise LockUnavailable(self.server, "renew", next(iter(unanswered.values())))
        now = self._clock()
        sent_at = min((answer.sent_at for answer in answers), default=now)
        answered_at = max((answer.answered_at for answer in answers), default=now)
        return Renewal(renewed, sent_at, answered_at, unanswered)

    def _renew_at_once(
        self, of_slots: Mapping[int, Sequence[Term]], within: float | None
    ) -> dict[int, Renewal]:
        """Renew in several slots of one node by one request; return the answers of those that it had."""
        calls = {
            slot: self._to_renew(terms) for slot, terms in of_slots.items() if len(terms) <= RENEWALS_PER_CALL
        }
        if len(calls) <= 1:
            return {}
        replies, *when = self._scripts.on_node("renew", calls, within)
        return {slot: renewed(len(of_slots[slot]), "", reply, *when) for slot, reply in replies.items()}

    def release_claims(self, owners: Collection[str]) -> Iterator[tuple[str, str]]:
        """As :meth:`LockStore.release_claims`, in each slot in turn."""
        for slot in self._in_use():
            yield from RedisStore.release_claims(self._view(slot), owners)

    def names(self, *, limit: int = 1000) -> list[str]:
        """As :meth:`LockStore.names`, of each slot in turn: their order is that of slots."""
        return self._of_each(RedisStore.names, limit)

    def lines(self, *, limit: int = 1000) -> list[str]:
        """As :meth:`LockStore.lines`, in each slot in turn."""
        return self._of_each(RedisStore.lines, limit)

    def walk_holds(self, *, limit: int = 100_000) -> Iterator[list[Hold]]:
        """As :meth:`LockStore.walk_holds`, of each slot in turn; two requests or more for each."""
        return self._walk_each(RedisStore.walk_holds, limit)

    def walk_lines(self, *, limit: int = 10_000) -> Iterator[list[Line]]:
        """As :meth:`LockStore.walk_lines`, of each slot in turn; a request or two for each."""
        return self._walk_each(RedisStore.walk_lines, limit)

    def refused(self, *, limit: int = 1000) -> list[str]:
        """As :meth:`LockStore.refused`, in each slot in turn."""
        return self._of_each(RedisStore.refused, limit)

    def counts(self) -> Counts:
        """As :meth:`LockStore.counts`, of all slots together."""
        of_slots = [RedisStore.counts(self._view(slot)) for slot in self._in_use()]
        numbers: Counter[tuple[str, ...]] = Counter()
        for each in of_slots:
            numbers.update(each.numbers)
        return Counts(min((each.since for each in of_slots if each.since), default=None), numbers)

    def sweep(self, *, most: int = 100) -> Sweep:
        """As :meth:`LockStore.sweep`, of the slots whose time has come; one request more for each.

        A slot with lines is looked at every two seconds, and so are those of a node that does not answer.
        """
        next_in, due = self._scripts.begin("slots_due", [self._slots], [str(SLOTS)], _due, name=self._slots)()
        looks = [Sweep(next_in)]
        away: set[object] = set()
        for slot, score in due:
            node = self._nodes.name_of(slot)
            try:
                found = Sweep(LATEST) if node in away else RedisStore.sweep(self._view(slot), most=most)
            except LockUnavailable:
                away.add(node)
                found = Sweep(LATEST)
            looks.append(found)
            if found.next_in < float("inf"):
                self._empty.discard(slot)
                # A hold that begins brings the look at its line forward, and not that at its slot.
                self.note(slot, in_ms(min(found.next_in, LATEST)))
            elif slot in self._empty:
                # Nobody has parked in it for a minute: who does so notes it first, and changes the score.
                self._empty.discard(slot)
                self.note(slot, score=score)
            else:
                self._empty.add(slot)
        soonest, *told = zip(*looks, strict=True)
        return Sweep(min(soonest), *(tuple(chain(*each)) for each in told))

    def drain(
        self, name: str = "", *, most: int = 100, ids: Sequence[str] = ()
    ) -> tuple[int, tuple[Promotion, ...]]:
        """As :meth:`LockStore.drain`, in each slot in turn."""
        slots = [self._slot_of(name)] if name else self._in_use()
        left = most
        given: tuple[Promotion, ...] = ()
        for slot in slots:
            count, promoted = RedisStore.drain(self._view(slot), name, most=left, ids=ids)
            left -= count + len(promoted)
            given = (*given, *promoted)
            if left <= 0:
                break
        return most - left - len(given), given

    def clock(self, name: str = "") -> float | None:
        """As of one server; without a name say nothing: each node has one."""
        return super().clock(name) if name else None

    def others(self, pattern: str, *, endless: bool = False) -> set[str]:  # noqa: ARG002
        """Say nothing: each node has a part of the keys."""
        return set()

    def scripts(self, names: Sequence[str], package: str) -> Scripts:  # noqa: ARG002
        """Refuse: what beats share is in several slots; raises LockOptionError."""
        problem = "a schedule that beats share is not kept on a Cluster; set redislock_beat = False"
        raise LockOptionError(self.server, [problem])

    def _slot_of(self, name: str) -> int:
        return key_slot(self._base(name).encode())

    def _view(self, slot: int) -> RedisStore:
        """Return this store with the indexes of one slot."""
        view = copy(self)
        view._index = index_of(self.prefix, slot, "index")
        view._lines = index_of(self.prefix, slot, "lines")
        view._counts = index_of(self.prefix, slot, "counts")
        view._refusals = index_of(self.prefix, slot, "refusals")
        return view

    def _in_use(self) -> list[int]:
        slots = [self._slots], [str(REDIS_CLUSTER_HASH_SLOTS), "-inf"]
        return [*map(int, self._scripts.begin("names", *slots, listed, name=self._slots)())]

    def _of_each(self, ask: Callable[..., list[str]], limit: int) -> list[str]:
        found: list[str] = []
        for slot in self._in_use():
            found += ask(self._view(slot), limit=limit - len(found))
            if len(found) >= limit:
                break
        return found

    def _walk_each(self, walk: Callable[..., Iterator[list[Told]]], limit: int) -> Iterator[list[Told]]:
        left = limit
        for slot in self._in_use():
            for some in walk(self._view(slot), limit=left) if left > 0 else ():
                yield some
                left -= len({each.name for each in some})

    def _register(self, name: str, *, is_line: bool = False) -> None:
        """Note that a slot is in use, before anything is kept in it."""
        slot = self._slot_of(name)
        known = self._registered.get(slot)
        if is_line:
            self.note(slot, LOOK_IN_MS)
        elif known is None or known < self._clock():
            self.note(slot)
        else:
            return
        self._registered[slot] = self._clock() + REMEMBERED

    def note(self, slot: int, ms: str = "", score: str = "") -> None:
        """Note when the lines of a slot are to be looked at; without a time, that it is in use."""
        args = [str(slot), ms, score]
        self._scripts.begin("slot_used", [self._slots], args, _noted, name=self._slots)()


def index_of(prefix: str, slot: int, what: str) -> str:
    """Return the key that stands in one slot for what is beside the locks of a server."""
    return f"{prefix}:{{{tag_of(slot)}}}:{what}"


def _due(_name: str, reply: Any, *_: object) -> tuple[float, list[tuple[int, str]]]:
    word, next_ms, number, *fields = reply
    expect(word == b"due" and len(fields) == 2 * number)
    next_in = next_ms / 1000 if next_ms >= 0 else float("inf")
    return next_in, [
        (int(slot), score.decode()) for slot, score in zip(fields[::2], fields[1::2], strict=True)
    ]


def _noted(_name: str, reply: Any, *_: object) -> None:
    expect(reply == [b"noted"])


def store_on(connections: Connections | Nodes, **options: Any) -> RedisStore:
    """Return the store on what these lead to; *options* are those of :class:`RedisStore`."""
    if isinstance(connections, Nodes):
        return ClusterStore(connections, **options)
    return RedisStore(connections, **options)

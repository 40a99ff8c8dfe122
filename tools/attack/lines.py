"""The order of lines, from the record of the lock server: each hand-over goes to the first in line. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from celery_redislock.store.store import owner_of

#: A claim that somebody was handed who has waited, or who is on its way before those that wait.
_TURN = b'"line":1'
#: The message of a run, in the facts of what it holds.
_RUNS = re.compile(rb'"state":"running".*?"message":"([^"]*)"')


class Lines:
    """All lines as each script saw them, whose writes come one after the other, as it made them.

    Attributes:
        out_of_turn: who was handed a lock before the first one in its line, in words.
        seen: how many were parked and handed on.
        waited: whose messages were in a line: the owners in their tokens.
        started: whose messages have been granted what they need to run, and were in no line since.
    """

    def __init__(self) -> None:
        """Start with an empty server."""
        self.out_of_turn: list[str] = []
        self.seen: Counter[str] = Counter()
        self.waited: set[str] = set()
        self.started: set[str] = set()
        self._lines: defaultdict[bytes, dict[bytes, float]] = defaultdict(dict)
        self._holders: dict[bytes, bytes] = {}

    def read(self, commands: Iterable[Sequence[bytes]]) -> "Lines":
        """Play what a server has written; return this object."""
        for verb, *arguments in commands:
            keys = arguments if verb.upper() in {b"DEL", b"UNLINK"} else arguments[:1]
            for value in arguments:
                if found := _RUNS.search(value):
                    self.started.add(owner_of(found[1].decode(errors="replace")))
            for key in keys:
                name, _, part = key.rpartition(b":")
                self._play(verb.upper(), name, part, arguments[1:])
        return self

    def _play(self, verb: bytes, name: bytes, part: bytes, arguments: Sequence[bytes]) -> None:
        match verb, part:
            case b"ZADD", b"line":
                score, entry = arguments[-2:]
                self._lines[name][entry] = float(score)
                self.seen["parked"] += 1
                owner = owner_of(entry.decode(errors="replace"))
                self.waited.add(owner)
                self.started.discard(owner)
            case b"ZREM", b"line":
                for entry in arguments:
                    self._lines[name].pop(entry, None)
            case b"SET", b"lock":
                self._hand_over(name, arguments[0])
            case ((b"DEL" | b"UNLINK"), b"lock"):
                self._holders.pop(name, None)
            case ((b"DEL" | b"UNLINK"), b"line"):
                self._lines.pop(name, None)

    def _hand_over(self, name: bytes, value: bytes) -> None:
        token, _, facts = value.partition(b"\0")
        line = self._lines[name]
        # Who holds the lock already, and is in line by a retry that came early, is sent from its place.
        if _TURN in facts and token in line and self._holders.get(name) != token:
            self.seen["handed on"] += 1
            first = min(line, key=line.__getitem__)
            if first != token:
                self.out_of_turn.append(f"{name!r} was handed to {token!r} before {first!r}, the first one")
        self._holders[name] = token

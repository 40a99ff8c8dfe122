"""What all beats share about an entry of the schedule, and the requests that read and change it.

============================  ======  ===========================  =========================================
key                           type    value                        expiry; written by
============================  ======  ===========================  =========================================
``redislock:{APP/ENTRY}:beat``   string  ``until srv json``        a week beyond its next due time; tick_take,
                                                                   tick_settle
``redislock:{APP/ENTRY}:pause``  string  ``end NUL json``; end in s  as asked for, else a year; ``pause``
                                         or ``inf``, then by whom
``redislock:beat``               zset    ``APP/ENTRY``, score      twice the longest of them; tick_take
                                         expiry ms
============================  ======  ===========================  =========================================

``until`` (ms): another beat may send the tick then, 0 once it is sent; ``srv`` (ms): when it was taken. Both
by the server's clock. The JSON has the other fields of :class:`State`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from math import inf
from typing import Any, NamedTuple

from celery_redislock.locks.naming import lock_name
from celery_redislock.log import logger
from celery_redislock.store.store import YEAR_10000, Hold, LockStore

_VERSION = 1

#: The text of a state that is not there.
NOTHING = ""

#: What runs on the server, under ``lua/``; ``names`` is the lock store's.
SCRIPTS = ("names", "tick_read", "tick_settle", "tick_take")

#: Seconds a state outlives its entry's next due time, so that beats may be away for so long.
KEPT = 7 * 86400.0

#: Seconds until a pause ends that was given no end: nothing on the server is for ever.
LONGEST_PAUSE = 366 * 86400.0

#: Entries per request: bounds how long one script keeps the server.
READ_PER_CALL = 500

#: Seconds another beat's clock may be ahead of this one's, and still be believed.
AHEAD = 60.0

#: Seconds by which the sender's reading of a moment may be ahead of the server's, which is in milliseconds,
#: and still be the same. Celery 5.5 counts an interval from just before a change of DST otherwise than from
#: the change itself.
APART = 0.05

_SHAPE = re.compile(r"(\d{1,15}) (\d{1,15}) (.*)", re.DOTALL)


class SkippedTick(NamedTuple):
    """A tick of an entry that was not sent: somebody held the key of its task.

    Attributes:
        at: when, in seconds since the epoch, by the clock of the beat that was refused.
        task_id: the holder's.
        state: the holder's, as it is of a ``Hold``.
        held_for: seconds for which it had held the key; ``None`` if unknown.
        in_a_row: so many ticks have been skipped since one was sent, this one among them.
    """

    at: float
    task_id: str
    state: str | None
    held_for: float | None
    in_a_row: int = 1

    @classmethod
    def read(cls, fields: Any) -> "SkippedTick | None":
        """Read the object of the JSON; ``None`` for none, and for nonsense."""
        try:
            skip = cls(*(fields[name] for name in cls._fields))
            is_sane = all(0 <= time < YEAR_10000 for time in (skip.at, skip.held_for or 0.0))
        except (LookupError, TypeError):
            return None
        return skip if is_sane and isinstance(skip.in_a_row, int) else None


class Pause(NamedTuple):
    """A pause of an entry.

    Attributes:
        until: when it ends, in seconds since the epoch, by the server's clock; ``inf`` without an end.
        since: when it began, by the clock of who began it; ``None`` if unknown.
        facts: who began it (``by``, ``host``) and why (``reason``), each if it was said.
    """

    until: float
    since: float | None
    facts: Mapping[str, Any]


class State(NamedTuple):
    """The shared state of one entry. Moments are aware, in UTC.

    Attributes:
        text: as the server has it: the next request is compared with it.
        entry: the entry's name.
        at: its ``last_run_at``, by the clock of the beat that took the tick; its schedule continues there.
        before: ``at`` before that tick, which is thus told from the others.
        by: host and process of the beat that sends it, or has sent the last one.
        ran: when the last one was sent, by its sender's clock; ``None`` for never.
        due: when it is due again, by the same clock, in seconds since the epoch; ``None`` if unknown.
        taken_at: when the tick was taken, in seconds since the epoch, by the server's clock.
        sending_until: by the same clock, when another beat may send it; 0 once it is sent.
        skip: the last tick that was skipped since one was sent; ``None`` for none.
    """

    text: str
    entry: str
    at: datetime
    before: datetime
    by: str
    ran: datetime | None
    due: float | None
    taken_at: float
    sending_until: float
    skip: SkippedTick | None = None

    @classmethod
    def read(cls, text: str, name: str = "?") -> "State | None":
        """Read a state; ``None`` for none, and, with a warning, for nonsense and for other versions."""
        if text == NOTHING:
            return None
        try:
            until, taken_at, rest = _SHAPE.fullmatch(text).groups()  # type: ignore[union-attr]  # caught below
            fields = json.loads(rest)
            entry, by, ran, due = (fields[name] for name in ("entry", "by", "ran", "due"))
            is_known = fields["v"] == _VERSION and isinstance(entry, str) and isinstance(by, str)
            if not (is_known and abs(due or 0.0) < inf):
                raise ValueError(rest)  # noqa: TRY301  as all that is not understood
            return cls(
                text,
                entry,
                _moment(fields["at"]),
                _moment(fields["before"]),
                by,
                None if ran is None else _moment(ran),
                None if due is None else float(due),
                int(taken_at) / 1000,
                int(until) / 1000,
                SkippedTick.read(fields.get("skip")),
            )
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError):
            form = "the shared state of the entry %r is treated as absent, and will be replaced: %.300r"
            logger.warning(form, name, text)
            return None

    def seen_from(self, here: datetime, now: float, *, is_interval: bool) -> datetime:
        """Return ``at`` as a beat sees it whose clock shows *here* (UTC) while the server's shows *now*.

        An interval counts from when the server has seen it. Other schedules name times of a clock, on which
        beats agree: for them the sender's own reading counts where that is later, so that beats whose clocks
        are seconds apart send what one would send. A reading over a minute ahead does not count.
        """
        by_server = here - timedelta(seconds=max(0.0, now - self.taken_at))
        latest = by_server + timedelta(seconds=APART) if is_interval else here + timedelta(seconds=AHEAD)
        return by_server if self.at > latest else max(self.at, by_server)


class Answer(NamedTuple):
    """The answer to a request for a tick.

    Attributes:
        status: ``taken``; ``paused``: spent, as its entry is; ``sending``: another beat sends it, for a
            minute at most; ``refused``: another state is there.
        text: of the state that is there now.
        now: the server's clock.
    """

    status: str
    text: str
    now: float


class States:
    """The states of an app's entries, on the server of its locks. Thread-safe.

    Each method makes one bounded request, :meth:`read` one for each 500 entries, and raises
    ``LockUnavailable`` where that is not answered.
    """

    def __init__(self, store: LockStore, app: str | None) -> None:
        """Keep the states of the app of this name, ``app.main``, where its locks are: on a server."""
        self._scripts = store.scripts(SCRIPTS, __package__)
        self._prefix = store.prefix
        self.server = store.server
        self.app = app or "celery"

    def take(self, entry: str, known: str, fields: dict[str, Any], *, bound: float, next_in: float) -> Answer:
        """Take a tick if the state is still the *known* one; *fields* are those of the new one.

        No other beat sends the tick for *bound* seconds. The entry is due again in *next_in* seconds.
        """
        text = _json({"v": _VERSION, "entry": entry, **fields})
        keys = [self._key(entry, "beat"), self._key(entry, "pause"), f"{self._prefix}:beat"]
        args = [known, text, _ms(bound), _ms(KEPT + next_in), self._name(entry)]
        return self._scripts.begin("tick_take", keys, args, _answer, name=entry)()

    def replace(self, entry: str, mine: str, following: str, next_in: float) -> bool:
        """Replace the state that this beat has written; tell whether it was still there."""
        keys = [self._key(entry, "beat")]
        args = [mine, following, _ms(KEPT + next_in)]
        return self._scripts.begin("tick_settle", keys, args, _is_one, name=entry)()

    def read(self, entries: Sequence[str], what: str = "beat") -> tuple[float, list[str]]:
        """Return the server's clock, and the texts of these entries' states, or of their ``"pause"``."""
        now = 0.0
        texts: list[str] = []
        for first in range(0, len(entries) or 1, READ_PER_CALL):
            keys = [self._key(entry, what) for entry in entries[first : first + READ_PER_CALL]]
            now, some = self._scripts.begin("tick_read", keys, [], _clock_and_texts, name=what)()
            texts += some
        return now, texts

    def write_nothing(self) -> None:
        """Find out whether ticks can be taken: a replica, or a server without memory, can still be read."""
        words = f"{self._prefix}:beat:probe", "", "PX", "1"  # gone at once
        self._scripts.send("probe", "SET", *words, understand=lambda *_: None)

    def listed(self) -> list[State]:
        """Return the states there are of the app's entries; two requests or more.

        Raises ``LockKeyError``, too, where the list of entries is another program's key.
        """
        index = f"{self._prefix}:beat"
        start = lock_name(f"{self.app}/")
        names = self._scripts.begin("names", [index], ["100000"], _texts, name=index)()
        _, texts = self.read([name.removeprefix(start) for name in names if name.startswith(start)])
        return [state for state in map(State.read, texts) if state is not None]

    def pauses(self, entries: Sequence[str]) -> tuple[float, dict[str, Pause]]:
        """Return the server's clock, and the pauses of these entries, of those that have one."""
        now, texts = self.read(entries, "pause")
        pauses = {}
        for entry, text in zip(entries, texts, strict=True):
            written = Hold(entry, text.encode(), inf)  # in the same form, and read as tolerantly
            with suppress(ValueError):  # nothing, or rubbish, which pauses nothing
                pauses[entry] = Pause(float(written.token), written.since, written.facts)
        return now, pauses

    def pause(self, entry: str, seconds: float | None, facts: Mapping[str, Any] | None = None) -> None:
        """Let the entry's ticks be spent unsent, for so many seconds; ``None``: until it is resumed.

        ``facts`` are those of :class:`Pause`, and ``since``.
        """
        until = f"{inf if seconds is None else self.read([])[0] + seconds:.3f}"
        value = f"{until}\0{_json(facts or {})}"
        words = self._key(entry, "pause"), value, "PX", _ms(seconds or LONGEST_PAUSE)
        self._scripts.send("pause", "SET", *words, understand=lambda *_: None)

    def resume(self, entry: str) -> bool:
        """End a pause; tell whether there was one."""
        key = self._key(entry, "pause")
        return bool(self._scripts.send("resume", "DEL", key, understand=_is_one))

    def _name(self, entry: str) -> str:
        return lock_name(f"{self.app}/{entry}")

    def _key(self, entry: str, what: str) -> str:
        return f"{self._prefix}:{{{self._name(entry)}}}:{what}"


def finished(text: str, *, is_sent: bool, skipped: SkippedTick | None = None) -> str:
    """Return the text of a state by which a tick is being sent, when it has been, or was spent unsent.

    ``skipped``: it was not sent, as somebody held its key.
    """
    _, taken_at, rest = text.split(" ", 2)
    fields = json.loads(rest)
    if skipped is not None:
        before = SkippedTick.read(fields.get("skip"))
        count = skipped.in_a_row + (before.in_a_row if before else 0)
        rest = _json({**fields, "skip": skipped._replace(in_a_row=count)._asdict()})
    elif is_sent:
        rest = _json({**fields, "ran": fields["at"], "skip": None})
    return f"0 {taken_at} {rest}"


def prolonged(text: str, seconds: float) -> str:
    """Return the text of a state by which a tick is being sent, for so much longer."""
    until, rest = text.split(" ", 1)
    return f"{int(until) + round(seconds * 1000)} {rest}"


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment.astimezone(timezone.utc)


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def _answer(_name: str, reply: Any, *_: object) -> Answer:
    status, text, now = reply
    return Answer(status.decode(), text.decode("utf-8", "replace"), int(now) / 1000)


def _is_one(_name: str, reply: Any, *_: object) -> bool:
    return bool(reply == 1)


def _texts(_name: str, reply: Any, *_: object) -> list[str]:
    return [text.decode("utf-8", "replace") for text in reply]


def _clock_and_texts(name: str, reply: Any, *_: object) -> tuple[float, list[str]]:
    now, *texts = _texts(name, reply)
    return int(now) / 1000, texts

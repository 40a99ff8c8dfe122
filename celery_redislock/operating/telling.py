"""Words for operators: times, processes, holders, rates, limits; nothing that a terminal would obey."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import YEAR_10000, Limit

#: Of the documents of ``--json``. A field that goes, or means something else, changes it; a new one does not.
VERSION = 1

#: Seconds that have a word.
_SPANS: Mapping[float, str] = {1: "second", 60: "minute", 3600: "hour", 86400: "day"}


#: What becomes of a holder that loses its lock by force, by its state.
_RELEASED = {
    "running": "A running task continues without its lock, and another one may start beside it.",
    "late": "A task that is not dead continues without its lock, and another one may start beside it.",
    "queued": "A queued call still runs, unless its message is lost; until then another one may be queued.",
    "foreign": "The other program is not told: release its lock only if it is gone.",
}

#: The units of short times, in seconds.
_UNITS = {86400: "d", 3600: "h", 60: "min"}


def age(holder: Holder) -> float | None:
    """Seconds since the claim or the run began, by this machine's clock; ``None`` if unknown."""
    return None if holder.since is None else round(max(0.0, time.time() - holder.since), 3)


def process(holder: Holder) -> str:
    """Host and process id."""
    return "-" if holder.host is None else f"{holder.host}:{holder.pid}"


def in_brief(holder: Holder) -> str:
    """Name a holder in a sentence."""
    return f"{holder.owner} ({holder.task or '-'}, {holder.state}, {process(holder)})"


def life(holder: Holder) -> str:
    """Tell whether a holder seems to be alive, and when its hold ends."""
    end = duration(holder.remaining)
    if holder.renewed is not None and holder.ttl is not None:
        ago = duration(holder.renewed)
        due = f"due every {round(holder.ttl / 3, 1):g} s"
        if holder.is_late:
            return f"not renewed for {ago}, {due}: probably dead; free in {end}"
        return f"last renewed {ago} ago, {due}"
    if holder.state == "period":
        return f"its period ends in {end}"
    if holder.state in {"foreign", "hold"}:
        return f"free in {end}"
    return f"its claim expires in {end}, unless a worker that has its message, or finds it, extends that"


def told_of_release(holders: Iterable[Holder]) -> list[str]:
    """Tell what becomes of those who lose their locks by force, each kind once, where that is not plain."""
    kinds = {"late" if holder.is_late else holder.state: holder for holder in holders}
    return [told for kind, told in _RELEASED.items() if kind in kinds]


def told_of(waiter: Holder) -> str:
    """Tell when one that waits in line is due, and how many calls were merged into it, if that is so."""
    due = "" if waiter.due is None else f", due in {duration(max(0.0, waiter.due - time.time()))}"
    return due + (f", merged {waiter.merged} calls" if waiter.merged else "")


def told_of_rate(rate: Mapping[str, float]) -> str:
    """Tell of a rate that it has had its starts, and when the next place opens."""
    number, span, opens_in = rate["starts"], rate["span_seconds"], rate["opens_in_seconds"]
    last = _SPANS.get(span, f"{span:g} s")
    return f"{number:g} of {number:g} in the last {last}, the next place in {duration(opens_in)}"


def limit_as_json(limit: Limit | None) -> dict[str, Any] | None:
    """Return the object of ``--json`` for a limit that was set."""
    return None if limit is None else {"limit": limit.value, "expires_in": limit.expires_in, **limit.facts}


def of_limit(limit: Limit) -> str:
    """Tell a limit that was set, by whom, when, and until when, in a sentence."""
    facts = limit.facts
    who = f"{facts.get('by', '-')} on {facts.get('host', '-')}"
    when = facts.get("since")
    since = f", {moment(when)}" if isinstance(when, int | float) else ""
    return f"{limit.value}, set by {who}{since}; for {duration(limit.expires_in)} more"


def as_json(holder: Holder) -> dict[str, Any]:
    """Return a holder's object of ``--json``; times are seconds, to the millisecond, ``None`` for no end."""
    remaining = holder.remaining if math.isfinite(holder.remaining) else None
    return {**asdict(holder), "age": age(holder), "remaining": remaining, "is_late": holder.is_late}


def moment(when: float) -> str:
    """Write seconds since the epoch for people: local time, and how long ago that is, or how long until."""
    text = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(max(0.0, min(YEAR_10000, when))))
    age = time.time() - when
    return f"{text} ({duration(age)} ago)" if age >= 0 else f"{text} (in {duration(-age)})"


def briefly(when: float) -> str:
    """Write seconds since the epoch as the time since then, or until then: ``12 min ago``, ``in 3 h``."""
    age = time.time() - when
    unit, name = next((each for each in _UNITS.items() if abs(age) >= each[0]), (1, "s"))
    span = f"{abs(age) // unit:.0f} {name}"
    return f"{span} ago" if age >= 0 else f"in {span}"


def duration(seconds: float | None) -> str:
    """Write seconds for people: ``0.4 s``, ``0:03:05``, ``4 days, 1:00:00``, ``4 days``.

    ``-`` for ``None``, ``no end`` for ``inf``.
    """
    if seconds is None or math.isinf(seconds):
        return "no end" if seconds else "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(timedelta(seconds=round(min(seconds, YEAR_10000)))).removesuffix(", 0:00:00")


def printable(text: object) -> str:
    """Escape what a terminal would obey: keys and holders may have been written by anybody."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text)
    )

"""The sections of the page, each with its rows: as objects for programs, and as cells."""

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from celery_redislock.operating import telling
from celery_redislock.operating.server import Place
from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import HELD
from celery_redislock.web.guard import LONGEST_QUERY
from celery_redislock.web.markup import bar, tag, to_copy
from celery_redislock.web.needs import SCHEDULE, SET_UP, Need, about, needs
from celery_redislock.web.sample import Sample, has, text_of
from celery_redislock.web.sampler import Event, Sampler

#: Characters of a key that stays in one line.
SHORT_KEY = 28

#: What is wanted of a section: ``search`` and others, by name; and how many rows are looked for.
Wanted = Mapping[str, str]


class Look(NamedTuple):
    """What a view is made of: the sampler, its last sample, and how to link to a view of the page."""

    sampler: Sampler
    sample: Sample
    link: Callable[..., str]


class Section(NamedTuple):
    """A part of the page.

    Attributes:
        name: as addresses have it; ``title`` and ``hint`` for people.
        head: its columns.
        find: returns how many rows fit what is wanted, and the first so many.
        document: of a row, for programs; ``cells``: for people.
        fields: what can be wanted, beside the page.
        nothing: what is said where there are none.
        asks: what must have been answered before that is said; ``twice``: what two looks must have seen.
    """

    name: str
    title: str
    hint: str
    head: Sequence[str]
    find: Callable[[Look, Wanted, int], tuple[int, Sequence[Any]]]
    document: Callable[[Any], Mapping[str, Any]]
    cells: Callable[[Look, Any], Sequence[object]]
    fields: Sequence[str] = ("search",)
    nothing: str = "none"
    asks: Sequence[str] = ()
    twice: str = ""

    def unknown(self, look: Look) -> list[str]:
        """Return what is not known yet, so that there may be more rows."""
        answered = look.sampler.around.answered
        said = [f"the {what}" for what in self.asks if what not in answered]
        first = look.sampler.first
        is_first = first is not None and first.at == look.sample.at
        return [*said, self.twice] if self.twice and is_first and look.sample.free else said


def _fitting(rows: Sequence[Any], wanted: Wanted, most: int) -> tuple[int, Sequence[Any]]:
    """Return how many of these rows have the text that is searched for in them, and the first so many."""
    if word := wanted.get("search"):
        rows = [row for row in rows if any(has(word, text) for text in row if isinstance(text, str))]
    return len(rows), rows[:most]


def _to_explain(look: Look, subject: str) -> str:
    return look.link("explain", q=shlex.quote(subject))


def key_link(look: Look, key: str) -> object:
    """Return a link to what explains a key; none where its address would be refused."""
    href = _to_explain(look, key)
    kind = "key" if len(key) > SHORT_KEY else "key unbroken"
    is_short = len(href) <= LONGEST_QUERY
    return tag("a" if is_short else "span", key, href=href if is_short else None, class_=kind)


def _needs(look: Look, wanted: Wanted, most: int) -> tuple[int, Sequence[Need]]:
    found = needs(look.sampler.server, look.sample, look.sampler.around)
    return _fitting(found, wanted, most)


def _need_cells(look: Look, need: Need) -> Sequence[object]:
    kind = tag("b", need.kind, class_="bad" if need.is_bad else "warn")
    subject: object = need.subject
    if need.kind == SCHEDULE:
        tasks = {row["name"]: row["task"] or row["name"] for row in look.sampler.around.entries}
        subject = tag("a", need.subject, href=_to_explain(look, tasks.get(need.subject, need.subject)))
    elif need.kind != SET_UP:
        subject = key_link(look, need.subject)
    return kind, subject, tag("div", need.told, tag("div", to_copy(need.command)))


def _lines(look: Look, wanted: Wanted, most: int) -> tuple[int, Sequence[Place]]:
    lines = look.sample.lines
    if word := wanted.get("search"):
        lines = [line for line in lines if has(word, text_of(line.waiter))]
    return len(lines), lines[:most]


def _line_cells(look: Look, line: Place) -> Sequence[object]:
    key = line.waiter.key
    sample = look.sample
    longest = sample.lines[0].length
    return (
        key_link(look, key),
        _now(look, line),
        tag("span", bar(line.length, longest, f"{line.length} wait"), f" {line.length}", class_="bar"),
        about(line.waiter) if line.rank else f"{about(line.waiter)}: handed the lock, not started",
        telling.duration(telling.age(line.waiter)),
        "; ".join(_terms(sample, line)) or "-",
    )


def _now(look: Look, line: Place) -> object:
    """Tell who holds the lock of a line."""
    key = line.waiter.key
    holders = look.sample.by_key.get(key, ())
    if not holders:
        is_bad = key in look.sample.headless
        return tag("span", "nobody", class_="bad" if is_bad else "dim")
    first = holders[0]
    more = f" and {len(holders) - 1} others" if len(holders) > 1 else ""
    state = tag("span", "late" if first.is_late else first.state, class_=_class_of(first))
    age = "" if first.since is None else f", {telling.duration(telling.age(first))}"
    return tag("span", state, f" {about(first)}{age}{more}")


def _terms(sample: Sample, line: Place) -> list[str]:
    """Tell what beside its lock a line waits for: a limit, other locks, a full rate, a time, an operator."""
    facts = line.facts
    waiter = line.waiter
    said = [f"limit {facts['limit']}"] if isinstance(facts.get("limit"), int) else []
    said += [f"also waits for {name}" for name in line.names if name != waiter.key]
    said += [telling.told_of_rate(rate) for rate in sample.rates.get(waiter.key, ())]
    if waiter.due is not None and waiter.due > time.time():
        said.append(f"due in {telling.duration(waiter.due - time.time())}")
    if waiter.merged:
        said.append(f"merged {waiter.merged} calls")
    if waiter.state == HELD:
        said.append(f"on hold by {waiter.owner}")
    return said


def _held(look: Look, wanted: Wanted, most: int) -> tuple[int, Sequence[Holder]]:
    return look.sample.chosen(wanted, most)


def _class_of(holder: Holder) -> str:
    kinds = {"running": "run", "foreign": "warn", "hold": "warn"}
    return "bad" if holder.is_late else kinds.get(holder.state, "dim")


def _held_cells(look: Look, holder: Holder) -> Sequence[object]:
    end = f"ends in {telling.duration(holder.remaining)}"
    if math.isinf(holder.remaining):
        end = "no end"
    elif holder.renewed is not None and holder.ttl is not None:
        due = holder.ttl / 3 - holder.renewed
        end = f"in {telling.duration(due)}" if due > 0 else f"overdue for {telling.duration(-due)}"
    state = tag("span", holder.state, ": late" if holder.is_late else None, class_=_class_of(holder))
    return (
        key_link(look, holder.key), about(holder), state, telling.duration(telling.age(holder)),
        telling.process(holder), end,
    )  # fmt: skip


def _entries(look: Look, wanted: Wanted, most: int) -> tuple[int, Sequence[Mapping[str, Any]]]:
    word = wanted.get("search", "")
    rows = [row for row in look.sampler.around.entries if has(word, f"{row['name']} {row['task']}")]
    return len(rows), rows[:most]


def _entry_cells(look: Look, row: Mapping[str, Any]) -> Sequence[object]:
    name = tag("a", row["name"], href=_to_explain(look, row["task"] or row["name"]))
    last, due = (row[key] and telling.briefly(row[key]) for key in ("last_sent", "next_due"))
    if row["next_due"] and row["next_due"] < time.time() and not row["overdue"]:
        due = "due now"  # it was not yet, when beats were asked
    return (
        name,
        row["schedule"] or "-",
        last or "-",
        due or "-",
        row["beat"] or "-",
        row["told"],
    )


def _events(look: Look, wanted: Wanted, most: int) -> tuple[int, Sequence[Event]]:
    sampler = look.sampler
    begun = sampler.first.at if sampler.first else 0.0
    acts = [_event_of(act) for act in sampler.around.acts if (act.get("since") or 0.0) >= begun]
    return _fitting(sorted([*sampler.events, *acts], reverse=True), wanted, most)


def _event_of(act: Mapping[str, Any]) -> Event:
    why = f": {act['reason']}" if act.get("reason") else ""
    told = f"by {act.get('by', '-')} on {act.get('host', '-')}{why}; {act.get('outcome')}"
    return Event(float(act["since"]), str(act.get("act")), str(act.get("key")), told)


def _event_cells(look: Look, event: Event) -> Sequence[object]:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    return tag("span", at, class_="dim"), event.what, key_link(look, event.subject), event.told


SECTIONS = {
    section.name: section
    for section in (
        Section(
            "needs", "Needs somebody", "empty on a good day",
            ("what", "of", "why, and what to type"), _needs, Need._asdict, _need_cells,
            nothing="nothing: no dead holder, no line that stands still",
            asks=("tasks", "schedule", "workers", "set-up"), twice="whether lines stand still",
        ),
        Section(
            "lines", "Lines", "who waits, most first",
            ("key", "now", "waiting", "first in line", "waits for", "limit, rate, time"), _lines,
            Place.document, _line_cells, nothing="nobody waits in line",
        ),
        Section(
            "held", "Held", "oldest first",
            ("key", "about", "state", "for", "where", "renewal, or end"), _held, telling.as_json,
            _held_cells, ("search", "state", "task", "host", "sort"), "no lock is held",
        ),
        Section(
            "schedule", "Schedule", "what beats share",
            ("entry", "schedule", "last sent", "next", "by", "state"), _entries, dict, _entry_cells,
            nothing="no entries", asks=("schedule",),
        ),
        Section(
            "happened", "Happened", "since this page's process began, the latest first; before that: history",
            ("when", "what", "of", "how"), _events, Event._asdict, _event_cells, nothing="nothing yet",
            asks=("operators",),
        ),
    )
}  # fmt: skip

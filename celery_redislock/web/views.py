"""The views of the page: the page itself, all of one section, and what explains a lock."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from celery_redislock.operating.held import ORDERS, STATES
from celery_redislock.web.asked import Explainer
from celery_redislock.web.markup import add, curve, opened, skips_by_others, tag, to_copy
from celery_redislock.web.sections import SECTIONS, Look, Section, Wanted

#: Rows of a section on the page itself, and on a page of its own.
AT_FIRST = 15
PER_PAGE = 100

#: What can be chosen from, by field; and how the orders are told.
CHOICES: Mapping[str, Sequence[str]] = {"state": (*STATES, "late"), "sort": [*ORDERS]}
_ORDERS = {"remaining": "the soonest to end first", "key": "by key", "task": "by task"}

#: Where the rows of a figure are: a section, and what is wanted of it.
_ROWS: Mapping[str, tuple[str, Wanted]] = {
    "running": ("held", {"state": "running"}),
    "queued": ("held", {"state": "queued"}),
    "in line": ("lines", {}),
    "late": ("held", {"state": "late"}),
    "skipped": ("happened", {}),
}

#: Labels of an explanation whose text is a command.
_COMMANDS = ("free it", "free them")

_View = tuple[Mapping[str, Any], Sequence[Element]]


def overview(look: Look) -> _View:
    """Return the page itself: the figures, and the first rows of each section."""
    around = look.sampler.around
    # Workers may have answered after the last look.
    workers = len(around.workers) if "workers" in around.answered else None
    figures = {**look.sampler.curve[-1][1], "workers": workers}
    document: dict[str, Any] = {"figures": figures}
    elements = [_figures(look, figures)]
    for section in SECTIONS.values():
        total, rows = section.find(look, {}, AT_FIRST)
        document[section.name] = _document(look, section, total, rows)
        more = None
        if total > len(rows):
            more = tag("p", tag("a", f"all {total}", href=look.link(section.name)))
        elements.append(_section(look, section, rows, more))
    return document, elements


def listed(look: Look, section: Section, wanted: Wanted, page: int, *, has_form: bool) -> _View:
    """Return one page of a section."""
    total, found = section.find(look, wanted, page * PER_PAGE)
    rows = found[(page - 1) * PER_PAGE :]
    document = {"page": page, **_document(look, section, total, rows)}
    refresh = None if has_form else 1
    links = [
        tag("a", name, href=look.link(section.name, **wanted, page=number, refresh=refresh))
        for name, number in (("Page before", page - 1), ("Next page", page + 1))
        if number >= 1 and (number - 1) * PER_PAGE < total
    ]
    chosen = "".join(f", {name} {wanted[name]}" for name in section.fields if name in wanted)
    told = tag("p", f"{total} in all{chosen}, page {page}. ")
    add(told, (part for link in links for part in (link, " ")))
    form = _form(look, section, wanted) if has_form else None
    nothing = "none fits" if total or wanted else section.nothing
    section = section._replace(nothing=nothing, hint=_ORDERS.get(wanted.get("sort", ""), section.hint))
    return document, [_section(look, section, rows, told, form)]


def explained(explainer: Explainer, link: Callable[..., str], question: str) -> _View:
    """Return what explains a question."""
    asked = explainer.explain(question)
    found = asked.explanation
    values = [holder.owner for holder in found.holders if holder.state == "foreign"]
    values += [skip["task_id"] for skip in skips_by_others(found.document["schedule"])]
    rows = tag("dl")
    for label, text in found.rows:
        rows.append(tag("dt", label))
        rows.append(tag("dd", to_copy(text) if label in _COMMANDS else opened(text, values)))
    told = f"As it was {asked.age:.0f} s ago, workers, queues and the schedule included."
    if asked.to_come:
        told = told if asked.age else "What they say is not in here yet, and may be the reason."
        told = f"{asked.to_come} {told}"
    again = tag("a", "Load again", href=link("explain", q=question))
    note = tag("p", f"{told} ", again, class_="warn" if asked.to_come else None)
    document = {**found.document, "to_come": asked.to_come or None}
    title = tag("h2", "Why does it not run? ", tag("span", question, class_="dim"))
    return opened(document, values), [tag("section", title, note, rows)]


def field(link: Callable[..., str], question: str) -> Element:
    """Return the field that asks why something does not run."""
    label = tag("label", "Why does it not run?", for_="q")
    hint = "shop.tasks.sync 42 · a task id · a key"
    text = tag(
        "input", id="q", name="q", value=question, placeholder=hint, maxlength=1000, autocomplete="off"
    )
    return tag("form", label, text, tag("button", "Explain"), action=link("explain"), role="search")


def _document(look: Look, section: Section, total: int, rows: Sequence[Any]) -> dict[str, Any]:
    """Return rows of a section for programs, and what is not known yet."""
    return {"total": total, "rows": [*map(section.document, rows)], "unknown": section.unknown(look)}


def _figures(look: Look, figures: Mapping[str, int | None]) -> Element:
    tiles = []
    sampler = look.sampler
    around = sampler.around
    points = [*sampler.curve]  # at once: the next look may end meanwhile
    for name, figure in figures.items():
        numbers = [each[name] for _, each in points]
        told = f"{name}, from {numbers[0]} to {numbers[-1]}, at most {max(numbers)}"
        kind = "bad" if name == "late" and figure else None
        beats = len(around.beats) if "schedule" in around.answered else "…"
        label: object = f"workers; beats: {beats}"
        if name in _ROWS:
            section, wanted = _ROWS[name]
            label = tag("a", name, href=look.link(section, **wanted))
        number = tag("b", "…" if figure is None else figure)
        tiles.append(tag("li", number, label, curve(numbers, told), class_=kind))
    return tag("ul", *tiles, class_="figures")


def _section(
    look: Look, section: Section, rows: Sequence[Any], after: Element | None, before: Element | None = None
) -> Element:
    """Return a section: its title, a form before it, its rows, and what comes after."""
    age = look.sampler.around.age(section.name)
    hint = section.hint if age is None else f"{section.hint}, asked {age:.0f} s ago"
    title = tag("h2", section.title, " ", tag("span", hint, class_="dim"), id=section.name)
    unknown = section.unknown(look)
    told = f"not known yet: {', '.join(unknown)}; load this page again" if unknown else None
    if not rows:
        return tag("section", title, before, tag("p", told or section.nothing, class_="dim"), after)
    head = [tag("th", name, scope="col") for name in section.head]
    body = [_row(section, section.cells(look, row)) for row in rows]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), aria_labelledby=section.name)
    return tag("section", title, before, table, told and tag("p", told, class_="warn"), after)


def _row(section: Section, cells: Sequence[object]) -> Element:
    """Return a row, in whose cells narrow windows find the names of their columns."""
    named = zip(section.head, cells, strict=True)
    return tag("tr", *(tag("td", cell, data_name=name) for name, cell in named))


def _form(look: Look, section: Section, wanted: Wanted) -> Element:
    """Return the fields that narrow a section."""
    fields: list[Element] = []
    for name in section.fields:
        chosen = wanted.get(name, "")
        if choices := CHOICES.get(name):
            choices = choices if name == "sort" else ["", *choices]
            options = [
                tag("option", each or "all", value=each, selected="" if each == chosen else None)
                for each in choices
            ]
            entry = tag("select", *options, id=name, name=name)
        else:
            entry = tag("input", id=name, name=name, value=chosen, maxlength=200)
        fields += [tag("label", name, for_=name), entry]
    return tag("form", *fields, tag("button", "Show"), action=look.link(section.name))

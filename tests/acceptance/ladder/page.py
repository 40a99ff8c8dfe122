"""Make the page of all endings: ``python -m tests.acceptance.ladder.page docs/endings.md``."""

import sys
from collections.abc import Iterator
from pathlib import Path

from celery import states

from tests.acceptance.ladder.ending import EVERY_POOL, Case, Ending, Freed, Group
from tests.acceptance.ladder.figures import Figures, read
from tests.acceptance.ladder.rows import GROUPS

__all__ = ["endings_page", "main"]

_HEAD = """\
# How tasks end, and when their lock is free

<!-- Made from tests/acceptance/ladder: python -m tests.acceptance.ladder.page docs/endings.md -->

Every line of these tables is a test with a real worker, in every pool that has a figure: how often the body
ran, that two bodies of one key were never on at the same time, what Celery says of the task in the end, and
when a new publish of the same key was accepted. The scope is `until_executed`, the default.

The figures are the seconds from the cause (the end of the last body; the kill, the limit, the revocation, the
moment a message's turn came or it expired) to the free lock, as last measured on a machine with two cores
and other work to do. They show what to expect, and are no limits. A dash: it does not happen in that pool, or
is no different there.

"Before the result" means: whoever sees the result finds the lock free.

Where a line says that something is lost, plain Celery loses it as well; files are named as in Celery's own
source, here version {celery}.
"""

_HEADINGS = ("what happens", "bodies", "state", "the lock is free", *EVERY_POOL)


def endings_page(figures: Figures) -> str:
    """Return the page as Markdown, one line ending at its end; the same for the same rows and figures."""
    head = _HEAD.format(celery=figures.versions["celery"])
    with_versions = ", ".join(f"{name} {number}" for name, number in sorted(figures.versions.items()))
    return "\n".join(
        [head, *(_section(group, figures) for group in GROUPS), f"Measured with {with_versions}.\n"]
    )


def _section(group: Group, figures: Figures) -> str:
    lines = [_line(ending, case, figures) for ending in group.endings for case in ending.cases]
    parts = [f"## {group.title}\n\n{group.promise}\n", _table(lines)]
    notes = list(_notes(group))
    if notes:
        parts.append("\n".join(notes) + "\n")
    return "\n".join(parts)


def _table(lines: list[tuple[str, ...]]) -> str:
    table = [_HEADINGS, ("---",) * len(_HEADINGS), *lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in table)


def _line(ending: Ending, case: Case, figures: Figures) -> tuple[str, ...]:
    measured = figures.seconds.get(ending.name, {})
    return (
        ending.name if case is ending.cases[0] else "",
        _bodies(case),
        _state(case),
        _free(ending, case),
        *(_seconds(measured, pool) if _is_in(case, pool) else "-" for pool in EVERY_POOL),
    )


def _bodies(case: Case) -> str:
    names = {"": "returned", None: "killed"}
    return ", ".join(names.get(end) or f"`{end}`" for end in case.ends) or "none"


def _state(case: Case) -> str:
    if case.freed == Freed.CALLER or case.pools == ("caller",):
        return "-"
    return f"{case.state} or {case.rather}" if case.rather else case.state


def _free(ending: Ending, case: Case) -> str:
    text = f"{case.freed}, after {case.term}" if case.term else case.freed
    if case.state == states.PENDING:
        text = text.replace("before the result", "at once")  # there will be none
    if case.freed in {Freed.DEAD, Freed.KILLED, Freed.NEXT} or (case.freed == Freed.MAIN and case.within > 5):
        text += f", within {case.within:.0f} s"
    return f"{text}; not before the last body" if ending.kept and not case.gap else text


def _is_in(case: Case, pool: str) -> bool:
    return pool in case.pools or case.pools == ("caller",)


def _seconds(measured: dict[str, float | None], pool: str) -> str:
    seconds = measured.get(pool)
    return "yes" if seconds is None else f"{seconds:.2f}"


def _notes(group: Group) -> Iterator[str]:
    for ending in group.endings:
        for case in ending.cases:
            where = "" if len(ending.cases) == 1 else f" ({', '.join(case.pools)})"
            told = [f"lost is {case.lost}"] if case.lost else []
            told += [case.note] if case.note else []
            if told:
                yield f"- {ending.name}{where}: {'; '.join(told)}."
        if ending.since > (5, 5):
            yield f"- {ending.name}: from Celery {ending.since[0]}.{ending.since[1]} on."


def main(arguments: list[str]) -> None:
    """Write the page to the one path given.

    Raises:
        SystemExit: not exactly one path was given.
    """
    if len(arguments) != 1:
        raise SystemExit("usage: python -m tests.acceptance.ladder.page PATH")
    Path(arguments[0]).write_text(endings_page(read()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

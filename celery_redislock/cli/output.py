"""How commands print: lines, tables and JSON; nothing that a terminal would obey."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import click

from celery_redislock.operating.telling import VERSION, as_json, printable

#: The width of what is no terminal, or of ``--wide``: nothing is cut.
UNCUT = sys.maxsize

#: What is cut to fit a terminal: the columns, one after the other, and what is left of each at least.
Cuts = Iterable[tuple[str, int]]

#: Blanks between two columns.
_GAP = 2

wide_option = click.option("--wide", is_flag=True, help="Cut nothing to fit the terminal.")


def say(text: str) -> None:
    """Write one line to standard output."""
    click.echo(printable(text))


def warn(text: str) -> None:
    """Write one line to standard error."""
    click.echo(printable(text), err=True)


def write_json(document: Mapping[str, object]) -> None:
    """Write one JSON document to standard output; a :class:`Holder` becomes an object."""
    click.echo(json.dumps({"version": VERSION, **document}, indent=2, default=as_json))


def width_of(*, wide: bool = False) -> int:
    """Return how wide a line may be: the terminal's columns; :data:`UNCUT` if there is none, or if *wide*."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() and not wide else UNCUT


def table(rows: Iterable[Iterable[object]], width: int, cuts: Cuts) -> list[str]:
    """Return lines of aligned columns; ``-`` for an empty cell.

    Where they do not fit the width, empty columns are left out, then columns are cut; what still does not fit
    is a second table below, beside the first column again.
    """
    columns = [*zip(*([printable(cell or "-") for cell in row] for row in rows), strict=True)]
    room = width + _GAP
    if sum(_widths(columns)) > room:
        columns = [column for column in columns if {*column[1:]} != {"-"}]
    widths = _widths(columns)
    heads = [column[0] for column in columns]
    for name, least in cuts:
        if name in heads:
            place = heads.index(name)
            over = max(0, sum(widths) - room)
            widths[place] = max(min(least + _GAP, widths[place]), widths[place] - over)
    if sum(widths) > room and len(columns) > 2:
        fitting = max(2, sum(end <= room for end in accumulate(widths)))
        parts = (columns[:fitting], [columns[0], *columns[fitting:]])
        first, second = (table(zip(*part, strict=True), width, cuts) for part in parts)
        return [*first, "", *second]
    return ["".join(map(_cell, row, widths, heads)).rstrip() for row in zip(*columns, strict=True)]


def _widths(columns: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide the columns are, each with the gap behind it."""
    return [max(map(len, column)) + _GAP for column in columns]


def _cell(text: str, width: int, head: str) -> str:
    most = width - _GAP
    if len(text) > most:
        # Of many tasks only the ends of the names differ.
        text = f"…{text[1 - most :]}" if head == "TASK" else f"{text[: most - 1]}…"
    return text.ljust(width)


def folded(text: str, width: int, label: str = "", command: str = "\n") -> list[str]:
    """Return the lines of a text, broken between words to fit the width, below each other behind a label.

    What is copied stays in one piece, for the terminal to break: a long word, such as a key; and what begins
    with this *command*, which has a line of its own.
    """
    text = printable(text)
    if len(label + text) <= width:
        return [label + text]
    words, begun, rest = text.partition(command)
    room = max(20, width - len(label))
    lines = textwrap.wrap(words, room, break_long_words=False, break_on_hyphens=False)
    lines = [*lines, *filter(None, [begun + rest])] or [text]
    return [label + lines[0], *(" " * len(label) + line for line in lines[1:])]

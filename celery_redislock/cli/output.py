"""How commands print: lines, tables and JSON; nothing that a terminal would obey."""

import json
from collections.abc import Iterable, Mapping

import click

from celery_redislock.operating.telling import VERSION, as_json, printable


def say(text: str) -> None:
    """Write one line to standard output."""
    click.echo(printable(text))


def warn(text: str) -> None:
    """Write one line to standard error."""
    click.echo(printable(text), err=True)


def write_json(document: Mapping[str, object]) -> None:
    """Write one JSON document to standard output; a :class:`Holder` becomes an object."""
    click.echo(json.dumps({"version": VERSION, **document}, indent=2, default=as_json))


def table(rows: Iterable[Iterable[object]]) -> list[str]:
    """Return lines of aligned columns; ``-`` for an empty cell."""
    cells = [[printable(cell or "-") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in cells)
    return [line.rstrip() for line in lines]

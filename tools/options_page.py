"""Write the reference page from the option table: ``python tools/options_page.py docs/options.md``."""

import sys
from collections.abc import Iterable
from pathlib import Path

from celery_redislock.declaring.scopes import SCOPES, STRATEGIES, Scope
from celery_redislock.declaring.table import GROUPS, Row

__all__ = ["options_page"]

HEAD = """\
# Options and settings

<!-- Made from celery_redislock/declaring/table.py: make docs -->

A task option is an attribute of the task (`@app.task(base=SingletonTask, lock_ttl=60)`), and a keyword
of `apply_async` for one call. If the task does not set it (`None`), the setting decides, then the
default. `lock` is the exception: `None` switches locking off, as `False` does; for "not set here" use
`celery_redislock.declaring.types.INHERIT`.

In the tables a setting stands below the option that it is the default of; one that begins a row has no
option. An option without a setting is set on tasks and calls only.

Unknown names, values out of range and contradictions raise one `LockOptionError` that lists all of them,
with the nearest valid name. A name is unknown if it begins with `lock_`, `on_lock_`, `on_conflict` or
`redislock_` and does not exist. Options of other libraries (`unique_on`, `raise_on_duplicate`, `once`,
`heimdall`, …) count as unknown, too; the error says what to write instead. Other attributes and
keywords are your own.
Unknown settings are logged when a worker starts, and with the first lock of a program that only publishes.

A callable given for one call is called only by the publisher. As `lock_key` it makes the key, which
travels with the message. As `on_conflict` it decides at publish only. As `on_lock_lost` it is refused.
"""

STRATEGY_NOTE = """\
One value applies to both sides, if the scope has both; `{'client': …, 'server': …}` sets them separately.
A callable receives the conflict and returns the name of a strategy.
"""


def options_page() -> str:
    """Return the page as Markdown, one line ending at its end. Always the same for one version."""
    scopes = map(_scope_cells, SCOPES.values())
    strategies = ((f"`{name!r}`", *sides) for name, sides in STRATEGIES.items())
    sections = [
        HEAD,
        *(part for group, rows in GROUPS.items() for part in (f"## {group.capitalize()}\n", _options(rows))),
        "## Scopes\n",
        _table(("`lock=`", "unique", "`on_conflict` at publish", "on the worker"), scopes),
        "## Conflict strategies\n",
        STRATEGY_NOTE,
        _table(("`on_conflict=`", "at publish (client)", "on the worker (server)"), strategies),
    ]
    return "\n".join(sections)


def _options(rows: Iterable[Row]) -> str:
    return _table(("option, or setting", "meaning", "value", "default"), map(_cells, rows))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    """Return the row, with the name of the setting below that of the option."""
    names = [f"`{name}`" for name in (row.attribute, row.setting) if name]
    default = row.default_note or f"`{row.default!r}`"
    return ("<br>".join(names), row.meaning, row.kind.wording, default)


def _scope_cells(scope: Scope) -> tuple[str, ...]:
    client = "-" if scope.client is None else f"`{scope.client!r}`"
    return (f"`{scope.name!r}`", scope.meaning, client, f"`{scope.server!r}`")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/options_page.py PATH")
    Path(sys.argv[1]).write_text(options_page(), encoding="utf-8")

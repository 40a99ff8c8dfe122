"""The reference page of all options, made from the table."""

from collections.abc import Iterable, Mapping

from celery_redislock.options.kinds import Planned
from celery_redislock.options.strategies import (
    PLANNED_SCOPES,
    PLANNED_STRATEGIES,
    SCOPE_MEANINGS,
    SCOPES,
    STRATEGIES,
)
from celery_redislock.options.table import ROWS, Row

__all__ = ["reference_page"]

_HEAD = """\
# Options and settings

<!-- Made from celery_redislock/options/table.py: python -m celery_redislock.options docs/options.md -->

A task option is an attribute of the task (`@app.task(base=SingletonTask, lock_ttl=60)`), and a keyword
of `apply_async` for one call. Where the task says nothing (`None`), the setting decides, then the
default. Only for `lock` is `None` an answer: it switches locking off, as does `False`; "not said here"
is `celery_redislock.options.INHERIT` there. Unknown names, values out of range and contradictions raise
`LockOptionError`, all at once, with the nearest valid name. Unknown is what begins like an option, and what
is a slip away from one (`onconflict`, `lockttl`); other attributes and keywords of yours are left alone.
Unknown settings are logged when a worker starts, and with the first lock of a program that only publishes.

A callable given for one call stays with the publisher: as `lock_key` it names the key that travels, as
`on_conflict` it decides at publish, as `on_lock_lost` it is refused.
"""

#: What is refused as a value of a setting that there is.
_PLANNED_SERVERS = (
    ("`redislock_url='redis+cluster://…'`", "Redis Cluster; meanwhile use a single server or `sentinel://`"),
    ("`redislock_url=[…]`", "a quorum of servers; meanwhile name one, or `sentinel://`"),
)

_STRATEGY_NOTE = """\
One value counts for each side the scope has; `{'client': …, 'server': …}` names them one by one.
A callable is given the conflict and returns a strategy's name.
"""


def reference_page() -> str:
    """Return the page as Markdown, one line ending at its end. Always the same for one version."""
    tasks = [row for row in ROWS if row.attribute and not row.is_planned]
    settings = [row for row in ROWS if row.attribute is None]
    planned = [row for row in ROWS if row.is_planned]
    sections = [
        _HEAD,
        "## Task options\n",
        _table(("option", "setting", "default", "value", "meaning"), map(_task_cells, tasks)),
        "## Settings only\n",
        _table(("setting", "default", "value", "meaning"), (_task_cells(row)[1:] for row in settings)),
        "## Scopes\n",
        _table(("`lock=`", "unique", "`on_conflict` at publish", "on the worker"), map(_scope_cells, SCOPES)),
        "## Conflict strategies\n",
        _STRATEGY_NOTE,
        _table(("`on_conflict=`", "meaning"), ((f"`{k!r}`", v) for k, v in STRATEGIES.items())),
        "## Not yet\n",
        "These are refused with a word on what to use meanwhile.\n",
        _table(
            ("asked for", "meaning"),
            [*map(_planned_cells, planned), *_planned_names(), *_PLANNED_SERVERS],
        ),
    ]
    return "\n".join(sections)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def _task_cells(row: Row) -> tuple[str, ...]:
    setting = f"`{row.setting}`" if row.setting else "-"
    default = row.default_note or f"`{row.default!r}`"
    return (f"`{row.attribute}`", setting, default, row.kind.wording, row.meaning)


def _scope_cells(scope: str) -> tuple[str, ...]:
    sides: Mapping[str, str] = SCOPES[scope]
    return (
        f"`{scope!r}`",
        SCOPE_MEANINGS[scope],
        *(f"`{sides[side]!r}`" if side in sides else "-" for side in ("client", "server")),
    )


def _planned_cells(row: Row) -> tuple[str, str]:
    assert isinstance(row.kind, Planned)  # noqa: S101  what is_planned means
    return f"`{row.name}`", f"{row.meaning}; {row.kind.instead}"


def _planned_names() -> list[tuple[str, str]]:
    scopes = [(f"`lock={name!r}`", text) for name, text in PLANNED_SCOPES.items()]
    return scopes + [(f"`on_conflict={name!r}`", text) for name, text in PLANNED_STRATEGIES.items()]

"""Write the page of incidents from its table: ``python tools/incidents_page.py docs/incidents.md``."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["incidents", "incidents_page"]

SOURCE = Path(__file__).with_name("incidents.toml")

HEAD = """\
# Incidents

<!-- Made from tools/incidents.toml: make docs -->

What went wrong with queues and locks, as people have reported it in public, and what happens here:
{count} rows, {threads} threads. A row without a thread was found in this package, unless it says where else.
"Shown by" names a test. It names a page where something is not prevented, or where more is to know.
"""


def incidents() -> list[dict[str, Any]]:
    """Return the parts of the page, each with its rows."""
    parts: list[dict[str, Any]] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["part"]
    return parts


def incidents_page() -> str:
    """Return the page as Markdown. Always the same for one source."""
    parts = incidents()
    rows = [row for part in parts for row in part["row"]]
    threads = {link for row in rows for link in row.get("links", ())}
    return HEAD.format(count=len(rows), threads=len(threads)) + "".join(map(_part, parts))


def _part(part: Mapping[str, Any]) -> str:
    lines = ["| What happened | What happens here | Shown by |", "| --- | --- | --- |"]
    lines += (f"| {' | '.join(_cells(row))} |" for row in part["row"])
    return f"\n## {part['name']}\n\n" + "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    links = ", ".join(_link(link) for link in row.get("links", ()))
    yield row["there"] + (f" ({links})" if links else "")
    yield row["here"]
    yield ", ".join([*(f"`{test}`" for test in row["tests"]), *([row["limit"]] if "limit" in row else [])])


def _link(thread: str) -> str:
    """Return the link to a thread. GitHub leads from an issue's address to that of a pull request."""
    repository, number = thread.split("#")
    return f"[{thread}](https://github.com/{repository}/issues/{number})"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/incidents_page.py PATH")
    Path(sys.argv[1]).write_text(incidents_page(), encoding="utf-8")

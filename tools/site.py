"""What pages of the site have beyond Sphinx's and furo's: tables and code that fit a phone, pictures, a menu.

An extension of Sphinx, named in ``docs/conf.py``; ``docs/static/site.css`` has the looks.
"""

import html
import posixpath
import re
from pathlib import PurePosixPath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

__all__ = ["folded", "hung", "setup"]

#: What a line drawing has in most of its lines: arrows, or upright strokes.
_STROKE = re.compile(r"--+>|<--+|(?:^| ) *[|+:](?: |$)")
_PRE = re.compile(r"(<pre>(?:<span></span>)?)(.*?)(</pre>)", re.DOTALL)
_PART = re.compile(r'<p[^>]*class="caption"[^>]*>(.*?)</p>\s*(<ul.*?</ul>)', re.DOTALL)
#: Characters beside each other on a phone, in a table.
_PHONE = 44


class Translator(HTML5Translator):
    """Writes the attributes that ``mark`` gave, the lines of code one by one, and pictures by the screen."""

    def starttag(
        self, node: Any, tagname: str, suffix: str = "\n", empty: bool = False, **attributes: Any
    ) -> str:
        attributes |= node.get("html", {})
        return str(super().starttag(node, tagname, suffix, empty, **attributes))

    def visit_literal_block(self, node: nodes.literal_block) -> None:
        start = len(self.body)
        try:
            super().visit_literal_block(node)
        finally:  # it skips the node by an exception
            is_text = node.get("language") in {"text", "none", "default"}
            self.body[start:] = [hung(part, is_text=is_text) for part in self.body[start:]]

    def visit_Text(self, node: nodes.Text) -> None:  # noqa: N802
        start = len(self.body)
        super().visit_Text(node)
        if self.protect_literal_text:
            self.body[start:] = map(_breakable, self.body[start:])

    def visit_image(self, node: nodes.image) -> None:
        """Write an image: with its form for a phone if there is one beside it, a photograph with a link."""
        source = node["uri"]
        super().visit_image(node)
        image = self.body.pop()
        path = PurePosixPath(source)
        phone = path.with_stem(f"{path.stem}-phone")
        if source in self.builder.images and (self.builder.srcdir / phone).exists():
            self.builder.images[str(phone)] = phone.name  # copied with the others
            address = posixpath.join(self.builder.imgpath, phone.name)
            image = f'<picture><source media="(max-width: 48em)" srcset="{address}">{image}</picture>'
        elif path.suffix == ".png" and not isinstance(node.parent, nodes.reference):
            image = f'<a class="full-size" href="{node["uri"]}">{image}</a>'
        self.body.append(image)


def _breakable(code: str) -> str:
    """Let a long name be broken behind an underscore, a dot and the like."""
    if found := re.fullmatch(r"(<[^>]+>)(.{18,})(</[^>]+>)", code):
        return found[1] + re.sub(r"(?<=[_.,=/:(|])(?=\w)", "<wbr>", found[2]) + found[3]
    return code


def hung(page: str, *, is_text: bool = False) -> str:
    """Return highlighted code with each line in an element that knows where it goes on if it is too long.

    Args:
        page: HTML with one ``<pre>``, as Pygments writes it: no element goes over the end of a line.
        is_text: what a program prints, in columns: a line goes on below the last column that begins early.
    """

    def line(code: str) -> str:
        plain = html.unescape(re.sub(r"<[^>]*>", "", code)).rstrip("\n")
        indent = len(plain) - len(plain.lstrip())
        columns = [gap.end() for gap in re.finditer(r" {2,}(?=\S)", plain) if gap.end() <= 30]
        hang = max(columns, default=indent + 2) if is_text else indent + 4
        return f'<span class="line" style="--hang:{hang}">{code}</span>'

    def lines(found: re.Match[str]) -> str:
        return found[1] + "".join(map(line, re.findall(r"[^\n]*\n|[^\n]+", found[2]))) + found[3]

    return _PRE.sub(lines, page)


def mark(_app: Sphinx, document: nodes.document, _page: str) -> None:
    """Give tables and code of a page what their looks need to know."""
    for table in document.findall(nodes.table):
        _mark_table(table)
    _mark_written_tables(document)
    for block in document.findall(nodes.literal_block):
        lines = block.astext().splitlines()
        if sum(_STROKE.search(line) is not None for line in lines) > max(2, len(lines) / 2):
            block["classes"].append("diagram")
            block["html"] = {"style": f"--columns:{max(map(len, lines))}"}


def _mark_table(table: nodes.table) -> None:
    """Name each cell by the head of its column; and keep the roles, which a table of blocks loses."""
    rows = [*table.findall(nodes.row)]
    columns = [[cell.astext() for cell in column] for column in zip(*rows, strict=False)]
    widths = [max(map(len, column)) for column in columns]
    longest = max((len(word) for word in " ".join(columns[0]).split()), default=0)
    table["html"] = {"role": "table"}
    if sum(widths) + 2 * len(widths) <= _PHONE or (len(widths) == 2 and widths[0] <= 24 and longest <= 14):
        table["classes"].append("stays")
    elif len(widths) > 5:
        table["classes"].append("wide")
    for row in rows:
        row["html"] = {"role": "row"}
        row.parent["html"] = {"role": "rowgroup"}
        is_head = isinstance(row.parent, nodes.thead)
        for number, (cell, head) in enumerate(zip(row, (column[0] for column in columns), strict=False)):
            cell["html"] = {"role": "columnheader" if is_head else "cell"}
            is_title = number == 0 and widths[0] > 16  # it says what it is
            if is_head or is_title or not head or not cell.astext():
                continue
            cell["html"]["data-label"] = head
            if len(cell.astext()) <= 24 and len(head) <= 24:
                cell["classes"].append("short")


def _mark_written_tables(document: nodes.document) -> None:
    """Name the cells of tables that are HTML in their page, with code in them."""
    heads: list[str] = []
    cells = 0

    def named(_found: re.Match[str]) -> str:
        nonlocal cells
        cells += 1
        return f'<td role="cell" data-label="{html.escape(heads[(cells - 1) % len(heads)])}">'

    for raw in [*document.findall(nodes.raw)]:
        if found := re.findall(r"<th>(.*?)</th>", raw.astext()):
            heads, cells = found, 0
        if heads and "<td>" in raw.astext():
            raw[:] = [nodes.Text(re.sub("<td>", named, raw.astext()))]


def folded(menu: str) -> str:
    """Return the menu with its parts to be opened: the first one is, and that of the page."""
    parts = iter(range(99))

    def part(found: re.Match[str]) -> str:
        is_open = " open" if next(parts) == 0 or 'class="current' in found[2] else ""
        return f'<details{is_open}><summary class="caption">{found[1]}</summary>{found[2]}</details>'

    return _PART.sub(part, menu)


def fold_menu(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _document: object) -> None:
    """Fold the menu that furo has made."""
    context["furo_navigation_tree"] = folded(context.get("furo_navigation_tree") or "")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.set_translator("html", Translator)
    app.connect("doctree-resolved", mark)
    app.connect("html-page-context", fold_menu, priority=900)  # behind furo's own
    return {"parallel_read_safe": True}

"""The page that compares with others: nothing takes more lines here than there."""

import re
from dataclasses import dataclass

import pytest

from tests.pages import PAGES, blocks_of

PAGE = "docs/comparison.md"
NUMBERED = re.compile(r"^## (\d+)\. (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same thing, there and here."""

    title: str
    theirs: str
    ours: str


def pairs_of(page: str) -> list[Pair]:
    """Return the code below each numbered heading."""
    headings = [(page[: found.start()].count("\n"), found[0]) for found in NUMBERED.finditer(page)]
    theirs, ours = ([block for block in blocks_of(kind) if block.page == PAGE] for kind in ("py", "python"))
    pairs = []
    for place, (line, title) in enumerate(headings):
        end = headings[place + 1][0] if place + 1 < len(headings) else page.count("\n")
        (there,) = [block.code for block in theirs if line < block.line < end]
        (here,) = [block.code for block in ours if line < block.line < end]
        pairs.append(Pair(title, there, here))
    return pairs


def lines_of(code: str) -> int:
    """Count the lines that say something to Python."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code.splitlines())


PAIRS = pairs_of(PAGES[PAGE])


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.title)
def test_it_takes_no_more_lines_here(pair: Pair) -> None:
    assert lines_of(pair.ours) <= lines_of(pair.theirs)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.title)
def test_neither_side_leaves_out_what_the_other_says(pair: Pair) -> None:
    """Both import what they use, and both declare the task where either does."""
    compile(pair.theirs, pair.title, "exec")

    for word in ("import", "def ", "try:"):
        assert word in pair.theirs or word not in pair.ours
    assert ("@app.task" in pair.theirs) == ("@app.task" in pair.ours)


def test_ten_things_are_compared() -> None:
    assert [pair.title.split()[1] for pair in PAIRS] == [f"{number}." for number in range(1, 11)]


def test_blank_lines_and_comments_do_not_count() -> None:
    assert lines_of("# said\n\nx = 1  # why\n    \n  # more\ny = 2\n") == 2

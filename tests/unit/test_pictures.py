"""Pictures in the pages: each has words for who does not see it, loads nothing, and tells of no machine."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from celery_redislock.declaring.scopes import SCOPES
from tests.pages import PAGES, ROOT
from tools.demo_picture import PRIVATE, shown

PICTURES = sorted((ROOT / "docs").glob("*.svg"))
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
SVG = "{http://www.w3.org/2000/svg}"

PRINTED = """\
  0.1 s      server: one of our own
  1.0 s  [1] 50 threads call thumbnail.delay(7) at the same moment
  1.0 s  [2] 3 x charge and 3 x refund
  1.1 s  [10]     held by      d9a6 (running, laptop:9872)

kept    1. 50 calls of delay() at the same moment
          expected  runs: 1; duplicates: 49
          seen      runs: 1; duplicates: 49
BROKEN  2. two tasks
          expected  runs: 6
          seen      runs: 5

1 of 2 promises kept in 24 s
"""


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_has_a_title_and_loads_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314  our own

    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title")
    assert re.findall(r"url\((?!#)|@import|href=|<script|<image|<foreignObject", text) == []


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_shown_on_a_page_in_words_too(path: Path) -> None:
    alts = [
        alt
        for page, text in PAGES.items()
        for alt, target in IMAGE.findall(text)
        if (ROOT / page).parent.joinpath(target).resolve() == path
    ]

    assert alts
    assert all(len(alt.split()) > 10 for alt in alts)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_tells_of_no_machine(path: Path) -> None:
    words = ["".join(each.itertext()).replace("\xa0", " ") for each in ET.parse(path).iter(f"{SVG}text")]  # noqa: S314

    assert words
    assert [each for each in words if PRIVATE.search(each)] == []


def test_the_picture_of_the_scopes_has_a_lane_for_each() -> None:
    root = ET.parse(ROOT / "docs" / "scopes.svg").getroot()  # noqa: S314
    lanes = [(each.text or "").strip() for each in root.iter(f"{SVG}text") if each.get("class") == "name"]

    assert lanes == list(SCOPES)
    assert all(f"{scope}:" in root.findtext(f"{SVG}desc", "") for scope in SCOPES)


@pytest.mark.parametrize(
    ("line", "tells"),
    [
        ("held by 7f1c (running, laptop:9872)", True),
        ("in the hands of worker w2@laptop", True),
        ("started /home/ada/shop.py", True),
        ("lock_key='account:{account_id}'", False),
        ("worker 15937 is busy, and has pack(1) in hand: kill -9", False),
        ("runs: 1; duplicates: 49", False),
    ],
)
def test_what_tells_of_a_machine_is_recognised(line: str, tells: bool) -> None:
    assert bool(PRIVATE.search(line)) == tells


def test_the_demos_picture_has_its_scenes_and_every_verdict() -> None:
    """What was expected is shown where something else was seen."""
    lines = PRINTED.splitlines()

    assert shown(lines) == [*lines[:2], *lines[4:6], *lines[7:]]

"""Pictures in the pages."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from celery_redislock.declaring.scopes import SCOPES
from tests.pages import ROOT
from tools.demo_picture import PRIVATE

PICTURES = sorted((ROOT / "docs").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_has_a_title_loads_nothing_and_tells_of_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314  our own
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title")
    assert re.findall(r"url\((?!#)|@import|href=|<script|<image|<foreignObject", text) == []
    words = ["".join(each.itertext()).replace("\xa0", " ") for each in root.iter(f"{SVG}text")]
    assert words
    assert [each for each in words if PRIVATE.search(each)] == []


def test_the_picture_of_the_scopes_has_a_lane_for_each() -> None:
    root = ET.parse(ROOT / "docs" / "scopes.svg").getroot()  # noqa: S314
    lanes = [(each.text or "").strip() for each in root.iter(f"{SVG}text") if each.get("class") == "name"]
    assert lanes == list(SCOPES)

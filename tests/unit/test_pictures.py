"""Pictures in the pages."""

import re
import struct
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import pytest

from celery_redislock.declaring.scopes import SCOPES
from tests.pages import ROOT
from tools.demo_picture import PRIVATE
from tools.palette import reduced

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


@pytest.mark.parametrize("name", ["scopes.svg", "scopes-phone.svg"])
def test_the_picture_of_the_scopes_has_a_lane_for_each(name: str) -> None:
    root = ET.parse(ROOT / "docs" / name).getroot()  # noqa: S314
    lanes = [(each.text or "").strip() for each in root.iter(f"{SVG}text") if each.get("class") == "name"]
    assert lanes == list(SCOPES)


@pytest.mark.parametrize("name", ["demo", "scopes"])
def test_a_picture_for_a_phone_says_the_same_in_narrower_lines(name: str) -> None:
    pair = [ROOT / "docs" / f"{name}{form}.svg" for form in ("", "-phone")]
    wide, narrow = (ET.parse(path).getroot() for path in pair)  # noqa: S314
    assert int(float(narrow.get("viewBox", "").split()[2])) < 620
    assert [narrow.findtext(f"{SVG}{part}") for part in ("title", "desc")] == [
        wide.findtext(f"{SVG}{part}") for part in ("title", "desc")
    ]
    if name == "demo":  # the other one has shorter words
        lines = [" ".join(each.itertext()) for root in (wide, narrow) for each in root.iter(f"{SVG}text")]
        said = " ".join(lines).split()
        assert said[: len(said) // 2] == said[len(said) // 2 :]


def test_the_picture_of_the_scopes_has_a_dark_form() -> None:
    """Each colour that is filled has another one there, but for those of words on dark bars."""
    for name in ("scopes.svg", "scopes-phone.svg"):
        light, dark = (
            (ROOT / "docs" / name).read_text(encoding="utf-8").split("@media (prefers-color-scheme: dark)")
        )
        for chosen in (".ground", ".phase", ".lock", ".place", ".no rect", ".yes rect", ".wait rect"):
            assert f"{chosen} {{" in light, chosen
            assert f"{chosen} {{" in dark, chosen
        assert "fill=" not in dark


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def test_a_picture_with_a_palette_has_the_same_pixels() -> None:
    """Whichever filter a line of it had: none, and the difference from left, above, both, and the nearest."""
    red, grey, blue = b"\xff\0\0", b"\x80\x80\x80", b"\0\0\xff"
    lines = [
        b"\0" + red + grey + blue,
        b"\1" + red + b"\x81\x80\x80" + b"\x80\x80\x7f",
        b"\2" + bytes(9),
        b"\3" + b"\x80\0\0" + b"\xc1\x40\x40" + b"\xc0\xc0\x40",
        b"\4" + bytes(9),
    ]
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 5, 8, 2, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"".join(lines))) + chunk(b"IEND", b"")

    small = reduced(png)

    start = small.index(b"PLTE") + 4
    palette = [small[at : at + 3] for at in range(start, start + 9, 3)]
    (length,) = struct.unpack(">I", small[start + 13 : start + 17])
    data = zlib.decompress(small[start + 21 : start + 21 + length])
    assert data[::4] == bytes(5)
    rows = [[palette[place] for place in data[at + 1 : at + 4]] for at in range(0, 20, 4)]
    assert rows == [[red, grey, blue]] * 5

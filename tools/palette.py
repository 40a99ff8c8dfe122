"""Make a picture of Chromium's smaller: ``reduced`` gives it a palette, without a library for images."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

__all__ = ["reduced"]

_HEAD = b"\x89PNG\r\n\x1a\n"
#: Colours that a palette has at most.
_MOST = 256
#: Bytes of a pixel, by the kind of picture (PNG, 11.2.2): red, green and blue, and how opaque.
_BYTES = {2: 3, 6: 4}


def reduced(png: bytes) -> bytes:
    """Return a PNG with at most 256 colours: its most frequent ones, in place of any other the nearest.

    Args:
        png: of 8 bits a channel, not interlaced, and opaque.
    """
    width, height, kind = struct.unpack(">IIxB", png[16:26])
    step = _BYTES[kind]
    data = zlib.decompress(b"".join(body for name, body in _chunks(png) if name == b"IDAT"))
    rows = [
        [bytes(line[at : at + 3]) for at in range(0, len(line), step)]
        for line in _lines(data, width * step, step)
    ]
    counts = Counter(pixel for row in rows for pixel in row)
    palette = [colour for colour, _ in counts.most_common(_MOST)]
    places = {colour: _nearest(colour, palette) for colour in counts}
    lines = b"".join(b"\0" + bytes(places[pixel] for pixel in row) for row in rows)
    return _HEAD + b"".join(
        [
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", b"".join(palette)),
            _chunk(b"IDAT", zlib.compress(lines, 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_HEAD)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _lines(data: bytes, width: int, step: int) -> Iterator[bytearray]:
    """Yield the bytes of each line, in whose place a filter has put differences from those near (PNG, 9)."""
    above = bytearray(width)
    for at in range(0, len(data), width + 1):
        how = data[at]
        line = bytearray(data[at + 1 : at + 1 + width])
        for place in range(width) if how else ():
            left = line[place - step] if place >= step else 0
            corner = above[place - step] if place >= step else 0
            near = _near(how, left, above[place], corner)
            line[place] = (line[place] + near) & 255
        yield line
        above = line


def _near(how: int, left: int, above: int, corner: int) -> int:
    if how < 4:
        return (left, above, (left + above) // 2)[how - 1]
    guess = left + above - corner
    return min((left, above, corner), key=lambda near: abs(guess - near))  # the first one of several


def _nearest(colour: bytes, palette: list[bytes]) -> int:
    def distance(place: int) -> int:
        return sum((one - other) ** 2 for one, other in zip(colour, palette[place], strict=True))

    return min(range(len(palette)), key=distance)

"""Elements of the page. Whatever is put into one is text: keys and names may have been written by anybody."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from celery_redislock.operating.telling import as_json, printable
from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import short
from celery_redislock.wire.connection import mask_password

#: Characters of a text that are shown.
LONGEST = 400

#: Characters of a command, which is told whole or not at all; and the keys of documents that have one.
LONGEST_COMMAND = 4000
COMMANDS = ("command", "release_command")

#: Points of a curve, and its size.
POINTS = 60
WIDTH = 120
HEIGHT = 24


def shown(text: object, most: int = LONGEST) -> str:
    """Return a text as the page shows it: without passwords and control characters, and not too long."""
    whole = str(text)[: 2 * most]
    whole = printable(mask_password(whole) if "://" in whole else whole)
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"


def shown_command(command: str) -> str:
    """Return a command, or else why it is not shown: cut, masked or escaped it would be another one."""
    is_whole = shown(command, LONGEST_COMMAND) == command
    return command if is_whole else "not shown, as it would be another one: list --json tells the whole key"


def opened(value: Any, values: Collection[str] = ()) -> Any:
    """Return a document, or a text of one, as anybody may see it: without tokens and passwords, and bounded.

    ``values``: of foreign locks, which are shortened; where a holder tells its state, its value is, too.
    """
    if isinstance(value, Holder):
        value = as_json(value)
    if isinstance(value, Mapping):
        values = [*values, value["owner"]] if value.get("state") == "foreign" else values
        return {
            shown(key): shown_command(each) if key in COMMANDS and each else opened(each, values)
            for key, each in value.items()
            if key != "token"
        }
    if isinstance(value, list | tuple):
        return [opened(each, values) for each in value]
    if isinstance(value, str):
        for whole in values:
            value = value.replace(whole, short(whole))
    return value if value is None or isinstance(value, bool | int | float) else shown(value)


def skips_by_others(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return which skips of entries of the schedule tell as their holder the value of a foreign lock."""
    skips = (entry["last_skip"] for entry in entries)
    return [skip for skip in skips if skip and skip["state"] is None]


def tag(name: str, /, *children: object, **attributes: object) -> Element:
    """Return an element; a child that is none is text, ``None`` nothing.

    Of an attribute's name a ``_`` at the end is left out, and others are dashes.
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    element = Element(name, {key: shown(value, 4000) for key, value in named.items() if value is not None})
    add(element, children)
    return element


def add(element: Element, children: Iterable[object]) -> None:
    """Add children to an element, as :func:`tag` takes them."""
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif child is not None and len(element):
            element[-1].tail = (element[-1].tail or "") + shown(child)
        elif child is not None:
            element.text = (element.text or "") + shown(child)


def bar(number: int, most: int, label: str) -> Element:
    """Return a bar of so many, of so many at most."""
    return tag("meter", min=0, max=max(1, most), value=number, aria_label=label)


def curve(numbers: Sequence[int], label: str) -> Element:
    """Return a small curve."""
    step = max(1, len(numbers) // POINTS)
    chosen = numbers[::-step][::-1]
    top = max(1, *chosen) if chosen else 1
    across = WIDTH / max(1, len(chosen) - 1)
    places = " ".join(
        f"{place * across:.0f},{HEIGHT - 1 - number / top * (HEIGHT - 2):.1f}"
        for place, number in enumerate(chosen)
    )
    line = tag("polyline", points=places)
    return tag(
        "svg", line, viewBox=f"0 0 {WIDTH} {HEIGHT}", preserveAspectRatio="none", role="img", aria_label=label
    )


def to_copy(command: str) -> Element | None:
    """Return a command; a click on it selects it all."""
    if not command:
        return None
    code = tag("code", class_="copy")
    code.text = shown_command(command)
    return code

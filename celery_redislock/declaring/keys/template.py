"""Resource templates: ``"account:{account_id}"`` with the arguments' values in it.

Fields are those of ``str.format``: a parameter, then attributes and items (``{order.id}``, ``{order[id]}``,
``{items[0]}``). An argument that reaches the worker as a mapping, such as a dumped pydantic model, answers to
both spellings. Conversions and format specifications (``!r``, ``:>8``) are refused: they decide how a value
looks, and a key must say what it is.

**No two resources share a name.** Values escape ``:`` and every character that separates fields in their
template; so the text between two fields must contain such a character: ``"{a}{b}"`` is refused, since ``1,
23`` and ``12, 3`` would meet. Values are compared as text: ``42`` and ``"42"`` name the same account.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from string import Formatter
from typing import NamedTuple
from uuid import UUID

from celery_redislock.declaring.keys.digest import PLAIN, as_worker_sees
from celery_redislock.exceptions import LockKeyError
from celery_redislock.locks.naming import escape, unsafe

_FIELD = r"(?P<parameter>[^\W\d]\w*)(?P<path>(?:\.[^\W\d_]\w*|\[[^\[\]]+\])*)"
_STEP = r"\.(?P<attribute>\w+)|\[(?P<item>[^\[\]]+)\]"
# Values whose text says all about them. Not lists, mappings or strange objects: their text hangs on
# order, or on an address in memory.
_SPEAKING = (str, int, float, Decimal, UUID, date, time)


class Field(NamedTuple):
    """One ``{…}`` of a template: a parameter and the way from its value to the part that counts."""

    text: str
    parameter: str
    path: tuple[tuple[str, bool], ...]  # a name, and whether it stood in brackets

    def read(self, arguments: Mapping[str, object], *, where: str) -> str:
        """Return the field's value as text.

        Raises:
            LockKeyError: it is not there, or is ``None``, or has no text of its own (a list, a mapping).
        """
        if self.parameter not in arguments:
            raise not_given(where, self.parameter, arguments)
        value = arguments[self.parameter]
        if type(value) not in PLAIN:
            value = as_worker_sees(value)
        for name, is_item in self.path:
            try:
                value = _step(value, name, is_item=is_item)
            except (LookupError, AttributeError, TypeError) as error:
                problem = (
                    f"lock_key {{{self.text}}} cannot be read: {type(error).__name__}: {error}; "
                    "pass a value that has that part, or use a callable lock_key"
                )
                raise LockKeyError(where, problem) from error
        if isinstance(value, _SPEAKING):
            return value.isoformat() if isinstance(value, date | time) else str(value)
        problem = (
            f"lock_key {{{self.text}}} is of type {type(value).__name__}, whose text is no stable name; "
            f"name a part of it ({{{self.text}.id}}, {{{self.text}[0]}}), or use a callable lock_key"
        )
        if value is None:
            problem = (
                f"lock_key {{{self.text}}} is None, which names no resource; "
                "pass a value, or use a callable lock_key that decides what None means"
            )
        raise LockKeyError(where, problem)


class Template(NamedTuple):
    """A parsed template: escaped texts and fields in turn."""

    parts: tuple[str | Field, ...]
    unsafe: re.Pattern[str]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields in order."""
        return tuple(part for part in self.parts if isinstance(part, Field))

    def render(self, arguments: Mapping[str, object], *, where: str) -> str:
        """Return the resource's text, not yet shortened; raises as :meth:`Field.read`."""
        texts: list[str] = []
        for part in self.parts:
            if isinstance(part, str):
                texts.append(part)
            else:
                value = part.read(arguments, where=where)
                texts.append(value if value.isalnum() else escape(value, self.unsafe))
        return "".join(texts)


def parse_template(text: str) -> Template:
    """Parse *text*.

    Raises:
        ValueError: it cannot be one; the text follows ``lock_key``.
    """
    parts: list[str | Field] = []
    separators = {":"}
    between = ""
    is_first = True
    for literal, field, spec, conversion in Formatter().parse(text):  # "{{" comes as a piece of its own
        parts.append(escape(literal))
        between += literal
        if field is None:
            continue
        marks = {mark for mark in between if not mark.isalnum() and escape(mark) == mark}
        if not is_first and not marks:
            raise ValueError(
                f"put a separator such as ':' before {{{field}}}: without one, values run together"
            )
        separators |= set() if is_first else marks
        parts.append(field_of(field, spec, conversion))
        between = ""
        is_first = False
    return Template(tuple(part for part in parts if part), unsafe(separators))


def not_given(where: str, parameter: str, arguments: Mapping[str, object]) -> LockKeyError:
    """Return the error for a call that brings no argument of this name."""
    given = ", ".join(map(repr, arguments)) or "no arguments"
    problem = (
        f"lock_key names {parameter!r}, which is not among {given}; the call does not fit the task's "
        "signature: give it all its arguments"
    )
    return LockKeyError(where, problem)


def field_of(text: str, spec: str | None, conversion: str | None) -> Field:
    """Read what stands between braces; raises ``ValueError`` as :func:`parse_template`."""
    if spec or conversion:
        format_ = f"!{conversion}" if conversion else f":{spec}"
        raise ValueError(
            f"{{{text}{format_}}} asks for a format; a key takes values as they are: write {{{text}}}"
        )
    found = re.fullmatch(_FIELD, text)
    if found is None:
        raise ValueError(f"{{{text}}} is no parameter's name with .attributes or [items]")
    path = tuple(
        (m["attribute"] or m["item"], m["item"] is not None) for m in re.finditer(_STEP, found["path"])
    )
    return Field(text, found["parameter"], path)


def _step(value: object, name: str, *, is_item: bool) -> object:
    if isinstance(value, Mapping):
        found: object = value[name]
        return found
    if not is_item:
        return getattr(value, name)
    if isinstance(value, Sequence) and name.isdigit():
        return value[int(name)]
    raise TypeError(f"{type(value).__name__} has no item {name!r}")

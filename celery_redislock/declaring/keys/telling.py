"""What a holder tells of its call's arguments: a fingerprint or a digest, and a text for people."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from string import Formatter
from zlib import crc32

from celery_redislock.declaring.keys.digest import PLAIN, digest
from celery_redislock.declaring.keys.template import Field, field_of, parse_template
from celery_redislock.declaring.kinds import hint

#: Characters of the text; and of an argument that is worth a look.
LONGEST = 80
SHORT = 200
#: Hex digits of what tells of all arguments; a fingerprint has eight, so that neither is taken for the other.
OF_ALL = 10

#: Returns the end of a JSON object, which begins with a comma; '' where there is nothing to tell.
Teller = Callable[[Mapping[str, object]], str]


def teller(
    lock_key: object, describe: str | None, parameters: Sequence[str] | None, *, of_all: bool = False
) -> Teller | None:
    """Return what tells of arguments, as a :class:`Binder` binds them; ``None`` where nothing is to be told.

    A key that leaves no argument out tells by itself whether two calls are the same. *describe* has been
    checked. ``of_all``: other calls under the key are refused, so what is told differs where any argument
    does.
    """
    identify = _digest if of_all else _fingerprint if _leaves_out(lock_key, parameters) else None
    if not (identify or describe):
        return None
    return partial(_tell, identify, _parts_of(describe or ""))


def problems_of_text(describe: str, parameters: Sequence[str] | None) -> list[str]:
    """Return what is wrong with a ``lock_describe``."""
    try:
        named = [part.parameter for part in _parts_of(describe) if isinstance(part, Field)]
    except ValueError as error:
        return [f"lock_describe: {error}"]
    known = named if parameters is None else parameters
    otherwise = f"its parameters are {', '.join(known) or 'none'}"
    return [
        f"lock_describe names {name!r}, which is no parameter of the task; {hint(name, known, otherwise)}"
        for name in named
        if name not in known
    ]


def _parts_of(describe: str) -> list[str | Field]:
    """Return the texts and fields of a ``lock_describe``; raises ``ValueError``."""
    parts: list[str | Field] = []
    for literal, field, spec, conversion in Formatter().parse(describe):
        parts.append(literal)
        if field is not None:
            parts.append(field_of(field, spec, conversion))
    return parts


def _tell(identify: Teller | None, parts: Sequence[str | Field], arguments: Mapping[str, object]) -> str:
    args = identify(arguments) if identify else ""
    text = "".join(part if isinstance(part, str) else _read(part, arguments) for part in parts)
    about = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    return f',"args":"{args}"' + (f',"about":{quoted(about)}' if about else "")


def _read(field: Field, arguments: Mapping[str, object]) -> str:
    """Return a field's text; the call is published all the same where it has none."""
    try:
        return field.read(arguments, where="lock_describe")
    except Exception:  # noqa: BLE001  a property of somebody's own may raise anything
        return "?"


def _fingerprint(arguments: Mapping[str, object]) -> str:
    """Return what differs where short and plain arguments do; the others are not looked at, however large."""
    plain = {
        name: value
        for name, value in arguments.items()
        if type(value) in PLAIN and (type(value) is not str or len(value) <= SHORT)
    }
    return f"{crc32(repr(sorted(plain.items())).encode(errors='replace')):08x}"


def _digest(arguments: Mapping[str, object]) -> str:
    """Return what differs where any argument does; '' for arguments that have no digest."""
    try:
        return digest(arguments)[:OF_ALL]
    except Exception:  # noqa: BLE001  an object of somebody's own may raise anything when it is encoded
        return ""


def _leaves_out(lock_key: object, parameters: Sequence[str] | None) -> bool:
    """Whether calls with other arguments may have the same key."""
    if lock_key is None:
        return False
    if parameters is None or callable(lock_key):
        return True
    if not isinstance(lock_key, str):
        return not {*parameters} <= {*lock_key}  # type: ignore[misc]  # parse_key has found a tuple or list
    fields = parse_template(lock_key).fields
    return not {*parameters} <= {field.parameter for field in fields if not field.path}

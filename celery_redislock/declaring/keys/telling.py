"""What a holder tells of its call's arguments: a fingerprint, and a text for people."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from urllib.parse import unquote
from zlib import crc32

from celery_redislock.declaring.keys.digest import PLAIN
from celery_redislock.declaring.keys.template import Template, parse_template
from celery_redislock.declaring.kinds import hint
from celery_redislock.exceptions import LockKeyError

__all__ = ["problems_of_text", "teller"]

#: Characters of the text; and of an argument that is worth a look.
LONGEST = 80
SHORT = 200

#: Returns the end of a JSON object, which begins with a comma; '' where there is nothing to tell.
Teller = Callable[[Mapping[str, object]], str]


def teller(lock_key: object, describe: str | None, parameters: Sequence[str] | None) -> Teller | None:
    """Return what tells of arguments, as a :class:`Binder` binds them; ``None`` where nothing is to be told.

    A key that leaves no argument out tells by itself whether two calls are the same. *describe* is a
    template, as for ``lock_key``, and has been checked.
    """
    is_partial = _leaves_out(lock_key, parameters)
    if not (is_partial or describe):
        return None
    return partial(_tell, is_partial, None if describe is None else parse_template(describe))


def problems_of_text(describe: str, parameters: Sequence[str] | None) -> list[str]:
    """Return what is wrong with a ``lock_describe``."""
    try:
        named = [field.parameter for field in parse_template(describe).fields]
    except ValueError as error:
        return [f"lock_describe: {error}"]
    known = named if parameters is None else parameters
    otherwise = f"its parameters are {', '.join(known) or 'none'}"
    return [
        f"lock_describe names {name!r}, which is no parameter of the task; {hint(name, known, otherwise)}"
        for name in named
        if name not in known
    ]


def _tell(is_partial: bool, template: Template | None, arguments: Mapping[str, object]) -> str:
    args = _fingerprint(arguments) if is_partial else ""
    about = ""
    if template is not None:
        # What is not there is not told; the call is published all the same.
        with suppress(LockKeyError):
            about = unquote(template.render(arguments, where="lock_describe"))
            about = about if len(about) <= LONGEST else f"{about[: LONGEST - 1]}…"
    return f',"args":"{args}"' + (f',"about":{quoted(about)}' if about else "")


def _fingerprint(arguments: Mapping[str, object]) -> str:
    """Return what differs where short and plain arguments do; the others are not looked at, however large."""
    plain = {
        name: value
        for name, value in arguments.items()
        if type(value) in PLAIN and (type(value) is not str or len(value) <= SHORT)
    }
    return f"{crc32(repr(sorted(plain.items())).encode(errors='replace')):08x}"


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

"""Lock names as they stand in Redis: readable, safe, unambiguous, bounded."""

import re
from collections.abc import Iterable
from typing import Any

#: Longest lock name in bytes of UTF-8; longer ones end in a digest.
MAX_BYTES = 200

# Braces would end the name's hash tag; white space, controls and lone surrogates break logs and redis-cli.
_UNSAFE = "{}\x00-\x20\x7f-\xa0\\s\ud800-\udfff"

_UNSAFE_ALONE = re.compile(f"[{_UNSAFE}]")

# Never part of an escaped text, where "%" is always followed by two hex digits.
_CUT = "%~"


def unsafe(more: Iterable[str] = ()) -> re.Pattern[str]:
    """Return the pattern of the characters :func:`escape` escapes, and of *more*: no letters or digits."""
    return re.compile(f"[%{_UNSAFE}{re.escape(''.join(sorted(more)))}]")


def escape(text: str, pattern: re.Pattern[str] = unsafe()) -> str:  # noqa: B008  compiled once
    r"""Percent-escape the characters that no lock name may have; the others stay readable.

    Escaped are ``%``, braces, white space (Unicode's too), control characters
    and lone surrogates, as their UTF-8 bytes. Two texts never share a result.

    >>> escape("café {1}\n")
    'café%20%7B1%7D%0A'
    """
    return pattern.sub(_percent, text)


def lock_name(text: str) -> str:
    """Return the name of the lock that somebody calls *text*: a resource, or a lock's name as it stands.

    As :func:`escape` and :func:`shorten` make it, but ``%`` is left alone: a lock's name
    (``task.lock_for(...).key``, ``celery redislock list``) names that lock. A resource whose own text has
    a ``%`` before two hex digits may thus share a lock with one that has the character they stand for.

    >>> lock_name("nightly import"), lock_name("nightly%20import")
    ('nightly%20import', 'nightly%20import')
    """
    return shorten(_UNSAFE_ALONE.sub(_percent, text))


def names_of(name: Any) -> list[Any]:
    """Return the names that a caller gives a lock: a list of them, or one."""
    return list(name) if isinstance(name, list | tuple) and name else [name]


def joint_name(names: list[str]) -> str:
    """Return the name of a lock of several names: each once, in one order, a space between two."""
    if len(names) == 1:
        return lock_name(names[0])
    return " ".join(sorted({lock_name(each) for each in names}))


def shorten(name: str) -> str:
    """Return *name*, or its readable beginning and a digest of all of it if it is over 200 bytes.

    A shortened name differs from every name that was not shortened.
    """
    encoded = name.encode()
    if len(encoded) <= MAX_BYTES:
        return name
    from hashlib import sha256  # noqa: PLC0415  slow to import, and seldom needed here

    ending = f"{_CUT}{sha256(encoded).hexdigest()[:32]}"
    return encoded[: MAX_BYTES - len(ending)].decode(errors="ignore") + ending


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))

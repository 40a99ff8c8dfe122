"""Values as the worker sees them, and a short fingerprint of them.

Celery's default serializer is kombu's JSON, so that decides what is equal: a tuple is a list, ``{1: x}`` is
``{"1": x}``, UUIDs, dates, Decimals and bytes have a form, ``__json__`` and ``register_type`` are honoured
(kombu 5.7.0, ``utils/json.py``). ``1``, ``1.0``, ``True`` and ``"1"`` are four values, and so are two
spellings of one Unicode text.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from celery_redislock.exceptions import LockKeyError

# The same in every serializer, so no round trip is needed. Exact types: a subclass may encode itself.
PLAIN = frozenset({str, int, float, bool, type(None)})
#: Hex digits of a fingerprint.
DIGITS = 32
_REFUSALS = (TypeError, ValueError, RecursionError)
# A mapping whose first key may have been no text: numbers are not sorted as their texts are.
_MAY_BE_NO_TEXT = re.compile(r'\{"(?:[-0-9]|(?:true|false|NaN|Infinity)":)').search


def digest(value: object, *, where: str = "digest") -> str:
    """Fingerprint *value*: :data:`DIGITS` hex digits, the same in every process and for ever.

    SHA-256 cut to 128 bits, over kombu's JSON with sorted keys and no spaces: allowed in FIPS mode, and safe
    against made-up collisions. *where* names the task, for the error.

    Raises:
        LockKeyError: part of *value* cannot be sent as JSON: a set, a plain
            object, a mapping with tuples as keys.
    """
    from hashlib import sha256  # noqa: PLC0415  slow to import, and not needed to declare a task

    encoded = _encoder()
    try:
        text = "".join(encoded(value, 0))
    except _REFUSALS:
        text = ""  # keys of several types, which do not sort; or what has no form, and is named below
    if not text or _MAY_BE_NO_TEXT(text):
        try:
            # Keys become text before they are sorted: 2 sorts before 10 but after "10".
            text = "".join(encoded(json.loads(_kombu_encoder().encode(value)), 0))
        except _REFUSALS as error:
            raise LockKeyError(where, _what_is_wrong(value, error)) from error
    return sha256(text.encode()).hexdigest()[:DIGITS]


def as_worker_sees(value: object) -> object:
    """Return *value* after the trip to the worker: through kombu's JSON and back.

    What JSON cannot carry comes back as it is: its task must travel by another
    serializer (pickle, say), which delivers the object itself.
    """
    if type(value) in PLAIN:
        return value
    from kombu.utils.json import loads  # noqa: PLC0415  slow to import, and seldom needed

    try:
        returned: object = loads(_kombu_encoder().encode(value))
    except _REFUSALS:
        return value
    return returned


@cache
def _encoder() -> Callable[[object, int], Iterable[str]]:
    """Return what encodes a value, sorted and without spaces; to make one takes as long as to use it."""
    options = {"sort_keys": True, "separators": (",", ":"), "check_circular": False}
    encoder = json.JSONEncoder(**options, default=_kombu_encoder().default)  # type: ignore[arg-type]
    quote = json.encoder.encode_basestring_ascii
    make: Callable[..., Any] = json.encoder.c_make_encoder  # type: ignore[attr-defined]  # not in its stubs
    return make(None, encoder.default, quote, None, ":", ",", True, False, True)  # type: ignore[no-any-return]


@cache
def _kombu_encoder() -> json.JSONEncoder:
    from kombu.utils.json import JSONEncoder  # noqa: PLC0415  slow to import, and seldom needed

    encoder: json.JSONEncoder = JSONEncoder()
    return encoder


def _what_is_wrong(value: object, error: Exception) -> str:
    subject = "the value"
    for name, item in value.items() if isinstance(value, Mapping) else ():
        try:
            _kombu_encoder().encode(item)
        except _REFUSALS:
            subject = f"argument {str(name)!r} ({type(item).__name__})"
            break
    return (
        f"{subject} cannot be part of a key: {error}; name the arguments that matter with lock_key=, "
        "for instance lock_key=('account_id',) or lock_key='account:{account_id}'"
    )

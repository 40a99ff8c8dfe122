"""Values as the worker sees them, and a short fingerprint of them.

Celery's default serializer is kombu's JSON, so that decides what is equal:
a tuple is a list, ``{1: x}`` is ``{"1": x}``, UUIDs, dates, Decimals and bytes
have a form, ``__json__`` and ``register_type`` are honoured (kombu 5.7.0,
``utils/json.py``). ``1``, ``1.0``, ``True`` and ``"1"`` are four values, and so
are two spellings of one Unicode text.
"""

import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256

from celery_redislock.exceptions import LockKeyError

# The same in every serializer, so no round trip is needed. Exact types: a subclass may encode itself.
PLAIN = frozenset({str, int, float, bool, type(None)})
_REFUSALS = (TypeError, ValueError, RecursionError)

_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def digest(value: object, *, where: str = "digest") -> str:
    """Fingerprint *value*: 32 hex digits, the same in every process and for ever.

    SHA-256 cut to 128 bits, over kombu's JSON with sorted keys and no spaces:
    allowed in FIPS mode, and safe against made-up collisions. The error takes a
    mapping for arguments by name; *where* is the task's, for the error.

    Raises:
        LockKeyError: part of *value* cannot be sent as JSON: a set, a plain
            object, a mapping with tuples as keys.
    """
    try:
        text = _canonical(value)
    except _REFUSALS as error:
        raise LockKeyError(where, _what_is_wrong(value, error)) from error
    return sha256(text.encode()).hexdigest()[:32]


def as_worker_sees(value: object) -> object:
    """Return *value* after the trip to the worker: through kombu's JSON and back.

    Plain text, numbers, booleans and ``None`` come back as they are. So does
    what JSON cannot carry: its task must travel by another serializer (pickle,
    say), which delivers the object itself.
    """
    if type(value) in PLAIN:
        return value
    from kombu.utils.json import loads  # noqa: PLC0415  slow to import, and seldom needed

    try:
        returned: object = loads(_kombu_encoder().encode(value))
    except _REFUSALS:
        return value
    return returned


def _canonical(value: object) -> str:
    if _is_plain(value):
        return _SORTED.encode(value)
    # Keys become text before they are sorted: 2 sorts before 10 but after "10", and mixed types do not sort.
    return _SORTED.encode(json.loads(_kombu_encoder().encode(value)))


def _is_plain(value: object) -> bool:
    if type(value) is dict:
        return set(map(type, value)) <= {str} and PLAIN.issuperset(map(type, value.values()))
    return type(value) in PLAIN


@cache
def _kombu_encoder() -> json.JSONEncoder:
    from kombu.utils.json import JSONEncoder  # noqa: PLC0415  slow to import, and seldom needed

    encoder: json.JSONEncoder = JSONEncoder()
    return encoder


def _what_is_wrong(value: object, error: Exception) -> str:
    subject = "the value"
    if isinstance(value, Mapping):
        culprits = [str(name) for name, item in value.items() if not _has_form(item)]
        subject = f"argument {culprits[0]!r} ({type(value[culprits[0]]).__name__})" if culprits else subject
    return (
        f"{subject} cannot be part of a key: {error}; name the arguments that matter with lock_key=, "
        "for instance lock_key=('account_id',) or lock_key='account:{account_id}'"
    )


def _has_form(value: object) -> bool:
    try:
        _canonical(value)
    except _REFUSALS:
        return False
    return True

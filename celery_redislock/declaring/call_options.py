"""Options of one call: taken out of ``apply_async``, checked, sent along, applied on the worker."""

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from celery_redislock.declaring.options import LockOptions, disagreements, freeze, problems_of, read_value
from celery_redislock.declaring.scopes import OnConflict, Scope
from celery_redislock.declaring.table import INHERIT, TASK_ROWS, is_given
from celery_redislock.declaring.unknown import OF_ENTRIES, is_meant_for_us, unknown_options
from celery_redislock.exceptions import LockOptionError


def split_call_options(options: MutableMapping[str, Any], *, where: str = "apply_async") -> dict[str, Any]:
    """Take this package's keywords out of *options*, in place unless it raises, and return them.

    A keyword that stayed would become a message property or a broker's error
    (celery 5.7.0, ``app/base.py``, ``send_task``). *where* is the task's name.

    Raises:
        LockOptionError: a keyword looks like ours and does not exist, or is another library's option.
    """
    ours = [name for name in options if is_meant_for_us(name)]
    if not ours:
        return {}
    if OF_ENTRIES in ours:
        ours.remove(OF_ENTRIES)
        del options[OF_ENTRIES]
    problems = unknown_options(ours)
    if problems:
        raise LockOptionError(where, problems)
    return {name: options.pop(name) for name in ours}


def override(
    base: LockOptions, where: str, call_options: Mapping[str, object], *, parameters: Sequence[str] | None
) -> LockOptions:
    """Return *base* with what one call asks for. Called on the publishing side.

    ``None`` leaves an option as the task has it; ``lock=None`` means not locked anywhere. A callable cannot
    travel: as ``lock_key`` or ``on_conflict`` it counts at publish only; for other options it is refused.

    Raises:
        LockOptionError: with every problem there is.
    """
    problems: list[str] = []
    own = {
        name: read_value(TASK_ROWS[name], name, value, problems)
        for name, value in call_options.items()
        if is_given(TASK_ROWS[name], value)
    }
    values = {**_values(base), **own}
    problems += [
        f"{name} is a callable, which cannot travel with a message; set it on the task"
        for name in ("on_lock_lost", "lock_limit")
        if callable(own.get(name))
    ]
    problems += [
        f"{name} is the task's, whoever calls it; set it there"
        for name in ("lock_skip_result", "lock_describe")
        if name in own
    ]
    conflict = own.get("on_conflict")
    if isinstance(conflict, OnConflict):
        if callable(conflict.server):
            if conflict.by_side:
                problems.append(
                    "on_conflict names a callable for the server side, which cannot travel with a message; "
                    "set it on the task"
                )
            conflict = OnConflict(conflict.client, None, by_side=True)
            own["on_conflict"] = conflict
        values["on_conflict"] = conflict.over(base.on_conflict)
    options = freeze(values)
    problems += problems_of(options, own, where, parameters)
    if "lock_period" in own and base.client == "coalesce" and not options.lock_debounce:
        problems.append("lock_period does not go with the task's on_conflict='coalesce'; leave it out")
    if problems:
        raise LockOptionError(where, problems)
    return options


def to_header(call_options: Mapping[str, object]) -> dict[str, object]:
    """Return what of *call_options* travels with the message, ready for JSON.

    Callables stay behind, and so does ``lock_key``: the key computed from it
    travels instead. Values must have passed :func:`override`.
    """
    header: dict[str, object] = {}
    for name, value in call_options.items():
        row = TASK_ROWS[name]
        if name == "lock_key" or not is_given(row, value):
            continue
        read = row.kind.read(value)
        if isinstance(read, Scope):
            read = read.name
        elif isinstance(read, OnConflict):
            sides = {"client": read.client, "server": read.server}
            read = {side: one for side, one in sides.items() if isinstance(one, str)}
        if read != {} and not callable(read):
            header[name] = read
    return header


def from_header(base: LockOptions, data: object) -> LockOptions:
    """Return the worker's own options *base* with those that came with a message.

    The message may come from another version of this package, or be made by hand. So this never raises:
    what it does not know is passed over, and *base* holds where the rest does not go together.
    """
    if not isinstance(data, Mapping) or not data:
        return base
    values = _values(base)
    for name, row in TASK_ROWS.items():
        value = data.get(name, INHERIT)
        if name == "lock_key" or not is_given(row, value) or callable(value):
            continue
        with suppress(ValueError, TypeError):
            read = row.kind.read(value)
            values[name] = read.over(base.on_conflict) if isinstance(read, OnConflict) else read
    options = freeze(values)
    return base if disagreements(options) else options


def _values(options: LockOptions) -> dict[str, object]:
    return {name: options.scope if name == "lock" else getattr(options, name) for name in TASK_ROWS}

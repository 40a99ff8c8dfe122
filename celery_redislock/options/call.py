"""Options of one call: taken out of ``apply_async``, checked, sent along, applied on the worker."""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import fields

from celery_redislock.exceptions import LockOptionError
from celery_redislock.options.reading import (
    LockOptions,
    disagreements,
    key_problems,
    read_value,
    settle,
    without_effect,
)
from celery_redislock.options.strategies import Asked, contradictions
from celery_redislock.options.table import INHERIT, TASK_ROWS, Row, live_rows, said
from celery_redislock.options.unknown import unknown_attributes

__all__ = ["from_header", "override", "split_call_options", "to_header"]

_DERIVED = frozenset({"client", "server"})
#: Keywords of Celery's own (5.7.0, ``Task.apply_async``, ``app/base.py`` ``send_task``, ``app/amqp.py``).
_CELERYS = frozenset(
    {
        "add_to_parent",
        "chain",
        "chord",
        "compression",
        "connection",
        "countdown",
        "delivery_mode",
        "eta",
        "exchange",
        "expires",
        "group_id",
        "group_index",
        "headers",
        "ignore_result",
        "link",
        "link_error",
        "mandatory",
        "parent_id",
        "priority",
        "producer",
        "properties",
        "publisher",
        "queue",
        "replaced_task_nesting",
        "reply_to",
        "retries",
        "retry",
        "retry_policy",
        "root_id",
        "route_name",
        "router",
        "routing_key",
        "serializer",
        "shadow",
        "soft_time_limit",
        "stamped_headers",
        "task_id",
        "time_limit",
    }
)


def split_call_options(
    options: MutableMapping[str, object], *, where: str = "apply_async"
) -> dict[str, object]:
    """Take this package's keywords out of *options* and return them.

    Runs at every publish. What Celery is not spared becomes a message property
    or a broker's error (celery 5.7.0, ``app/base.py``, ``send_task``).

    Args:
        options: keywords of ``apply_async``; changed in place, unless it raises.
        where: the task's name, for the error.

    Raises:
        LockOptionError: a keyword looks like ours and does not exist.
    """
    # One look at all names together is several times faster than one at each.
    if options.keys() <= _CELERYS:
        return {}
    problems = unknown_attributes(options, methods=())
    if problems:
        raise LockOptionError(where, problems)
    return {name: options.pop(name) for name in list(options) if name in TASK_ROWS}


def override(
    base: LockOptions,
    where: str,
    call_options: Mapping[str, object],
    *,
    parameters: Sequence[str] | None,
) -> LockOptions:
    """Return *base* with what one call asks for. Called on the publishing side.

    ``None`` leaves an option as the task has it; ``lock=None`` means not locked
    anywhere. A strategy for one side leaves the other as the task has it. A
    callable cannot travel: as ``on_conflict`` it counts at publish only, as
    ``on_lock_lost`` it is refused.

    Args:
        base: the task's options.
        where: the task's name.
        call_options: as :func:`split_call_options` returns them.
        parameters: the names ``lock_key`` may use.

    Raises:
        LockOptionError: with every problem there is.
    """
    problems: list[str] = []
    asked = {
        name: read_value(TASK_ROWS[name], name, value, problems)
        for name, value in call_options.items()
        if said(TASK_ROWS[name], value)
    }
    values = {**_values(base), **{name: v for name, v in asked.items() if not TASK_ROWS[name].is_planned}}
    if callable(asked.get("on_lock_lost")):
        problems.append("on_lock_lost is a callable, which cannot travel with a message; set it on the task")
    conflict = asked.get("on_conflict")
    if isinstance(conflict, Asked):
        conflict = _publishing_side(conflict, problems)
        scope = values["lock"]
        problems += contradictions(scope if isinstance(scope, str) else None, conflict)
        values["on_conflict"] = conflict.over(base.on_conflict)
    problems += without_effect(values["lock"] if isinstance(values["lock"], str) else None, asked)
    if "lock_key" in asked:
        problems += key_problems(asked["lock_key"], where, parameters)
    options = settle(values)
    problems += disagreements(options)
    if problems:
        raise LockOptionError(where, problems)
    return options


def to_header(call_options: Mapping[str, object]) -> dict[str, object]:
    """Return what of *call_options* travels with the message, ready for JSON.

    Callables stay behind, and so does ``lock_key``: the key computed from it
    travels instead. Values must have passed :func:`override`.
    """
    header: dict[str, object] = {}
    if not call_options:
        return header
    for name, row in live_rows():
        value = call_options.get(name, INHERIT)
        if name == "lock_key" or not said(row, value):
            continue
        value = row.kind.read(value)
        if isinstance(value, Asked):
            value = {
                side: one for side in ("client", "server") if isinstance(one := getattr(value, side), str)
            }
            if not value:
                continue
        if not callable(value):
            header[name] = value
    return header


def from_header(base: LockOptions, data: object) -> LockOptions:
    """Return the worker's own options *base* with those that came with a message.

    The message may come from another version of this package, or be made by
    hand. So this never raises: names and values it does not know are passed
    over, and *base* holds where the rest does not go together.
    """
    if not isinstance(data, Mapping) or not data:
        return base
    values = _values(base)
    for name, row in live_rows():
        value = data.get(name, INHERIT)
        if name != "lock_key" and said(row, value) and not callable(value):
            values[name] = _lenient(row, value, values[name])
    options = settle(values)
    return base if disagreements(options) else options


def _values(options: LockOptions) -> dict[str, object]:
    return {
        field.name: getattr(options, field.name) for field in fields(options) if field.name not in _DERIVED
    }


def _publishing_side(asked: Asked, problems: list[str]) -> Asked:
    if not callable(asked.server):
        return asked
    if asked.by_side:
        problems.append(
            "on_conflict names a callable for the server side, which cannot travel with a message; "
            "set it on the task"
        )
    return Asked(asked.client, None, by_side=True)


def _lenient(row: Row, value: object, otherwise: object) -> object:
    try:
        read = row.kind.read(value)
    except (ValueError, TypeError):
        return otherwise
    return read.over(otherwise) if isinstance(read, Asked) and isinstance(otherwise, Asked) else read

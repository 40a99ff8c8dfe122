"""``lock_key``: what it may be, and how each form names the lock.

=====================  ==================================  ==========================
lock_key               the lock is                         its name
=====================  ==================================  ==========================
``None``               per task and all arguments          ``<task>:v1:<32 hex>``
``("account_id",)``    per task and these arguments        ``<task>:v1:<32 hex>``
``()``                 per task, whatever its arguments    ``<task>:v1:all``
``"account:{id}"``     a resource, shared by all tasks     ``account:42``
``"nightly"``          one fixed resource                  ``nightly``
``Resources(…, …)``    several resources at once           ``account:1 account:2``
a callable             a resource (str) or per task        as above
                       (tuple)
=====================  ==================================  ==========================
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from celery_redislock.declaring.keys.digest import DIGITS, as_worker_sees, digest
from celery_redislock.declaring.keys.resources import Resources
from celery_redislock.declaring.keys.template import Template, not_given, parse_template
from celery_redislock.declaring.kinds import hint
from celery_redislock.exceptions import LockKeyError, LockOptionError
from celery_redislock.locks.naming import MAX_BYTES, escape, shorten

#: Stands in every name with a digest. A change to a digest or to a name changes this too.
VERSION = "v1"

#: Names the lock of one call: at most 200 bytes of UTF-8, no braces, white space or controls. It is given
#: the arguments as ``Binder.bound`` returns them, pydantic models dumped, and raises ``LockKeyError``
#: where they have no name. Pure and thread-safe; the same in publisher and worker.
KeyRule: TypeAlias = Callable[[Mapping[str, object]], str]


def parse_key(lock_key: object, *, task_name: str, parameters: Sequence[str] | None) -> KeyRule:
    """Make the rule that *lock_key* asks for.

    ``parameters`` are those of a :class:`Binder`; ``None`` leaves names unchecked until they are used.

    Raises:
        LockOptionError: *lock_key* cannot be honoured, with every problem there is.
    """
    rule: KeyRule | None = None
    problems: list[str] = []
    if lock_key is None:
        rule = _per_task(task_name)
    elif isinstance(lock_key, Resources):
        rules = [_parse_text(each, task_name, parameters, problems) for each in lock_key]
        rule = partial(_names_of_all, [each for each in rules if each is not None])
    elif isinstance(lock_key, str):
        rule = _parse_text(lock_key, task_name, parameters, problems)
    elif isinstance(lock_key, tuple | list):
        rule = _parse_names(lock_key, task_name, parameters, problems)
    elif inspect.iscoroutinefunction(lock_key):
        problems.append("lock_key is a coroutine function; it is called synchronously: use a plain one")
    elif callable(lock_key) and not isinstance(lock_key, type):
        rule = partial(_name_of_answer, task_name, lock_key)
    else:
        problems.append(
            f"lock_key {lock_key!r} is of type {type(lock_key).__name__}; use None (all arguments), a tuple "
            "of parameter names (none: one lock for all calls), a text such as 'account:{account_id}', "
            "Resources of several, or a callable"
        )
    if problems or rule is None:
        raise LockOptionError(task_name, problems)
    return rule


def _name_of_some(
    name_of: KeyRule, task_name: str, names: Sequence[str], arguments: Mapping[str, object]
) -> str:
    try:
        chosen = {name: arguments[name] for name in names}
    except KeyError as error:
        raise not_given(task_name, error.args[0], arguments) from None
    return name_of(chosen)


def _name_of_template(task_name: str, template: Template, arguments: Mapping[str, object]) -> str:
    text = template.render(arguments, where=task_name)
    if text:
        # No character takes more than four bytes.
        return text if 4 * len(text) <= MAX_BYTES else shorten(text)
    field = template.fields[0]
    problem = (
        "lock_key is empty for these arguments; put a word before the field, as in "
        f"'{field.parameter}:{{{field.text}}}'"
    )
    raise LockKeyError(task_name, problem)


def _names_of_all(rules: Sequence[KeyRule], arguments: Mapping[str, object]) -> str:
    # Each once, in one order, for callers that name the same ones.
    return " ".join(sorted({rule(arguments) for rule in rules}))


def _name_of_answer(
    task_name: str, function: Callable[[Mapping[str, object]], object], arguments: Mapping[str, object]
) -> str:
    seen = MappingProxyType({name: as_worker_sees(value) for name, value in arguments.items()})
    try:
        answer = function(seen)
    except Exception as error:
        given = ", ".join(map(repr, arguments)) or "none"
        problem = (
            f"the lock_key callable raised {type(error).__name__}: {error}; it is called with "
            f"one mapping of arguments by name, here {given}"
        )
        raise LockKeyError(task_name, problem) from error
    if isinstance(answer, str) and answer.strip():
        return shorten(escape(answer))
    problem = f"the lock_key callable returned {answer!r}; "
    if isinstance(answer, tuple):
        try:
            return _per_task(task_name)(answer) if answer else _name_of_task(task_name, arguments)
        except LockKeyError as error:
            problem += "return values that JSON can carry, or a text"
            raise LockKeyError(task_name, problem) from error.__cause__
    problem += "return a text that names a resource, or a tuple of the values that matter"
    raise LockKeyError(task_name, problem)


def _per_task(task_name: str) -> Callable[[object], str]:
    """Return what names a task with a value: its arguments, some of them, or what a callable made of them."""
    beginning = f"{escape(task_name)}:{VERSION}:"
    if len(beginning.encode()) + DIGITS > MAX_BYTES:
        return lambda value: shorten(beginning + digest(value, where=task_name))
    return lambda value: beginning + digest(value, where=task_name)


def _name_of_task(task_name: str, _arguments: Mapping[str, object]) -> str:
    return shorten(f"{escape(task_name)}:{VERSION}:all")


def _parse_names(
    names: Sequence[object], task_name: str, parameters: Sequence[str] | None, problems: list[str]
) -> KeyRule | None:
    if not names:
        return partial(_name_of_task, task_name)
    for name in names:
        if not isinstance(name, str):
            problems.append(f"lock_key {names!r}: {name!r} is no parameter's name")
        else:
            _check_parameter(name, parameters, problems)
    return partial(_name_of_some, _per_task(task_name), task_name, [str(name) for name in names])


def _parse_text(
    text: str, task_name: str, parameters: Sequence[str] | None, problems: list[str]
) -> KeyRule | None:
    if not text.strip():
        problems.append(f"lock_key {text!r} is empty; name a resource, or leave it out for all arguments")
        return None
    if text in (parameters or ()):
        problems.append(
            f"lock_key {text!r} is the name of a parameter, and as a text would be one lock for all its "
            f"values; did you mean ({text!r},) or '{text}:{{{text}}}'?"
        )
    try:
        template = parse_template(text)
    except ValueError as error:
        problems.append(f"lock_key {text!r}: {error}")
        return None
    for field in template.fields:
        _check_parameter(field.parameter, parameters, problems)
    return partial(_name_of_template, task_name, template)


def _check_parameter(name: str, parameters: Sequence[str] | None, problems: list[str]) -> None:
    if parameters is None or name in parameters:
        return
    remedy = hint(name, parameters, f"the task's parameters: {', '.join(parameters) or 'none'}")
    problems.append(f"lock_key names the parameter {name!r}, which the task does not have; {remedy}")

"""What a command is about: a key, or a task with arguments."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery_redislock.cli.place import Place, Trouble

__all__ = ["Subject", "parse_arguments", "subject_of"]

_KEYWORD = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Subject:
    """What was named.

    Attributes:
        key: the lock's name; ``None`` for all locks of a task.
        task: the task's name, if it was a task's.
        tasks: the names there are, where a key was named: one of them may have been meant.
    """

    key: str | None
    task: str | None
    tasks: Sequence[str] = ()


def subject_of(place: Place, words: Sequence[str], *, all_without_arguments: bool = False) -> Subject:
    """Read ``KEY`` or ``TASK [ARGUMENT …]``.

    Args:
        place: whose tasks and locks there are.
        words: as typed.
        all_without_arguments: a task without arguments stands for all its locks.

    Raises:
        Trouble: arguments after something that is no task, or that do not fit it; a task that is
            not unique.
    """
    name, *given = words
    tasks = place.tasks()
    if name in tasks:
        if all_without_arguments and not given:
            return Subject(None, name)
        try:
            return Subject(_key_of(tasks[name], given), name)
        except Trouble:
            # A lock may be called as its task is: lock_key may be that very text.
            if given or place.store.inspect(name) is None:
                raise
            return Subject(name, None, list(tasks))
    if given:
        raise Trouble(_not_a_task(place, words, list(tasks)))
    return Subject(name, None, list(tasks))


def parse_arguments(words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Read a call's arguments: JSON each, else a string; ``name=JSON`` is a keyword argument.

    Returns:
        Positional and keyword arguments, as the worker would get them.

    Raises:
        Trouble: a keyword is given twice.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in words:
        keyword = _KEYWORD.fullmatch(word)
        if keyword is None:
            args.append(_value(word))
        elif keyword[1] in kwargs:
            message = f"the argument {keyword[1]} is given twice"
            raise Trouble(message)
        else:
            kwargs[keyword[1]] = _value(keyword[2])
    return args, kwargs


def _value(word: str) -> Any:
    try:
        return json.loads(word, parse_constant=_no_constant)
    except ValueError:
        return word


def _no_constant(word: str) -> Any:
    """NaN and Infinity are no JSON, only Python's."""
    raise ValueError(word)


def _key_of(task: Any, words: Sequence[str]) -> str:
    from celery_redislock.declaring.declaration import declaration_of  # noqa: PLC0415  imports Celery
    from celery_redislock.exceptions import RedisLockError  # noqa: PLC0415  only here
    from celery_redislock.task import SingletonTask  # noqa: PLC0415  imports Celery

    if not isinstance(task, SingletonTask):
        message = f"{task.name} takes no lock: its base is not SingletonTask"
        raise Trouble(message)
    args, kwargs = parse_arguments(words)
    try:
        if declaration_of(task).options.lock is None:
            message = f"{task.name} takes no lock: its lock is switched off"
            raise Trouble(message)
        return task.lock_for(*args, **kwargs).key
    except TypeError as error:
        message = (
            f"no lock can be named for {error}; give the arguments as to delay(), or the key itself "
            f"(list --task {shlex.quote(task.name)} shows those that are held)"
        )
        raise Trouble(message) from error
    except RedisLockError as error:
        message = f"no lock can be named: {error}"
        raise Trouble(message) from error


def _not_a_task(place: Place, words: Sequence[str], names: list[str]) -> str:
    name, *given = words
    if place.app is None:
        return (
            f"the key {name!r} takes no arguments (given: {' '.join(given)}); "
            "to name a task's lock use celery -A proj redislock"
        )
    near = place.nearest(name, [each for each in names if not each.startswith("celery.")])
    if any(word in names for word in given):
        # The task and its arguments in the wrong order.
        near = [shlex.join(sorted(words, key=lambda word: word not in names))]
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; it has {_unique_tasks(place)}"
    return f"{name!r} is not a task of this app, and a key takes no arguments{hint}"


def _unique_tasks(place: Place) -> str:
    return f"these unique ones: {', '.join(place.unique_tasks()) or 'none'}"

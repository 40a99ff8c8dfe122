"""What an operator's words name: a key, a task's call, a task id; and who holds its lock."""

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from celery_redislock.declaring.declaration import is_unique
from celery_redislock.declaring.kinds import hint
from celery_redislock.operating.server import LockServer, Trouble
from celery_redislock.publishing.handle import Holder, LockHandle

_KEYWORD = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)


def find(server: LockServer, words: Sequence[str], *, queued: bool = False) -> tuple[str, list[Holder]]:
    """Find the holders that ``KEY``, ``TASK [ARGUMENT …]`` or, if no such key is held, ``TASK_ID`` names.

    A key is that key alone. A task's call is looked up as by its handle; *queued*: its queued calls first. A
    task id may hold several locks; they are looked for among all that are held. Returns the key as well, the
    first one's if there are several.
    """
    name, *given = words
    task = server.tasks().get(name)
    if not given:
        holds = server.store.holders(name)  # a held lock may be called as its task is
        if holds:
            return name, [*map(Holder.of, holds)]
        if task is None:
            found = [holder for holder in server.holders() if holder.owner == name]
            return found[0].key if found else name, found
    if task is None:
        raise unknown_task(server, name, given)
    handle = handle_of(task, given)
    found = handle.holders(only="queued" if queued else None)
    if len(found) > 1 or (queued and found):
        return handle.key, found
    holder = handle.holder()
    return handle.key, [] if holder is None else [holder]


def unknown_task(server: LockServer, name: str, given: Sequence[str]) -> Trouble:
    """Say that no task of this name is known, for which arguments were given."""
    remedy = "name a task of the app: celery -A proj redislock …"
    if server.app is not None:
        remedy = hint(name, server.tasks(), "give its full name, with its module")
    return Trouble(
        f"{name!r} is not a task known here, and a key takes no arguments (given: {shlex.join(given)}); "
        f"{remedy}"
    )


def handle_of(task: Any, words: Sequence[str]) -> LockHandle:
    """Return the handle of a task's call, whose arguments were given as words."""
    if not is_unique(task):
        raise Trouble(f"{task.name} takes no lock: its base is not SingletonTask")
    args, kwargs = arguments(words)
    try:
        handle: LockHandle = task.lock_for(*args, **kwargs)
    except TypeError as error:
        raise Trouble(
            f"no lock can be named for {error}; give the arguments as to delay(), or the key itself "
            f"(list --task {shlex.quote(task.name)} shows those that are held, release --task takes them all)"
        ) from error
    return handle


def arguments(words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Read the arguments of a call that were given as words."""
    named = [(word, _KEYWORD.fullmatch(word)) for word in words]
    args = [_value(word) for word, keyword in named if keyword is None]
    return args, {keyword[1]: _value(keyword[2]) for _, keyword in named if keyword is not None}


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def nobody(server: LockServer, key: str, words: Sequence[str]) -> str:
    """Say that these words name no held lock; *key* is what :func:`find` took them for."""
    text = f"nobody holds the key {key}"
    if key in server.tasks():
        text = f"no lock is held for {key}"
    elif [*words] == [key]:
        remedy = hint(key, server.tasks(), "list shows what is held")
        text += f", and no task of that id holds a lock; {remedy}"
    return text

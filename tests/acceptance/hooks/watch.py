"""Watches hooks being called in a process: each call is a line of a file that all processes share.

What is of ours is wrapped where it is defined, or where it stands in for something of theirs. So a line shows
that Celery has come to our code; nothing of Celery's is called, or looked up, for its sake.
"""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kombu import Producer
from kombu.transport.virtual import Channel

from tests.acceptance.hooks.reflection import Hook, connected, overrides, replaced
from tests.acceptance.journal import is_pool_child

#: After these, something of theirs may be replaced or connected to that was not before.
_PREPARES = ("StartStopStep.start", "Step.create", "Task.__call__", "beat_init", "worker_init")


#: In place of a process: something of ours stands in for something of theirs, called or not.
FOUND = "found"


class Call(NamedTuple):
    """One call of a hook, in one of ``table.PROCESSES``, or :data:`FOUND`."""

    name: str
    ours: str
    process: str


def calls_in(path: Path) -> list[Call]:
    """Return the calls that were noted so far, in their order."""
    return [Call(*json.loads(line)) for line in path.read_text().splitlines()]


def install(path: str, process: str) -> None:
    """Watch all hooks of this process, from before its app has tasks on; its pool's children do, too."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(call: Call) -> None:
        os.write(file, f"{json.dumps(call)}\n".encode())

    def watched(hook: Hook, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            note(Call(*hook, "pool child" if is_pool_child() else process))
            try:
                return function(*args, **kwargs)
            finally:
                if hook.name in _PREPARES:
                    look()

        return called

    def look() -> None:
        # Each is found once: from then on the watcher's function stands there.
        for hook, signal, place in connected():
            key, receiver = signal.receivers[place]
            signal.receivers[place] = key, watched(hook, receiver)
            signal.sender_receivers_cache.clear()
        for hook, held, name in [*replaced()]:
            note(Call(*hook, FOUND))
            held[name] = watched(hook, held[name])

    for hook, kind, name in [*overrides()]:
        value = vars(kind)[name]
        is_of_class = isinstance(value, classmethod)
        function = watched(hook, value.__func__ if is_of_class else value)
        setattr(kind, name, classmethod(function) if is_of_class else function)
    look()
    # What stands in for the length of one publish is there now.
    for kind, name in ((Producer, "publish"), (Channel, "basic_publish")):
        setattr(kind, name, _after(look, vars(kind)[name]))


def _after(look: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        look()
        return function(*args, **kwargs)

    return called

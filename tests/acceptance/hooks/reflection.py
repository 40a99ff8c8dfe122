"""What this package overrides, replaces or connects to, of Celery, kombu and billiard: found, not listed."""

import gc
import importlib
import pkgutil
from collections.abc import Iterator
from functools import partial
from inspect import isclass
from typing import Any, NamedTuple

from celery import signals
from celery.utils.dispatch import Signal

import celery_redislock

_OURS = "celery_redislock"
_THEIRS = ("celery", "kombu", "billiard")
#: What each class has of its own, and nobody calls.
_OF_EACH_CLASS = {
    "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__orig_bases__",
    "__parameters__", "__qualname__", "__slots__", "__static_attributes__", "__weakref__",
}  # fmt: skip


class Hook(NamedTuple):
    """A name of theirs (``Class.name``, or a signal's), and the class or the function of ours behind it."""

    name: str
    ours: str


def overrides() -> Iterator[tuple[Hook, type, str]]:
    """Find each name of a class of ours that a base class of theirs has, with that class."""
    for module in _modules():
        # By its type: a lazy object of Django's would be asked for its settings.
        for kind in [each for each in vars(module).values() if issubclass(type(each), type)]:
            if kind.__module__ != module.__name__:
                continue
            for name in set(vars(kind)) - _OF_EACH_CLASS:
                base = next((base for base in kind.__mro__[1:] if name in vars(base)), None)
                if base is not None and _is_theirs(base) and hasattr(vars(kind)[name], "__get__"):
                    yield Hook(f"{base.__name__}.{name}", kind.__name__), kind, name


def connected() -> Iterator[tuple[Hook, Signal, int]]:
    """Find each receiver of ours of a signal of theirs, with its place in the signal's list."""
    for name, signal in vars(signals).items():
        if isinstance(signal, Signal):
            for place, (_, receiver) in enumerate(signal.receivers):
                if (ours := _ours(receiver)) is not None:
                    yield Hook(name, ours), signal, place


def replaced() -> Iterator[tuple[Hook, dict[str, Any], str]]:
    """Find each thing of ours that an object of theirs has now in place of its own, with its dictionary."""
    for thing in gc.get_objects():
        kind = type(thing)
        if not _is_theirs(kind) or not isinstance(held := getattr(thing, "__dict__", None), dict):
            continue
        for name, value in [*held.items()]:
            maps = getattr(value, "maps", None)
            if isinstance(maps, list):
                for key, each in [*maps[0].items()]:
                    if (ours := _ours(each)) is not None:
                        yield Hook(f"{kind.__name__}.{name}[{key!r}]", ours), maps[0], key
            elif (ours := _ours(value)) is not None:
                bases = [base for base in kind.__mro__ if name in vars(base) and _is_theirs(base)]
                if bases:
                    yield Hook(f"{bases[0].__name__}.{name}", ours), held, name


def _modules() -> list[Any]:
    names = [each.name for each in pkgutil.walk_packages(celery_redislock.__path__, f"{_OURS}.")]
    return [importlib.import_module(name) for name in [_OURS, *names] if not name.endswith("__main__")]


def _is_theirs(kind: type) -> bool:
    # A proxy answers as the object that it stands for, which it might make first.
    module = str(kind.__module__)
    return module.partition(".")[0] in _THEIRS and module != "celery.local"


def _ours(value: Any) -> str | None:
    """Name the function of ours that is called when this is, if one is."""
    function = value.func if isinstance(value, partial) else value
    function = getattr(function, "__func__", function)
    is_ours = callable(function) and str(getattr(function, "__module__", "")).partition(".")[0] == _OURS
    return getattr(function, "__qualname__", None) if is_ours and not isclass(function) else None

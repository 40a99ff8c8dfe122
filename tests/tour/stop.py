"""One stop of the tour: what provokes a message, and what its reader is told about it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tests.tour.guide import Guide

__all__ = ["Group", "Stop", "group_of", "stop"]

Provoke = Callable[[Guide], object]


@dataclass(frozen=True, slots=True)
class Stop:
    """One message, or the few that come together.

    Attributes:
        heading: what happened, in a few words.
        sentence: when it comes, and what to do next.
        provoke: lets it happen; what it raises or returns is said, as is what it logs.
    """

    heading: str
    sentence: str
    provoke: Provoke


@dataclass(frozen=True, slots=True)
class Group:
    """The stops of one module.

    Attributes:
        title: of the section.
        promise: what is true of all of them.
        stops: in the order in which they are written.
    """

    title: str
    promise: str
    stops: tuple[Stop, ...]


def stop(heading: str) -> Callable[[Provoke], Stop]:
    """Make a stop of a function; its docstring is the sentence for users."""

    def made(provoke: Provoke) -> Stop:
        return Stop(heading, " ".join((inspect.getdoc(provoke) or "").split()), provoke)

    return made


def group_of(module: ModuleType) -> Group:
    """Return the stops of a module; its docstring is title and promise."""
    title, _, promise = (inspect.getdoc(module) or "").partition("\n")
    found: list[Any] = [value for value in vars(module).values() if isinstance(value, Stop)]
    return Group(title.rstrip("."), promise.strip(), tuple(found))

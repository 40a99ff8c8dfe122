"""A named transition of a small machine: what one event makes of each state in which it can happen.

A machine is a file with its states and their transitions, each a table. Whatever happens to the machine is
``state = TRANSITION[state]``, which costs a look into a ``dict``.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from celery_redislock.log import logger
from celery_redislock.wire.thread import tell

S = TypeVar("S", bound=str)


def log(what: str) -> None:
    """Log, with the stack, what a machine does not foresee."""
    tell(logger.error, "%s; please report this", what, stack_info=True)


#: What is done about an event that cannot happen in its state; the tests raise.
report: Callable[[str], None] = log


class Transition(dict[S, S]):
    """What an event makes of each state; any other state is reported, and stays as it is."""

    def __init__(self, event: str, becomes: Mapping[S, S]) -> None:
        """Name the event, as in "it is accepted", and the state after it for each one before it."""
        super().__init__(becomes)
        self.event = event

    def __missing__(self, state: S) -> S:
        report(f"{self.event}, and was {state!r}: no such transition")
        return state

"""A tick of the schedule on its way: as one message, or as several, each of which has its own identity."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from celery_redislock.publishing.message import TICK, tick_id


class Tick(str):
    """What beat writes into the header of a tick, for as long as it sends it.

    A scheduler or a task class of somebody's own may make several messages of one tick. The identity of each
    is the tick, with a digest of what tells the message from the others, and its number among equals: not
    among all, because another beat may send them in another order. Thread-safe.

    Attributes:
        ids: the task ids of its messages, without those that were skipped.
    """

    __slots__ = ("_numbers", "ids")

    def __init__(self, _tick: str) -> None:
        """Begin to send this tick."""
        self._numbers: dict[str, Iterator[int]] = {}
        self.ids: list[str] = []

    def __deepcopy__(self, _memo: object) -> "Tick":
        """Stay one, or equal messages would get the same number."""
        return self

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Tick | None":
        """Return the tick of a publish with these options; ``None`` for none, or where its id is given."""
        tick = (options.get("headers") or {}).get(TICK)
        return tick if isinstance(tick, cls) and not options.get("task_id") else None

    def name(self, options: dict[str, Any], *call: object) -> str:
        """Give a message its identity, by its call and the options of its publish; return its task id.

        What is compared is the ``repr`` of these.
        """
        headers = {each: value for each, value in options["headers"].items() if each != TICK}
        route = [options.get(each) for each in ("queue", "exchange", "routing_key")]
        which = uuid5(NAMESPACE_OID, repr([*call, headers, route])).hex
        tick = f"{self} {which} {next(self._numbers.setdefault(which, count()))}"
        options["headers"] = {**headers, TICK: tick}
        self.ids.append(tick_id(tick))
        return self.ids[-1]

"""What a beat sent, read from a queue that no worker serves: a message says when it left, and from where."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import redis

#: The header in which a beat under test writes when a message left, and who sent it (``scheduled.py``).
SENT = "sent"


@dataclass(frozen=True, slots=True)
class Tick:
    """One message of a beat, by its call's first argument.

    ``at``: when it left, by ``time.monotonic()``; ``wall``: by its sender's own clock.
    ``tick`` is ``None`` where nobody asked the lock server for it.
    """

    key: str
    task_id: str
    token: str | None
    tick: str | None
    at: float
    wall: float
    pid: int


def about_message(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message's headers say of its tick, for :class:`Tick`."""
    lock = json.loads(headers["redislock"]) if headers.get("redislock") else {}
    return {
        "task_id": headers["id"],
        "token": lock.get("t"),
        "tick": headers.get("redislock_tick"),
        **headers[SENT],
    }


def ticks_in(server: "redis.Redis[bytes]", queue: str) -> list[Tick]:
    """Return what beats put into a queue on Redis, in the order it left."""
    found = [json.loads(text)["headers"] for text in server.lrange(queue, 0, -1)]
    ticks = [Tick(**about_message(headers)) for headers in found if SENT in headers]
    return sorted(ticks, key=lambda tick: tick.at)


def gaps(ticks: Iterable[Tick]) -> list[float]:
    """Return the seconds from each tick to the next."""
    return [later.at - earlier.at for earlier, later in pairwise(ticks)]

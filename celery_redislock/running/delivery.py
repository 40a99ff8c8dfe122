"""One delivery of a message: what the main process tells the child, and whether another may come."""

import time
from typing import Any, NamedTuple

__all__ = ["FROM_MAIN_PROCESS", "Delivery", "can_come_again", "mark_ttl", "visibility_timeout"]

#: Where the main process leaves what the child needs: in a copy of the request's message properties,
#: which nothing propagates (a top-level entry would leak into the headers of a retry's message).
FROM_MAIN_PROCESS = "redislock"

#: Seconds after which Redis delivers an unacknowledged message again (kombu 5.7.0, transport/redis.py).
DEFAULT_VISIBILITY_TIMEOUT = 3600.0

#: Seconds a done mark outlives the visibility timeout. That one begins when a message is received; then
#: kombu looks only every 100 s for what has to be delivered again (5.7.0, transport/redis.py), and what is
#: may wait in its queue behind others.
MARK_MARGIN = 3600.0


class Delivery(NamedTuple):
    """What the worker's main process knows about a delivery.

    Attributes:
        token: of the run, ``None`` where no main process saw the message.
        received_at: seconds since the epoch, ``None`` likewise.
        serializer: kombu's name of the message's serializer, ``None`` for the task's own.
    """

    token: str | None = None
    received_at: float | None = None
    serializer: str | None = None

    @classmethod
    def of(cls, request: Any) -> "Delivery":
        """Return what a child's request brings."""
        brought = (request.properties or {}).get(FROM_MAIN_PROCESS)
        return cls(*brought) if brought else cls()


def visibility_timeout(app: Any) -> float:
    """Return the seconds after which the broker delivers an unacknowledged message again."""
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout") or DEFAULT_VISIBILITY_TIMEOUT)


def mark_ttl(app: Any) -> float:
    """Return the seconds within which a copy of a message may come, and so its done mark must live."""
    return visibility_timeout(app) + MARK_MARGIN


def can_come_again(task: Any, eta: object, received_at: float | None) -> bool:
    """Whether the broker may deliver a message once more although a worker runs it.

    It may where the message is acknowledged late, or was kept unacknowledged for long: for its ETA, or
    for a free process. With half of the visibility timeout the rest is left for clocks and queues.

    Args:
        task: the bound task.
        eta: of the message, ``None`` for none.
        received_at: seconds since the epoch, ``None`` where that is not known.
    """
    if task.acks_late or eta:
        return True
    return received_at is not None and time.time() - received_at > visibility_timeout(task.app) / 2

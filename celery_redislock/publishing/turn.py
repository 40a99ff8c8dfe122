"""The turn of a message that waits in line, wherever it is parked: its band, and what its claim says then."""

from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.store.store import QUEUED


def facts_of_turn(lock: TaskLock) -> str:
    """Describe the claim that a message is handed when its turn comes; it is no acceptance."""
    # Not at the end, where the scripts find what is told of the arguments.
    return lock.facts(QUEUED, published=True).replace(',"since":', ',"line":1,"since":', 1)


def band_of(priority: object, *, has_waited: bool) -> int:
    """Return the band of a priority of which 0 is served first; anything but a whole number counts as 0.

    Who comes back, because its turn was over before it came, goes before those of its priority that come for
    the first time, and behind those that came back before.
    """
    number = priority if isinstance(priority, int) else 0
    return 2 * min(255, max(0, number)) + (not has_waited)

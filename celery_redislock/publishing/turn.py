"""The turn of a message that waits in line, wherever it is parked: its band, and the claim it is handed."""

from json.encoder import encode_basestring as quoted
from json.encoder import encode_basestring_ascii
from math import inf

from celery_redislock.declaring.options import LockSettings
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.store.store import QUEUED

#: kombu's usual name of the hash of deliveries.
_UNACKED = "unacked"


def facts_of_turn(lock: TaskLock, unacked: str = _UNACKED) -> str:
    """Describe the claim that a message is handed when its turn comes; it is no acceptance.

    ``unacked``: the hash in which the broker, on the lock server, keeps what workers have in hand.
    """
    more = "" if unacked == _UNACKED else f',"unacked":{quoted(unacked)}'
    if lock.period is not None:
        more += ',"period":1'  # the scripts look for it
    # Not at the end, where the scripts find what is told of the arguments.
    return lock.facts(QUEUED, published=True).replace(',"since":', f',"line":1{more},"since":', 1)


def spelled(task_id: str, token: str) -> str:
    """Return a task id and a token as the text of a message spells them, for :class:`Merge`.

    The token is part of a header of ours, which is a JSON text in one.
    """
    inner = encode_basestring_ascii(encode_basestring_ascii(token)[1:-1])[1:-1]
    return f"{encode_basestring_ascii(task_id)}\0{inner}"


def band_of(priority: object, *, has_waited: bool) -> int:
    """Return the band of a priority of which 0 is served first; anything but a whole number counts as 0.

    Who comes back, because its turn was over before it came, goes before those of its priority that come for
    the first time, and behind those that came back before.
    """
    number = priority if isinstance(priority, int) else 0
    return 2 * min(255, max(0, number)) + (not has_waited)


def hand_off(settings: LockSettings) -> float:
    """Return the seconds a message that was promoted may take until it starts, or a worker renews its claim.

    Longer than a message takes to be back in its queue that a killed worker had in hand.
    """
    # A name lapses one pause after the worker's death at the latest (``receiving/in_hand.py``).
    return 60.0 if settings.restore == inf else settings.restore * 16 / 15 + 3.0

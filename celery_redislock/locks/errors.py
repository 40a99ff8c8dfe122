"""What a ``Lock`` and a ``Semaphore`` raise about a hold: redis-py's errors as well as this package's.

So ``except LockError`` and ``suppress(LockError)`` go on working where redis-py's ``Lock`` stood before
(redis-py 8.1.0, ``exceptions.py``), whose errors are ValueErrors. A task's own lease raises none of these: a
body must not take what ends it for a bad value.
"""

import redis.exceptions

from celery_redislock import exceptions


class LockBusy(exceptions.LockBusy, redis.exceptions.LockError):
    """A lock could not be had in time: somebody else holds it."""

    # redis-py's own reads what only its own constructor sets.
    __repr__ = Exception.__repr__


class LockLost(exceptions.LockLost, redis.exceptions.LockNotOwnedError):
    """The hold is gone while its holder still runs."""

    __repr__ = Exception.__repr__


class LockNotHeld(exceptions.LockNotHeld, redis.exceptions.LockError):
    """A method that needs a hold was called by a thread, or a task of asyncio, that has none."""

    __repr__ = Exception.__repr__

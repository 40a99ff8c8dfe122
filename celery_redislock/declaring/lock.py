"""``Lock`` where an app keeps the locks of its tasks."""

from typing import TYPE_CHECKING, Any

from celery_redislock.declaring.server import store_of
from celery_redislock.locks import lock

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from celery_redislock.declaring.types import LockTerms


class Lock(lock.Lock):
    """A :class:`celery_redislock.locks.Lock` on the lock server of an app, whose settings say all about it.

    ::

        with Lock(app, "nightly-import") as lock:
            lock.check()

    Locks and tasks of one name exclude each other; a task's own key is that of ``task.lock_for(...).lock()``.
    """

    def __init__(
        self, app: Any, name: str | list[str] | tuple[str, ...], **terms: "Unpack[LockTerms]"
    ) -> None:
        """Name a lock; nothing is sent yet. The terms are those of :class:`celery_redislock.locks.Lock`.

        Raises:
            LockOptionError: as that one; and it is no app, no setting of it names a Redis server, or its URL
                cannot be read.
        """
        super().__init__(store_of(app), name, **terms)

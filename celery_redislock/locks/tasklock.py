"""A stand-in until ``TaskLock`` is merged: what it is made of."""

from celery_redislock.locks.store import LockStore

__all__ = ["TaskLock"]


class TaskLock:
    """The lock of one call."""

    def __init__(
        self,
        store: LockStore,
        key: str,
        *,
        task: str,
        owner: str,
        arguments: str,
        ttl: float,
        queue_ttl: float,
        period: float | None,
        is_ignored: bool = False,
    ) -> None:
        self.store, self.key, self.task, self.owner, self.arguments = store, key, task, owner, arguments
        self.ttl, self.queue_ttl, self.period, self.is_ignored = ttl, queue_ttl, period, is_ignored

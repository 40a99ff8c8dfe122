"""The results publishes return: Celery's own, which also say whether they belong to somebody else."""

from typing import Any

from celery.result import AsyncResult

__all__ = ["LockResult"]


class LockResult(AsyncResult):
    """The result of a publish of a unique task. Picklable.

    Attributes:
        is_duplicate: nothing was published: this is the *holder's* result. Revoking or forgetting
            it concerns the holder's task.
    """

    is_duplicate: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.__class__, self.__reduce_args__(), self.is_duplicate)


def _rebuild(cls: type[LockResult], args: tuple[Any, ...], is_duplicate: bool) -> LockResult:
    result = cls(*args)
    result.is_duplicate = is_duplicate
    return result

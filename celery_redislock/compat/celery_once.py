"""In place of celery-once (its names and options as of 3.0.1)."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar

from celery_redislock.compat.translation import FromApp, TranslatedTask, at_publish
from celery_redislock.declaring.table import INHERIT
from celery_redislock.exceptions import DuplicateTask
from celery_redislock.publishing.results import LockEagerResult

__all__ = ["AlreadyQueued", "QueueOnce"]


class AlreadyQueued(DuplicateTask):  # as celery-once calls it
    """A call was refused, because another task holds its key.

    Attributes:
        countdown: seconds until that hold ends unless renewed. The others are those of
            :class:`DuplicateTask`; a countdown is enough to make one by hand.
    """

    def __init__(self, countdown: float, key: str = "", task_id: str = "", is_period: bool = False) -> None:
        super().__init__(key, task_id, countdown, is_period)
        self.countdown = countdown
        self.args = (countdown, key, task_id, is_period)


class QueueOnce(TranslatedTask):
    """A task of which one per arguments is queued or running; a duplicate raises :class:`AlreadyQueued`.

    Of the app's setting ``ONCE``, ``settings`` counts: ``url`` becomes ``redislock_url``, unless that is set,
    and ``default_timeout`` counts where a task says no ``timeout``. It is read when a task is bound.
    """

    abstract = True
    #: As celery-once has it.
    #: ``graceful``: a duplicate gets a result in state ``REJECTED``, whose ``get()`` returns ``None``.
    #: ``keys``: the arguments that make a call unique; ``[]`` none, without it all. ``timeout``: seconds a
    #: claim outlives its publish, or the last sign of life of its message; 3600. ``unlock_before_run``: the
    #: lock is released when the run starts.
    once: Mapping[str, Any] = {"graceful": False, "unlock_before_run": False}

    _library: ClassVar[str] = "celery-once"
    _replaced: ClassVar[Mapping[str, str]] = {"get_key": "lock_key"}

    def apply_async(self, *args: Any, once: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Publish the task unless it is a duplicate.

        ``once``: ``graceful`` and ``timeout`` for this call. Raises as :meth:`SingletonTask.apply_async`, and
        :class:`AlreadyQueued` for its ``DuplicateTask``.
        """
        once = once or {}
        if "graceful" in once:
            options["on_conflict"] = at_publish(raises=not once.get("graceful"))
        if "timeout" in once:
            options["lock_queue_ttl"] = once["timeout"]
        result = super().apply_async(*args, **options)
        if result.is_duplicate:
            # As celery-once's, in a state of Celery's; for the holder's result a caller's get() would wait.
            result = LockEagerResult(None, None, "REJECTED", name=self.name)
            result.is_duplicate = True
        return result

    def _their_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        bound = signature(self.run).bind(*args, **kwargs).arguments
        names = self.once.get("keys")
        parts = [f"{name}-{_plain(bound[name])}" for name in sorted(bound if names is None else {*names})]
        return "_".join(["qo", self.name, *parts])

    @classmethod
    def _translate(cls, said: Mapping[str, Any]) -> Mapping[str, Any]:
        if "once" not in said:
            return {}
        once = said["once"]
        keys = once.get("keys")
        return {
            "lock": "until_executing" if once.get("unlock_before_run") else INHERIT,
            "lock_key": None if keys is None else tuple(keys),
            "on_conflict": at_publish(raises=not once.get("graceful")),
            "lock_queue_ttl": once.get("timeout"),
        }

    @classmethod
    def _from_app(cls, app: Any) -> FromApp:
        settings = (app.conf.get("ONCE") or {}).get("settings") or {}
        surprises = []
        if settings.get("blocking"):
            surprises.append(
                "the 'blocking' of ONCE means nothing here, where no caller waits; on_conflict='wait' lets "
                "the message wait"
            )
        return FromApp(
            {"redislock_url": settings.get("url")},
            {"lock_queue_ttl": settings.get("default_timeout")},
            surprises,
        )

    @staticmethod
    def _error_of(error: DuplicateTask) -> DuplicateTask:
        return AlreadyQueued(error.expires_in, error.key, error.task_id, error.is_period)


def _plain(value: Any) -> Any:
    """Return an argument as it is written in celery-once's keys: with mappings in it as sorted texts."""
    if isinstance(value, list):
        return [*map(_plain, value)]
    if not isinstance(value, dict):
        return value
    return "{" + ", ".join(f"{_plain(key)!r}: {_plain(value[key])!r}" for key in sorted(value)) + "}"


# This class's own names are no unknown options of a subclass.
QueueOnce._lock_names = frozenset(dir(QueueOnce))

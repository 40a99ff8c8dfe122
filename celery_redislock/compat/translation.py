"""A task whose options are another library's, translated into this package's."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

from celery import signals

from celery_redislock.exceptions import DuplicateTask
from celery_redislock.locks import connect
from celery_redislock.log import logger
from celery_redislock.publishing.message import Message
from celery_redislock.task import SingletonTask

#: The servers of the other libraries' locks, by URL.
_server_at = cache(connect)


def at_publish(*, raises: bool) -> Mapping[str, str]:
    """Return ``on_conflict`` for a duplicate that is told by an error, or skipped.

    At publish only: the others' workers look at no lock.
    """
    return {"client": "raise" if raises else "skip"}


class FromApp(NamedTuple):
    """What the other library's settings of an app come to here.

    Attributes:
        settings: of this package, for the app, where it has none; ``None``: the app says nothing.
        options: of this package, by attribute, for a task that says nothing; ``None`` as well.
        surprises: what the author of the task may not expect, a sentence each.
    """

    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    surprises: Sequence[str]


class TranslatedTask(SingletonTask):
    """The base of the stand-ins.

    A class translates the options in its own body, so that its subclasses inherit the outcome, as they do
    options of this package. Where one body says both, this package's count.
    """

    abstract = True
    #: Whose options they are.
    _library: ClassVar[str]
    #: Methods that people override there, and which nobody calls here: the options that stand for them.
    _replaced: ClassVar[Mapping[str, str]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Translate what the body of this class says."""
        super().__init_subclass__(**kwargs)
        said = dict(vars(cls))
        for name, value in cls._translate(said).items():
            if name not in said:
                setattr(cls, name, value)

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Take the other library's settings over, and tell how the task is written without it.

        Raises:
            LockOptionError: as :meth:`SingletonTask.on_bound`, what the translation comes to included.
        """
        if cls.name is not None and cls.run is not SingletonTask.run:
            settings, options, surprises = cls._from_app(app)
            settings = {
                name: value
                for name, value in settings.items()
                if value is not None and app.conf.get(name) is None
            }
            for name, value in settings.items():
                app.conf[name] = value
            for name, value in options.items():
                if value is not None and getattr(cls, name) is None:
                    setattr(cls, name, value)
            for surprise in surprises:
                logger.warning("%s: %s", cls.name, surprise)
            warnings.warn(cls._native(settings), DeprecationWarning, stacklevel=2)
        super().on_bound(app)

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Publish as :meth:`SingletonTask.apply_async` does; its ``DuplicateTask`` is the other library's."""
        try:
            return super().apply_async(*args, **options)
        except DuplicateTask as error:
            raise self._error_of(error) from None

    def _their_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the key of the other library's lock for a call."""
        raise NotImplementedError

    @classmethod
    def _translate(cls, said: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of this package for those that are said, by attribute."""
        raise NotImplementedError

    @classmethod
    def _from_app(cls, app: Any) -> FromApp:
        """Read the other library's settings."""
        raise NotImplementedError

    @staticmethod
    def _error_of(error: DuplicateTask) -> DuplicateTask:
        """Return the other library's error for ours."""
        raise NotImplementedError

    @classmethod
    def _lock_problems(cls) -> list[str]:
        problems = [
            f"its {name}(), which {cls._library} calls, is never called here; write {option} as a callable"
            for name, option in cls._replaced.items()
            if hasattr(cls, name)
        ]
        return problems + super()._lock_problems()

    @classmethod
    def _native(cls, settings: Mapping[str, Any]) -> str:
        names = ("lock", "lock_key", "on_conflict", "lock_queue_ttl")
        options = {name: getattr(cls, name) for name in names}
        native = [
            f"{name}={value!r}" for name, value in options.items() if value != getattr(SingletonTask, name)
        ]
        # Their values may hold passwords.
        on_app = [f"; on the app set {name}" for name in settings]
        return (
            f"{cls.name} is declared by options of {cls._library}; write "
            f"{', '.join(['base=celery_redislock.SingletonTask', *native])}{''.join(on_app)}"
        )


def _end_theirs(task: Any = None, signal: Any = None, **_: Any) -> None:
    """Delete the lock that the other library's publisher took for a message, when its own worker would.

    That is when the message has ended, or when it starts, if the task is unique until then. A message with a
    claim comes from a publisher that has the stand-in.
    """
    if not isinstance(task, TranslatedTask):
        return
    due = signals.task_prerun if task.lock == "until_executing" else signals.task_postrun
    request = task.request
    message = Message.of(request.headers, request.id)
    if signal is not due or request.is_eager or (message and message.claimed):
        return
    conf = task.app.conf
    try:
        backend = conf.result_backend or ""
        default = backend if backend.startswith("redis://") else conf.broker_url or ""
        url = task._from_app(task.app).settings["redislock_url"] or default
        if url.startswith(("redis", "unix")):
            key = task._their_key(request.args, request.kwargs)
            _server_at(url).scripts((), __name__).send("unlock", "DEL", key, understand=lambda *_: None)
    except Exception as error:  # noqa: BLE001  of arguments, too: the run has ended as it has
        logger.warning(
            "could not delete %s's lock of %s[%s]: %s", task._library, task.name, request.id, error
        )


signals.task_prerun.connect(_end_theirs)
signals.task_postrun.connect(_end_theirs)

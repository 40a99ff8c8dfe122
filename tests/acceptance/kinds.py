"""The ways people write tasks."""

from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore

from celery_redislock import SingletonTask


class _Listing(SingletonTask):
    abstract = True
    lock_key = "work:{key}"

    def run(self, key: str, seconds: float = 0.0) -> str:
        return _work(self, key, seconds)


class Supering(_Listing):
    """Its own ``__call__`` goes on to Celery's."""

    name = "project.Supering"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Skirting(_Listing):
    """Its own ``__call__`` calls the body straight away."""

    name = "project.Skirting"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class BeforeStartFails(_Listing):
    """Fails before its body begins."""

    name = "project.before_start_fails"

    def before_start(self, *_: Any) -> None:
        message = "not today"
        raise ValueError(message)


class BeforeStartIgnores(_Listing):
    """Ends before its body begins, without an outcome."""

    name = "project.before_start_ignores"

    def before_start(self, *_: Any) -> None:
        raise Ignore


def declare_kinds(app: Celery) -> list[Any]:
    """Declare them on this app, whose ``task_cls`` is ``SingletonTask``."""

    @app.task(name="project.collect", base=Task, shared=False)
    def collect(value: Any = None) -> Any:
        """Pass a value on; an ordinary task."""
        return value

    @app.task(name="project.bare", bind=True, shared=False)
    def bare(self: Any, key: str, seconds: float = 0.0) -> str:
        """Name no base: the app's is taken."""
        return _work(self, key, seconds)

    return [
        *(_registered(app, kind) for kind in (Supering, Skirting, BeforeStartFails, BeforeStartIgnores)),
        *(collect, bare),
    ]


def _registered(app: Celery, kind: type[SingletonTask]) -> Any:
    """Register a task class; a class of its own for each app, because Celery binds classes."""
    return app.register_task(type(kind.__name__, (kind,), {})())


def _work(task: Any, key: str, seconds: float) -> str:
    with task.app.journal.body(task, key) as number:
        task.app.journal.stay(key, number, seconds)
        return f"{key} by {task.name.removeprefix('project.')}"

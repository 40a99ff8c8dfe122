"""The ways people write tasks, and hooks that note what they see."""

from typing import Any

from celery import Celery, Task, shared_task
from celery.exceptions import Ignore
from celery.signals import task_postrun
from pydantic import BaseModel

from celery_redislock import Conflict, SingletonTask

__all__ = ["Order", "by_mood", "declare_kinds"]


class Order(BaseModel):
    """A model as an argument."""

    key: str
    number: int


class _Listing(SingletonTask):
    abstract = True
    lock_key = "sale:{key}"

    def run(self, key: str, seconds: float = 0.0) -> str:
        return _work(self, key, seconds)


class Listed(_Listing):
    name = "shop.Listed"


class Supering(_Listing):
    """Its own ``__call__`` goes on to Celery's."""

    name = "shop.Supering"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Skirting(_Listing):
    """Its own ``__call__`` calls the body straight away."""

    name = "shop.Skirting"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class Stumbling(_Listing):
    """Fails before its body begins."""

    name = "shop.stumble"

    def before_start(self, *_: Any) -> None:
        message = "stumbled"
        raise ValueError(message)


class PassingOver(_Listing):
    """Ends before its body begins, without an outcome."""

    name = "shop.pass_over"

    def before_start(self, *_: Any) -> None:
        raise Ignore


class Counting(_Listing):
    """Has a ``before_start`` of its own, and keeps to it."""

    name = "shop.counting"

    def before_start(self, task_id: str, *_: Any) -> None:
        self.app.journal.note("counted", task_id)


@shared_task(name="shop.shared", base=SingletonTask, bind=True, lock_key="sale:{key}")
def shared(self: Any, key: str, seconds: float = 0.0) -> str:
    """Belong to every app."""
    return _work(self, key, seconds)


def declare_kinds(app: Celery) -> list[Any]:
    """Declare them on this app, whose ``task_cls`` is ``SingletonTask``."""

    @app.task(name="shop.collect", base=Task, shared=False)
    def collect(value: Any = None) -> Any:
        """Pass a value on; an ordinary task."""
        return value

    @app.task(name="shop.bare", bind=True, shared=False)
    def bare(self: Any, key: str, seconds: float = 0.0) -> str:
        """Name no base: the app's is taken."""
        return _work(self, key, seconds)

    @app.task(name="shop.unbound", shared=False, lock_key="sale:{key}")
    def unbound(key: str, seconds: float = 0.0) -> str:
        return _work(app.tasks["shop.unbound"], key, seconds)

    @app.task(name="shop.modelled", bind=True, shared=False, pydantic=True)
    def modelled(self: Any, key: str, seconds: float = 0.0) -> str:
        return _work(self, key, seconds)

    @app.task(name="shop.ordered", bind=True, shared=False, pydantic=True)
    def ordered(self: Any, order: Order) -> Order:
        with self.app.journal.body(self, order.key) as number:
            self.app.journal.stay(order.key, number)
            return order

    @app.task(name="shop.share", bind=True, shared=False, lock_key="sale:{key}")
    def share(self: Any, key: str) -> str:
        """Do other work on the resource of ``serve``."""
        with self.app.journal.body(self, key) as number:
            self.app.journal.stay(key, number)
            return f"{key} shared"

    task_postrun.connect(_note_skip, weak=False, dispatch_uid="shop.skips")
    return [
        *(_registered(app, kind) for kind in (Listed, Supering, Skirting, Stumbling, PassingOver, Counting)),
        *(collect, bare, unbound, modelled, ordered, share),
    ]


def _registered(app: Celery, kind: type[SingletonTask]) -> Any:
    """Register a task class; a class of its own for each app, because Celery binds classes."""
    return app.register_task(type(kind.__name__, (kind,), {})())


def by_mood(conflict: Conflict) -> str:
    """Let the duplicate's own argument decide."""
    arguments = dict(zip(("key", "seconds", "then", "more"), conflict.args, strict=False))
    key = str(arguments["key"])
    conflict.task.app.journal.note(
        f"conflicts {key}", [conflict.side, conflict.holder, conflict.task_id, conflict.key]
    )
    return str(arguments.get("more") or "skip")


def _work(task: Any, key: str, seconds: float) -> str:
    with task.app.journal.body(task, key) as number:
        task.app.journal.stay(key, number, seconds)
        return f"{key} by {task.name.removeprefix('shop.')}"


def _note_skip(sender: Any, task_id: str, task: Any, args: Any, **_: Any) -> None:
    if getattr(task.request, "redislock_skipped", False) and task.name.startswith("shop."):
        task.app.journal.note(f"skipped {args[0]}", task_id)

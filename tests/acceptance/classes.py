"""The project with tasks that have another base beside ``SingletonTask``, in both orders.

A worker imports it. Django has one database, in memory, for its transactions.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import django
from celery import Celery, Task
from celery.contrib.abortable import AbortableTask
from celery.contrib.django.task import DjangoTask
from celery.signals import task_postrun, task_prerun
from django.conf import settings
from django.db import transaction

from celery_redislock import SingletonTask
from tests.acceptance.project import RESOURCE

#: The tenant that this thread works for, and what is open around it.
tenant: ContextVar[str] = ContextVar("tenant", default="public")
_opened: ContextVar[tuple[str, ...]] = ContextVar("opened", default=())


@contextmanager
def _opening(what: str) -> Iterator[None]:
    token = _opened.set((*_opened.get(), what))
    yield
    _opened.reset(token)


class _InContext(Task):
    """As Flask's page on Celery has it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _opening("context"):
            return self.run(*args, **kwargs)


class _InTransaction(Task):
    """As projects have it whose bodies are one transaction each."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _opening("transaction"), transaction.atomic():
            return super().__call__(*args, **kwargs)


class _AtCommit(Task):
    """Publishes when the caller's transaction commits."""

    def apply_async(self, *args: Any, **kwargs: Any) -> None:
        transaction.on_commit(partial(super().apply_async, *args, **kwargs))


class _OfTenant(DjangoTask):
    """As tenant-schemas-celery has it, beside :func:`send_for_tenant` and two signals."""

    abstract = True

    def apply(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        return super().apply(args, kwargs, *rest, **_for_tenant(options))


class _Everything(AbortableTask):
    """Overrides what ``SingletonTask`` does, and goes on to it each time."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _opening("everything"):
            return super().__call__(*args, **kwargs)

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["headers"] = {**(kwargs.get("headers") or {}), "published-by": "everything"}
        return super().apply_async(*args, **kwargs)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply(*args, **kwargs)

    def AsyncResult(self, task_id: str, **kwargs: Any) -> Any:  # noqa: N802  Celery's name
        return super().AsyncResult(task_id, **kwargs)

    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        receive = super().start_strategy(app, consumer, **kwargs)

        def noting(message: Any, *args: Any, **options: Any) -> Any:
            app.journal.note(f"received {message.headers['id']}", message.headers.get("published-by"))
            return receive(message, *args, **options)

        return noting


#: Each other base, and what is open around its bodies.
THEIRS = {
    "context": (_InContext, ["context"]),
    "transaction": (_InTransaction, ["transaction"]),
    "abortable": (AbortableTask, []),
    "at_commit": (_AtCommit, []),
    "django": (DjangoTask, []),
    "tenant": (_OfTenant, []),
    "everything": (_Everything, ["everything"]),
}
ORDERS: dict[str, Callable[[Any], tuple[type, ...]]] = {
    "behind": lambda theirs: (SingletonTask, theirs),
    "before": lambda theirs: (theirs, SingletonTask),
}


def _for_tenant(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "headers": {**(options.get("headers") or {}), "_schema_name": tenant.get()}}


def send_for_tenant(app: Celery) -> Callable[..., Any]:
    """Return an app's ``send_task`` that says for which tenant: what its subclass overrides there."""
    return lambda name, args=None, kwargs=None, **options: Celery.send_task(
        app, name, args, kwargs, **_for_tenant(options)
    )


@task_prerun.connect(weak=False)
def _switch(task: Any, **_: Any) -> None:
    tenant.set(task.request.get("_schema_name") or "public")


@task_postrun.connect(weak=False)
def _switch_back(**_: Any) -> None:
    tenant.set("public")


def _new_body() -> Callable[..., Any]:
    """Make a body of its own for each task: Celery keeps attributes on it."""

    def work(self: Any, key: str) -> str:
        journal = self.app.journal
        with journal.body(self, key) as number:
            journal.note(f"around {key}", [*_opened.get()])
            journal.note(f"tenant of {key}", tenant.get())
            journal.stay(key, number)
            if isinstance(self, AbortableTask):
                journal.note(f"aborted {key}", self.is_aborted())
        return f"{key} done"

    return work


def declare(app: Celery) -> None:
    """Declare a task of each class: ``project.<theirs>_<order>``."""
    if not settings.configured:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        settings.configure(DATABASES={"default": database})
        django.setup()
    for name, (theirs, _) in THEIRS.items():
        for order, bases_of in ORDERS.items():
            base = type(f"{theirs.__name__}_{order}", bases_of(theirs), {"abstract": True})
            options = {"name": f"project.{name}_{order}", "base": base, "lock_key": RESOURCE}
            app.task(bind=True, shared=False, **options)(_new_body())


if "PROJECT_PLAN" in os.environ:
    from tests.acceptance.project import app

    declare(app)

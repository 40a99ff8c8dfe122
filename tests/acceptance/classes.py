"""The project with a task that has another base beside ``SingletonTask``, in both orders.

A worker imports it. Django has one database, in memory, for its transactions.
"""

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import django
from celery import Celery
from celery.contrib.django.task import DjangoTask
from celery.signals import task_postrun, task_prerun
from django.conf import settings
from django.db import transaction

from celery_redislock import SingletonTask
from tests.acceptance.project import RESOURCE

#: The tenant that this thread works for.
tenant: ContextVar[str] = ContextVar("tenant", default="public")


class Theirs(DjangoTask):
    """Overrides what ``SingletonTask`` does, and goes on to it each time; each body is a transaction.

    It says for which tenant, as tenant-schemas-celery does beside two signals.
    """

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with transaction.atomic():
            return super().__call__(*args, **kwargs)

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["headers"] = {**(kwargs.get("headers") or {}), "_schema_name": tenant.get()}
        return super().apply_async(*args, **kwargs)

    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        receive = super().start_strategy(app, consumer, **kwargs)

        def noting(message: Any, *args: Any, **options: Any) -> Any:
            app.journal.note(f"received {message.headers['id']}", message.headers["_schema_name"])
            return receive(message, *args, **options)

        return noting


ORDERS: dict[str, Callable[[], tuple[type, ...]]] = {
    "behind": lambda: (SingletonTask, Theirs),
    "before": lambda: (Theirs, SingletonTask),
}


@task_prerun.connect(weak=False)
def _switch(task: Any, **_: Any) -> None:
    tenant.set(task.request.get("_schema_name") or "public")


@task_postrun.connect(weak=False)
def _switch_back(**_: Any) -> None:
    tenant.set("public")


def _new_body() -> Callable[..., Any]:
    """Make a body of its own for each task: Celery keeps attributes on it."""

    def work(self: Any, key: str) -> str:
        with self.app.journal.body(self, key) as number:
            is_open = transaction.get_connection().in_atomic_block
            self.app.journal.note(f"body {key}", [tenant.get(), is_open])
            self.app.journal.stay(key, number)
        return f"{key} done"

    return work


def declare(app: Celery) -> None:
    """Declare a task of each class: ``project.<order>``."""
    if not settings.configured:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        settings.configure(DATABASES={"default": database})
        django.setup()
    for order, bases in ORDERS.items():
        base = type(f"Theirs_{order}", bases(), {"abstract": True})
        options = {"name": f"project.{order}", "base": base, "lock_key": RESOURCE}
        app.task(bind=True, shared=False, **options)(_new_body())


if "PROJECT_PLAN" in os.environ:
    from tests.acceptance.project import app

    declare(app)

"""The tasks, which the worker and the publisher both load; the plan in the environment names the library."""

import json
import os
from collections.abc import Callable
from typing import Any

from celery import Celery

from benchmarks.scoreboard.journal import Journal
from benchmarks.scoreboard.libraries import LIBRARIES, PLAN, SHORT

__all__ = ["LIMIT", "app", "fill", "job", "journal", "limited", "periodic", "retried", "short_lived", "total"]

#: Seconds of a hard time limit.
LIMIT = 2
#: Seconds of a body that outlives its lock's TTL.
LONG = 2.5 * SHORT

_plan = json.loads(os.environ[PLAN])
app = Celery("scoreboard", broker=_plan["url"], backend=_plan["url"])
app.conf.broker_connection_retry_on_startup = True
if _plan["visibility"]:
    # A look for such messages each second, without which it takes 100 s.
    app.conf.broker_transport_options = {
        "visibility_timeout": _plan["visibility"],
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
if _plan["term"]:
    app.conf.redislock_restore = _plan["term"]  # the others have nothing like it
journal = Journal(_plan["url"])
_declaration = LIBRARIES[_plan["library"]].declare(app, _plan["url"])


def _task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    decorate: Callable[[Callable[..., Any]], Any] = app.task(name=f"scoreboard.{name}", bind=True, **options)
    return decorate


@_task("job", **_declaration.unique)
def job(self: Any, x: object, note: str = "") -> int:
    with journal.body(self):
        journal.stay(self)
    return 1


@_task("retried", **_declaration.unique)
def retried(self: Any, x: int) -> None:
    with journal.body(self):
        if not self.request.retries:
            raise self.retry(countdown=1)
        journal.stay(self)


@_task("limited", time_limit=LIMIT, **_declaration.unique)
def limited(self: Any, x: int) -> None:
    with journal.body(self):
        journal.stay(self)


@_task("short_lived", **(_declaration.short_lived or {}))
def short_lived(self: Any, x: int) -> None:
    with journal.body(self):
        journal.stay(self, LONG)


@_task("periodic", **(_declaration.periodic or _declaration.unique))
def periodic(self: Any, x: int) -> None:
    with journal.body(self):
        pass


@_task("fill")
def fill(self: Any, number: int) -> None:
    """A plain task: it fills the pool."""
    with journal.body(self):
        journal.stay(self)


@_task("total")
def total(self: Any, numbers: list[int]) -> int:
    """A plain task: the callback of a chord."""
    with journal.body(self):
        return sum(numbers)

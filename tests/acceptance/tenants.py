"""A project whose beats make a message for each tenant of a tick: in a scheduler, or in a class of tasks.

The plan has, beside what ``project.py`` reads, ``task`` (the one that the schedule names) and ``every``
(seconds); of a beat its ``name``, and ``tenants`` in the order in which it publishes. After each of them but
the last one it stops while ``<name>@between`` is kept on.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from celery.beat import PersistentScheduler

from celery_redislock import SingletonTask
from celery_redislock.publishing.message import TICK
from tests.acceptance.project import app, plan

#: All reports wait for one another: no message is a duplicate, and all have one key.
_REPORT = {"lock": "while_executing", "lock_key": "reporting-database", "shared": False, "bind": True}

_tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def _tenants() -> Iterable[str]:
    *others, last = plan["tenants"]
    for tenant in others:
        yield tenant
        app.journal.reach(plan["name"], "between")
    yield last


class PerTenant(SingletonTask):
    """Publishes a message for each tenant, who is its argument."""

    def apply_async(self, _args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish for all tenants."""
        return [super(PerTenant, self).apply_async((tenant,), kwargs, **options) for tenant in _tenants()]


class OfTenant(SingletonTask):
    """Its messages have the current tenant in a header, which is all that tells them apart."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Publish for the current tenant."""
        headers = {**(options.pop("headers", None) or {}), "tenant": _tenant.get()}
        return super().apply_async(args, kwargs, headers=headers, **options)


class TenantScheduler(PersistentScheduler):
    """Sends an entry once for each tenant."""

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send it in the context of each."""
        for tenant in _tenants():
            _tenant.set(tenant)
            super().apply_entry(entry, producer=producer)


def _note(task: Any, tenant: str) -> None:
    tick = task.request.headers[TICK].partition(" ")[0]
    app.journal.note("reports", [tick, tenant])


@app.task(name="project.per_tenant", base=PerTenant, **_REPORT)
def per_tenant(self: Any, tenant: str) -> None:
    """Report for the tenant of the argument."""
    _note(self, tenant)


@app.task(name="project.of_tenant", base=OfTenant, **_REPORT)
def of_tenant(self: Any) -> None:
    """Report for the tenant of the header."""
    _note(self, self.request.headers["tenant"])


app.set_default()
app.conf.beat_schedule = {"reports": {"task": plan["task"], "schedule": plan["every"]}}

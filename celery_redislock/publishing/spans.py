"""Attributes on the current OpenTelemetry span: which lock a call or a run is about, and what became of it.

Nothing is imported, and nothing costs, in a program that has not imported OpenTelemetry's API before its
first publish, or, in a worker, before that starts.
"""

import sys
from typing import Any

from celery_redislock.publishing.signals import lock_acquired, lock_conflict


def connect() -> None:
    """Write attributes from now on, if OpenTelemetry is there; repeating it changes nothing.

    ``redislock.key``; ``redislock.outcome``: ``accepted`` or ``started``, or what is done about a duplicate,
    ``skip``, ``raise`` or ``wait``; ``redislock.holder``: the task id that holds the key then.
    """
    if "opentelemetry.trace" in sys.modules:
        for signal in (lock_acquired, lock_conflict):
            signal.connect(_write, weak=False, dispatch_uid="celery_redislock.spans")


def _write(key: str, lease: Any = None, holder: Any = None, strategy: str = "", **_: Any) -> None:
    """Write what either signal says: only of a conflict there is a holder, only of a run a lease."""
    span = sys.modules["opentelemetry.trace"].get_current_span()
    span.set_attribute("redislock.key", key)
    span.set_attribute("redislock.outcome", strategy or ("accepted" if lease is None else "started"))
    if holder is not None:
        span.set_attribute("redislock.holder", holder.owner)

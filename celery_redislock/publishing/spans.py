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
        lock_acquired.connect(_acquired, weak=False, dispatch_uid="celery_redislock.spans")
        lock_conflict.connect(_refused, weak=False, dispatch_uid="celery_redislock.spans")


def _acquired(key: str, lease: Any = None, **_: Any) -> None:
    _write(key, "accepted" if lease is None else "started")


def _refused(key: str, holder: Any, strategy: str, **_: Any) -> None:
    _write(key, strategy, holder.owner)


def _write(key: str, outcome: str, holder: str | None = None) -> None:
    span = sys.modules["opentelemetry.trace"].get_current_span()
    span.set_attribute("redislock.key", key)
    span.set_attribute("redislock.outcome", outcome)
    if holder is not None:
        span.set_attribute("redislock.holder", holder)

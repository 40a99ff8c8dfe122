"""When a published message may run, and so how long its claim must live."""

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_redislock.declaring.options import LockOptions

__all__ = ["claim_ttl"]


def claim_ttl(task: Any, lock: LockOptions, options: Mapping[str, Any]) -> float:
    """Return the seconds a claim lives: countdown or ETA and ``lock_queue_ttl``, capped by ``expires``.

    Args:
        task: the bound task; its own ``expires`` counts where the call has none.
        lock: the options of the call. For ``until_expired`` the claim is the window.
        options: Celery's options of the publish.
    """
    if lock.is_window and lock.lock_period is not None:
        return lock.lock_period
    ttl = _delay(task, options) + lock.lock_queue_ttl
    expires = options.get("expires")
    expires_in = _seconds_until(task, getattr(task, "expires", None) if expires is None else expires)
    # A message past its expiry never runs; its claim need not outlive it by more than a second.
    return ttl if expires_in is None else min(ttl, max(1.0, expires_in))


def _delay(task: Any, options: Mapping[str, Any]) -> float:
    countdown = options.get("countdown")
    if countdown is not None:
        return max(0.0, float(countdown))
    return max(0.0, _seconds_until(task, options.get("eta")) or 0.0)


def _seconds_until(task: Any, when: Any) -> float | None:
    if when is None:
        return None
    if isinstance(when, int | float):
        return float(when)
    if isinstance(when, str):
        when = maybe_iso8601(when)
    if not isinstance(when, datetime):
        return None
    aware = maybe_make_aware(when, task.app.timezone)
    return float((aware - datetime.now(timezone.utc)).total_seconds())

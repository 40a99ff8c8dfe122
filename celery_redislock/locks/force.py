"""A hold that an operator takes away: what is noted of it, and how it is told later."""

import json
import time
from collections.abc import Mapping
from typing import Any

from celery_redislock.locks.acts import who


def facts_of_force(owner: str, reason: str) -> str:
    """Describe who takes a hold away from this owner, why and when, as JSON."""
    return json.dumps({**who(), "reason": reason, "owner": owner})


def told_of_force(forced: Mapping[str, Any]) -> str:
    """Tell it in half a sentence: ``released by force 3.2 s ago from ID by ann on web-1 (pid 7): 'x'``."""
    since = forced.get("since")
    ago = f" {max(0.0, time.time() - since):.1f} s ago" if isinstance(since, int | float) else ""
    who = f"{forced.get('by', '-')} on {forced.get('host', '-')} (pid {forced.get('pid', '-')})"
    reason = str(forced.get("reason", "-"))
    return f"released by force{ago} from {forced.get('owner', '-')} by {who}: {reason!r}"

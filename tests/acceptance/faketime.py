"""A clock of one's own for processes: libfaketime sets it anywhere, and lets it run faster.

All processes that look at one another's clock need it, the lock server too: sleeps, timeouts and leases then
pass faster as well. The embedded Valkey can bear it, Debian's ``redis-server`` cannot: its allocator asks for
the time before libfaketime is up. Found with libfaketime 0.9.10 and Python 3.11:

- What waits for a lock or an event with a timeout waits for ever: the C library's ``sem_clockwait`` goes by
  the true clock. ``time.sleep()`` and sockets go by the fast one, and a beat uses nothing else.
- With ``FAKETIME_DONT_FAKE_MONOTONIC`` each ``time.sleep()`` fails with ``EINVAL``.
- A moment (``@2026-10-25 02:30:00``) is read in the process's zone, where a change makes it ambiguous; so an
  offset is given.
"""

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

_LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.1.dylib")


class FastClock:
    """A clock that shows a moment when it is made, and runs ``speed`` times as fast as ours."""

    def __init__(self, start: datetime, speed: int, zone: str) -> None:
        """Make it; skips the test, or fails it in CI, where libfaketime is missing."""
        found = [path for pattern in _LIBRARIES for path in Path("/").glob(pattern[1:])]
        if not found:
            reason = "libfaketime not found: apt-get install faketime"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
        self._library, self._start, self._speed, self._zone = str(found[0]), start, speed, zone
        self._began = time.monotonic()

    @property
    def now(self) -> datetime:
        """What it shows."""
        passed = timedelta(seconds=(time.monotonic() - self._began) * self._speed)
        return (self._start + passed).astimezone(timezone.utc)

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that is started now, and goes by this clock, in its zone."""
        local = self.now.timestamp()
        offset = local - time.time()
        return {"LD_PRELOAD": self._library, "FAKETIME": f"{offset:+.3f} x{self._speed}", "TZ": self._zone}

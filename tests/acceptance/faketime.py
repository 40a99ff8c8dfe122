"""A clock of one's own for processes: libfaketime sets it anywhere, and lets it run faster.

All processes that look at one another's clock need it, the lock server too: sleeps, timeouts and leases then
pass faster as well. The embedded Valkey can bear it, Debian's ``redis-server`` cannot (its allocator asks for the
time before libfaketime is up). In Python only ``time.sleep()`` and sockets go by that clock: what waits for a lock
or an event with a timeout waits for ever, as glibc's ``sem_clockwait`` is not known to libfaketime 0.9.10; and with
``FAKETIME_DONT_FAKE_MONOTONIC`` a ``time.sleep()`` fails with ``EINVAL``. A beat does neither.
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
        # libfaketime reads a moment in the zone of the process, which the change makes ambiguous: an offset.
        offset = local - time.time()
        return {"LD_PRELOAD": self._library, "FAKETIME": f"{offset:+.3f} x{self._speed}", "TZ": self._zone}

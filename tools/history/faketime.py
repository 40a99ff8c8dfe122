"""A server whose wall clock is set while it runs: the embedded Valkey under ``libfaketime``.

Debian's ``redis-server`` does not start so: its allocator asks for the time before the library (0.9.10) is
ready.
"""

from pathlib import Path

from celery_redislock.embedded import EmbeddedServer

__all__ = ["FakedClock"]

_LIBRARIES = "/usr/lib/*/faketime/libfaketime.so.1"


class FakedClock:
    """The wall clock of one server, so many seconds away from the machine's; its other clocks are not moved.

    Attributes:
        binary: starts the server by this clock.
        variables: start any other program by it.
        ahead: seconds; below nothing it is behind.
    """

    def __init__(self, folder: Path) -> None:
        """Write what starts the server into this folder.

        Raises:
            SystemExit: the library is not installed.
        """
        library = next(iter(sorted(Path("/").glob(_LIBRARIES[1:]))), None)
        if library is None:
            raise SystemExit("a server with a clock of its own: apt-get install libfaketime")
        self._offset = folder / "offset"
        self.binary = str(folder / "redis-server")
        self.ahead = 0.0
        self.move(0.0)
        self.variables = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        words = " ".join(f"{name}={value}" for name, value in self.variables.items())
        Path(self.binary).write_text(f'#!/bin/sh\nexec env {words} {EmbeddedServer().binary} "$@"\n')
        Path(self.binary).chmod(0o755)

    def move(self, seconds: float) -> None:
        """Set the clock ahead, or back."""
        self.ahead += seconds
        whole = self._offset.with_suffix(".new")
        whole.write_text(f"{self.ahead:+.0f}")
        whole.replace(self._offset)  # the server reads it at any moment

"""A real worker process: started, looked at, and ended."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery.utils import uuid

from tests.acceptance.processes import Process

#: Let kombu look for messages to restore every second; its own default, ten times ten, would take minutes.
#: A worker that is killed while it looks keeps the others from it, by default for five minutes.
SWEEPING = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1, "unacked_mutex_expire": 2}
#: Seconds a worker may take until it is ready, until it has ended once killed, and until it shows its stacks.
STARTING, ENDING, LOOKING = 60.0, 30.0, 3.0


class Worker(Process):
    """One ``celery worker`` process in a session of its own."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        pool: str,
        concurrency: int,
        arguments: tuple[str, ...],
        *,
        app: str = "tests.acceptance.project",
    ) -> None:
        """Start it; :meth:`wait_ready` tells when it works. ``app``: a module that reads the plan."""
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "-P", pool]
        command += ["-c", str(concurrency), "-n", f"{uuid()}@localhost", "-l", "INFO"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat", *arguments]
        # Containers run tests as root, which Celery refuses where pickle is accepted.
        environment = {"PROJECT_PLAN": json.dumps(plan), "C_FORCE_ROOT": "1"}
        super().__init__(command, environment, Path(tempfile.gettempdir()), stdin=subprocess.PIPE)
        self._pool = pool

    def wait_ready(self) -> None:
        """Return when it takes messages."""
        # With gevent, revocations are heard by another connection, which is there a little later.
        ready = "pidbox: Connected" if self._pool == "gevent" else " ready."
        deadline = time.monotonic() + STARTING
        while ready not in self.log and self.process.poll() is None:
            assert time.monotonic() < deadline, f"the worker is not ready:\n{self.log}"
            time.sleep(0.02)
        assert self.process.poll() is None, f"the worker ended at once:\n{self.log}"

    def stacks(self) -> str:
        """Return what each thread of the main process is doing, or how that has ended."""
        if (code := self.process.poll()) is not None:
            return f"it ended with {code}"
        size, deadline = len(self.log), time.monotonic() + LOOKING
        self.signal(signal.SIGUSR2)
        while "most recent call first" not in self.log[size:] and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.log[size:] or "it stands still"

    def signal(self, number: int) -> None:
        """Send its main process a signal."""
        os.kill(self.process.pid, number)

    def end(self, patience: float = ENDING) -> None:
        """End it and its children by force: its own way to end is a matter of a test. Idempotent."""
        # The children of a pool are in its session's process group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        super().end(patience)
        if self.log_path.exists():
            unforeseen = [line for line in self.log.splitlines() if "no such transition" in line]
            self.log_path.unlink()
            assert not unforeseen, unforeseen


def end_with_parent() -> None:
    """End this worker when its starter is gone, however that ended: its end of our standard input closes."""

    def watch() -> None:
        # Not read alone, which would stop every greenlet of a pool of these.
        while select.select([0], [], []) and os.read(0, 1):
            pass
        os.kill(os.getpid(), 9)

    threading.Thread(target=watch, daemon=True).start()

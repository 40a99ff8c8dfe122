"""A real beat process: started, looked at, stopped, killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.acceptance.processes import Process
from tests.acceptance.worker import STARTING

#: Seconds a beat may take to stop, and to end once it is killed.
_STOPPING, _ENDING = 10.0, 30.0


class Beat(Process):
    """One ``celery beat`` process in a folder of its own; ``schedule_file``: where it keeps its schedule."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        *arguments: str,
        schedule_file: Path | None = None,
        app: str = "tests.acceptance.scheduled",
    ) -> None:
        """Start it on an app that reads the plan; ``schedule_file`` may be another beat's, to go on from."""
        self._folder = Path(tempfile.mkdtemp(prefix="beat-"))
        self.schedule_file = schedule_file or self._folder / "schedule"
        command = [sys.executable, "-m", "celery", "-A", app, "beat", "-l", "INFO"]
        command += ["-s", str(self.schedule_file), "--pidfile=", *arguments]
        # It ends with its starter, however that ends (``end_with_parent``).
        super().__init__(command, {"PROJECT_PLAN": json.dumps(plan)}, self._folder, stdin=subprocess.PIPE)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def wait_ready(self) -> None:
        """Return when it looks at its schedule."""
        deadline = time.monotonic() + STARTING
        while "beat: Starting..." not in self.log and self.runs:
            assert time.monotonic() < deadline, f"the beat is not ready:\n{self.log}"
            time.sleep(0.01)
        assert self.runs, f"the beat ended at once:\n{self.log}"

    def kill(self) -> None:
        """End it by SIGKILL: it does nothing any more, and its schedule file is as it was."""
        self.process.kill()
        self.process.wait(_ENDING)

    def pause(self) -> None:
        """Stop it (SIGSTOP), and return when it stands."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + _STOPPING
        stat = Path(f"/proc/{self.pid}/stat")
        while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, "it does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def end(self, patience: float = _ENDING) -> None:
        """End it by force, and remove its folder. Idempotent."""
        self.process.kill()
        super().end(patience)
        shutil.rmtree(self._folder, ignore_errors=True)

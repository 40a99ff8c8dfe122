"""The demo's worker: a real prefork worker in a session of its own, which dies with the demo.

Standard input is a pipe from the demo. The kernel closes it however the demo
ended, also after ``kill -9``; then the worker's whole process group ends.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO

__all__ = ["READY", "WorkerProcess", "main"]

#: Seconds a worker that has nothing left to do may take to end by itself.
WARM_SHUTDOWN = 5.0
#: What the worker lets go when it takes tasks.
READY = "worker"
#: Processes in the pool.
CONCURRENCY = 4

_ADDRESS = "CELERY_REDISLOCK_DEMO"
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from celery_redislock.cli.demo.worker import main; main()"
)
#: What Celery's command line takes from the environment, besides ``CELERY_…`` (celery 5.7.0, bin/celery.py).
_CELERYS_OWN = frozenset({"APP", "BROKER_URL", "RESULT_BACKEND", "LOADER", "CONFIG_MODULE", "SKIP_CHECKS"})


class WorkerProcess:
    """The worker as the demo sees it.

    Attributes:
        last_lines: the end of its log.
    """

    def __init__(self, url: str, prefix: str, *, tell: Callable[[str], None]) -> None:
        """Start the worker.

        Args:
            url: of broker and result backend.
            prefix: of all keys.
            tell: called with each line of its log, in a thread of this object.
        """
        self.last_lines: deque[str] = deque(maxlen=40)
        self._tell = tell
        # What its pool leaves there when it is killed is not left behind.
        self._temporary = tempfile.mkdtemp(prefix="redislock-demo-")
        self._process = subprocess.Popen(  # noqa: S603  our own program
            # With the demo's import path: it may not be installed, or started from anywhere.
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(url, prefix, self._temporary),
            # Ctrl-C on the terminal is for the demo, which then ends the worker.
            start_new_session=True,
        )
        threading.Thread(target=self._read_log, name="demo-worker-log", daemon=True).start()

    @property
    def pid(self) -> int:
        """The main process's id, and its group's."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the main process exists."""
        return self._process.poll() is None

    def end(self, *, gently: bool) -> None:
        """End the worker with all its pool processes; they are gone when this returns.

        Args:
            gently: let it end by itself (a warm shutdown), for up to ``WARM_SHUTDOWN`` seconds.
        """
        if gently and self.is_running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(WARM_SHUTDOWN)
        if self.is_running:
            # Its process group, which exists as long as its leader was not waited for.
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _read_log(self) -> None:
        log: IO[bytes] | None = self._process.stdout
        for line in log or ():
            text = line.decode("utf-8", "replace").rstrip()
            self.last_lines.append(text)
            self._tell(text)


def main() -> None:
    """Run the worker until it is told to stop or the demo is gone; in the worker's main process."""
    url, prefix, temporary = json.loads(os.environ.pop(_ADDRESS))
    threading.Thread(target=_die_with_the_demo, args=(temporary,), name="demo-pipe", daemon=True).start()
    from celery.signals import worker_ready  # noqa: PLC0415  the thread above comes first

    from celery_redislock.cli.demo.app import app, configure, notebook  # noqa: PLC0415  same

    configure(url, prefix)
    worker_ready.connect(lambda **_: notebook().let_go(READY), weak=False)
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
    app.worker_main(["worker", "--pool", "prefork", "--concurrency", str(CONCURRENCY), *options])


def _die_with_the_demo(temporary: str) -> None:
    while os.read(0, 1):
        pass
    shutil.rmtree(temporary, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _environment(url: str, prefix: str, temporary: str) -> dict[str, str]:
    """This environment without what would make Celery connect elsewhere; the URL is nobody else's to read."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CELERY_") and name not in _CELERYS_OWN
    }
    return {**kept, _ADDRESS: json.dumps([url, prefix, temporary]), "TMPDIR": temporary}

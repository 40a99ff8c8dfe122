"""A real prefork worker in a session of its own, which dies with the process that started it.

Standard input is a pipe from there: the kernel closes it however that process
ended, also after ``kill -9``; then the worker's whole process group ends.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

__all__ = ["CONCURRENCY", "READY", "WorkerProcess", "die_with_the_publisher", "main"]

#: Processes in the pool.
CONCURRENCY = 6
#: What it notes in the journal when it takes messages, with its name.
READY = "ready:"
#: Seconds until a killed process is gone.
ENDING = 30.0


class WorkerProcess:
    """The worker as the scenario sees it.

    Args:
        node: its name.
        verbose: show its log.
    """

    def __init__(self, node: str, *, verbose: bool) -> None:
        self.node = node
        # What its pool leaves there when it is killed is not left behind.
        self._temporary = tempfile.mkdtemp(prefix="scoreboard-")
        output = sys.stderr if verbose else subprocess.DEVNULL
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scoreboard.worker", node, self._temporary],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": self._temporary},
            start_new_session=True,
        )

    @property
    def is_running(self) -> bool:
        """Whether its main process exists."""
        return self._process.poll() is None

    def end(self) -> None:
        """End its main process and all pool processes; return when they are gone."""
        if self.is_running:
            # Its process group, which exists as long as its leader was not waited for.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(ENDING)
        shutil.rmtree(self._temporary, ignore_errors=True)


def main() -> None:
    """Run the worker, in its main process; the command line has its name and its temporary directory."""
    node, temporary = sys.argv[1:]
    end = threading.Thread(target=die_with_the_publisher, args=(temporary,), daemon=True)
    end.start()
    from celery.signals import worker_ready

    from benchmarks.scoreboard.shop import app, journal

    worker_ready.connect(lambda **_: journal.note(READY + node), weak=False)
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
    app.worker_main(
        ["worker", "--pool", "prefork", "--concurrency", str(CONCURRENCY), "--hostname", node, *quiet]
    )


def die_with_the_publisher(temporary: str) -> None:
    """Remove a directory and end this process and its group, once standard input is at its end."""
    while os.read(0, 1):
        pass
    shutil.rmtree(temporary, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()

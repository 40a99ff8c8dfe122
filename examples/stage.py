"""What every example needs and no application does: a server of its own, and workers that end with it.

An example is started from the top of the checkout, and says by its exit status
whether everything was as its README says::

    python -m examples.beat

Its tasks are in a module of its own (``shop.py``), which is all that an
application would have; its story is in ``__main__.py``.
"""

import gc
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from celery import Celery
from celery.bin.celery import main as celery
from celery.exceptions import SecurityWarning
from celery.signals import beat_init, setup_logging, worker_ready

from celery_redislock.embedded import EmbeddedServer
from examples.transcript import Transcript

__all__ = ["Process", "Stage", "stage", "wait_until"]

#: Seconds a worker or beat may take to begin, and to end when it is told to.
PATIENCE = 60.0
#: Workers that say nothing about each other: there is nobody else.
_ALONE = ("--without-gossip", "--without-mingle")


class Process:
    """A worker or a beat."""

    def __init__(
        self,
        app: str,
        environment: dict[str, str],
        *arguments: str,
        output: int | None = None,
        errors: int | None = None,
    ) -> None:
        """Start it, and wait until it works.

        Args:
            app: where Celery finds the app, as ``examples.beat.shop``.
            environment: variables of its own.
            arguments: of Celery's command line.
            output: file descriptor for what it writes; without one it is this process's own output.
            errors: the same for its standard error.
        """
        is_ready, ready = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.stage", "--quiet", "-A", app, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env={**os.environ, **environment, "READY": str(ready)},
                pass_fds=(ready,),
                # Ctrl-C on the terminal is for the example, which then ends its processes.
                start_new_session=True,
            )
            os.close(ready)
            if not select.select([is_ready], [], [], PATIENCE)[0] or not os.read(is_ready, 1):
                self.kill()
                message = f"celery {arguments[0]} did not begin; what it wrote is above"
                raise RuntimeError(message)
        finally:
            os.close(is_ready)

    @property
    def pid(self) -> int:
        """The main process's id."""
        return self._process.pid

    def stop(self) -> None:
        """End it gently: a worker's running tasks end first. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
        self.kill()

    def kill(self) -> None:
        """End it at once, with its pool, as a failing machine would. Idempotent."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


class Stage:
    """The server, the processes, and what was seen.

    Attributes:
        url: of broker, result backend and lock server, as Celery writes it.
        directory: for files; it goes with the stage.
        as_said: everything expected was seen so far.
    """

    def __init__(self, app: str, url: str, directory: str, *, shows_logs: bool) -> None:
        self.url = url
        self.directory = directory
        self.as_said = True
        self._app = app
        self._processes: list[Process] = []
        self._transcript = Transcript(shows_lines=shows_logs)
        self._errors = None if shows_logs else self._transcript.pipe

    def worker(self, *arguments: str, pool: str = "prefork", concurrency: int = 2) -> Process:
        """Start a worker; it consumes when this returns."""
        options = [
            "--pool",
            pool,
            "--concurrency",
            str(concurrency),
            "--hostname",
            f"w{os.urandom(3).hex()}@%h",
        ]
        return self._start("worker", *_ALONE, *options, *arguments)

    def beat(self, app: str | None = None) -> Process:
        """Start a beat, of the stage's app or of another one; it ticks when this returns."""
        schedule = tempfile.mktemp(prefix="beat-", dir=self.directory)  # noqa: S306  a directory of ours
        return self._start("beat", "--schedule", schedule, app=app)

    def lines(self, *words: str) -> list[str]:
        """Return the lines workers and beats have written that contain all these words, in order."""
        return self._transcript.lines(*words)

    def say(self, text: str) -> None:
        """Tell the reader something, below what workers and beats have written so far."""
        self._transcript.say(*text.split("\n"))

    def expect(self, what: str, is_so: object) -> None:
        """Tell whether something expected was seen."""
        self.as_said = self.as_said and bool(is_so)
        self.say(f"  {'as expected' if is_so else 'NOT AS EXPECTED'}: {what}")

    def close(self) -> None:
        """End every process, gently; the last one first, so that no beat goes on without a worker."""
        for process in reversed(self._processes):
            process.stop()
        self._transcript.close()

    def _start(self, *arguments: str, app: str | None = None) -> Process:
        addresses = {"BROKER_URL": self.url, "RESULT_URL": self.url, "REDISLOCK_URL": self.url}
        # Buffered, print(..., flush=True) writes a line and its end at once; else others write in between.
        environment = {**addresses, "TMPDIR": self.directory, "PYTHONUNBUFFERED": ""}
        try:
            process = Process(
                app or self._app, environment, *arguments, output=self._transcript.pipe, errors=self._errors
            )
        except RuntimeError:
            self._transcript.show()
            raise
        self._processes.append(process)
        return process


@contextmanager
def stage(app: Celery, *, shows_logs: bool = True) -> Iterator[Stage]:
    """Give an app a server for a block; then leave with 1 if something was not as expected.

    Keep results in functions that the block calls: its own would outlive the server, and before Celery 5.7
    look for it for 20 s each (docs/troubleshooting.md).

    Args:
        app: of the example, named after its module; its URLs are set here, before it is first used.
        shows_logs: show what workers, beats and this process log.

    Raises:
        SystemExit: with 1.
        celery_redislock.embedded.EmbeddedServerError: there is no server's binary; it says what to install.
    """
    if shows_logs:
        _log_what_matters("caller")
    directory = tempfile.mkdtemp(prefix="redislock-example-")
    try:
        with EmbeddedServer() as server:
            app.conf.update(broker_url=server.url, result_backend=server.url, redislock_url=None)
            here = Stage(str(app.main), server.url, directory, shows_logs=shows_logs)
            try:
                yield here
            finally:
                here.close()
                # A finished result refers to itself.
                gc.collect()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if not here.as_said:
        raise SystemExit(1)


def wait_until(is_so: Callable[[], object], timeout: float = PATIENCE) -> bool:
    """Look again and again until something is so; false if it is not in time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.02)
    return bool(is_so())


def main() -> None:
    """Be a worker or a beat that writes what matters, and ends with the example, however that ends."""
    threading.Thread(target=_end_with_the_example, daemon=True).start()
    ready = int(os.environ.pop("READY"))

    def tell(**_: object) -> None:
        os.write(ready, b"!")

    def log(**_: object) -> None:
        _log_what_matters("beat" if "beat" in sys.argv else "worker")

    # As root, in a container; these processes are no service.
    warnings.simplefilter("ignore", SecurityWarning)
    setup_logging.connect(log, weak=False)
    worker_ready.connect(tell, weak=False)
    beat_init.connect(tell, weak=False)
    celery()


def _end_with_the_example() -> None:
    while os.read(0, 1):
        pass
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)  # the example had no time to do that
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _log_what_matters(who: str) -> None:
    """What tasks and locks have to say, and what went wrong; Celery's own chatter is left out."""
    logging.basicConfig(format=f"    {who}: %(message)s", stream=sys.stdout, level=logging.WARNING)
    for name in ("celery_redislock", "celery.task"):  # the latter: what get_task_logger() gives
        logging.getLogger(name).setLevel(logging.INFO)


if __name__ == "__main__":
    main()

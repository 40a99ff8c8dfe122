"""Programs that tests run beside workers, in an environment of their own; each ends with its test."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.acceptance.forked import Forked, can_be_forked

ROOT = Path(__file__).resolve().parents[2]
#: Debian's /usr/sbin/rabbitmq-* insist on a system user and its home; what they call does not.
_MORE_PROGRAMS = (str(Path(sys.executable).parent), "/usr/lib/rabbitmq/bin")
_PATH = os.pathsep.join([*_MORE_PROGRAMS, os.environ["PATH"], "/usr/sbin"])

#: What to install for each program that a service or its health check needs.
_PACKAGES = {
    "redis-server": "redis-server",
    "redis-cli": "redis-tools",
    "rabbitmq-server": "rabbitmq-server",
    "rabbitmq-diagnostics": "rabbitmq-server",
    "epmd": "rabbitmq-server",
    "erl": "rabbitmq-server",
    "openssl": "openssl",
    "chromium": "chromium fonts-dejavu-core",
}


def needs(*programs: str) -> None:
    """Skip the test, or fail it in CI, where a program is missing; the reason says what to install."""
    import pytest  # here, because workers import this module

    missing = [program for program in programs if shutil.which(program, path=_PATH) is None]
    if not missing:
        return
    packages = " ".join(sorted({_PACKAGES.get(program, program) for program in missing}))
    reason = f"{', '.join(missing)} not found: apt-get install {packages}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def program(name: str) -> str:
    """Return the path of a program; skip or fail as :func:`needs` does."""
    needs(name)
    return str(shutil.which(name, path=_PATH))


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on, and that no outgoing connection gets.

    The kernel takes those of its own choice from a range that begins at 32768 on Linux (``ip(7)``,
    ``ip_local_port_range``): one of these may be taken before the program that wants it is up.
    """
    for _ in range(100):
        port = random.randrange(20_000, 32_000)  # noqa: S311  not for secrets
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a hundred ports are taken")


class Process:
    """A started command and what it has written."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start it, in a session of its own; its log is in the folder."""
        handle, path = tempfile.mkstemp(suffix=".log", dir=folder)
        self.log_path = Path(path)
        self._read = ""
        self._size = 0
        here, environ = ROOT / "examples" / "quickstart", _environ(environment)
        if can_be_forked(command, environment):
            self.process: Any = Forked(command, environ, here, handle)
        else:
            # Where there is such a program, the process ends with this one, however this one ends.
            tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
            self.process = subprocess.Popen(
                [*tied, *command],
                stdin=stdin,
                stdout=handle,
                stderr=subprocess.STDOUT,
                cwd=here,
                env=environ,
                start_new_session=True,
            )
        os.close(handle)

    @property
    def log(self) -> str:
        """All whole lines it has written so far."""
        # Tests look again and again at the log of a whole session: only what is new is read.
        with self.log_path.open("rb") as file:
            file.seek(self._size)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += whole.decode(errors="replace")
        self._size += len(whole)
        return self._read

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def end(self, patience: float = 15.0) -> None:
        """End it as ``docker stop`` does, SIGTERM and then SIGKILL; then what is left of its session."""
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(patience)
        if self.process.stdin is not None:
            self.process.stdin.close()


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, *, stdin: int = subprocess.DEVNULL
) -> Iterator[Process]:
    """Run a command in the example's folder while the block runs."""
    process = Process(command, environment, folder, stdin=stdin)
    try:
        yield process
    finally:
        process.end()


def run_check(check: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Carry out a health check, or another short command, and return what came of it."""
    return subprocess.run(
        check,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT / "examples" / "quickstart",
        env=_environ(environment),
    )


def until(fact: Callable[[], bool], timeout: float, process: Process, what: str) -> None:
    """Wait for a fact while a process runs; fail with its log if it ends, or if the fact does not come."""
    deadline = time.monotonic() + timeout
    while not fact():
        assert process.runs, f"it ended before: {what}\n{process.log}"
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}\n{process.log}"
        time.sleep(0.05)


def _environ(environment: Mapping[str, str]) -> dict[str, str]:
    # Containers run tests as root, where Celery only warns.
    here = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PATH": _PATH,
        "PYTHONPATH": os.pathsep.join(filter(None, [here, str(ROOT)])),
        **environment,
    }

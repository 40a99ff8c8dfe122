"""A ``celery`` command in a process that is forked from one which has imported Celery already.

A worker computes for a second and a half until it is ready, most of it to import what others have written.
Of this package only what ``celery`` itself imports is imported before the fork, nothing of the tests: what
a module does when it is imported, every process does by itself. They have the seed of their hashes in common.
"""

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

#: What workers and beats import, whatever they do.
_IMPORTED = (
    "asyncio", "celery.apps.beat", "celery.apps.worker", "celery.app.trace", "celery.backends.redis",
    "celery.bin.celery", "celery.concurrency.prefork", "celery.concurrency.solo", "celery.concurrency.thread",
    "celery.events.state", "celery.worker.autoscale", "celery.worker.components", "celery.worker.consumer",
    "kombu.transport.pyamqp", "kombu.transport.redis", "redis.asyncio", "redis.sentinel",
)  # fmt: skip
#: If it is installed, each child of a pool parses C with it (billiard 4.3, ``util.py``).
_IMPORTED_IF_THERE = ("cffi.cparser",)
#: Bytes of the longest request, which has a whole environment.
_LONGEST = 1 << 17


def can_be_forked(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the command, with these variables of its own, starts as it would by itself.

    A pool of greenlets changes modules before any other one is imported; other variables may count only then.
    """
    return (
        sys.platform == "linux"
        and list(command[:3]) == [sys.executable, "-m", "celery"]
        and not {"gevent", "eventlet"}.intersection(command)
        and {*environment} <= {"PROJECT_PLAN", "C_FORCE_ROOT"}
    )


class Forked:
    """Such a process, with what tests use of ``subprocess.Popen``.

    Attributes:
        pid: of the process, which leads a session of its own.
        stdin: the other end of its standard input.
        returncode: how it has ended, as ``Popen`` says it; None if nobody has looked since.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, output: int
    ) -> None:
        """Start it in a folder, its output in the open file ``output``."""
        stdin, theirs = os.pipe()
        self._said, status = os.pipe()
        about = {"argv": list(command[3:]), "environ": dict(environment), "folder": str(folder)}
        starter = _starter(environment["PYTHONPATH"])
        socket.send_fds(starter, [json.dumps(about).encode()], [stdin, output, status])
        os.close(stdin)
        os.close(status)
        self.stdin = os.fdopen(theirs, "wb")
        self.returncode: int | None = None
        self.pid = int(self._line())

    def poll(self) -> int | None:
        """Return how it has ended, or None."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it has ended, when it has; after ``timeout`` seconds fail as ``Popen`` does."""
        code = self._look(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("celery", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._said], [], [], timeout)[0]:
            self.returncode = int(self._line())
            os.close(self._said)
        return self.returncode

    def _line(self) -> bytes:
        line = os.read(self._said, 1)
        while not line.endswith(b"\n"):
            more = os.read(self._said, 1)
            assert more, "what starts workers has ended"
            line += more
        return line


@cache
def _starter(path: str) -> socket.socket:
    """Return what takes requests in a process that imports once, from a path, and ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            cwd=Path(__file__).resolve().parents[2],
            # Both are read before a request comes: by Python, and by Celery when it is imported.
            env={**os.environ, "PYTHONPATH": path, "C_FORCE_ROOT": "1"},
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _start_on_request() -> None:
    """Fork for each request; return in the process that is to be what was asked for."""
    for name in _IMPORTED:
        import_module(name)
    for name in _IMPORTED_IF_THERE:
        with suppress(ImportError):
            import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that only watch
    requests = socket.socket(fileno=0)
    while True:
        packet, files, *_ = socket.recv_fds(requests, _LONGEST, 3)
        if not packet:
            sys.exit()
        if not os.fork():
            break
        for each in files:
            os.close(each)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stdin, output, status = files
    if pid := os.fork():
        _watch(pid, stdin, output, status)
    os.setsid()
    for place, file in enumerate((stdin, output, output)):
        os.dup2(file, place)
    for each in files:
        os.close(each)
    _become(**json.loads(packet))


def _watch(pid: int, stdin: int, output: int, status: int) -> None:
    """Tell how the process ends, and end."""
    os.write(status, b"%d\n" % pid)
    os.close(stdin)
    os.close(output)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, b"%d\n" % code)
    os._exit(0)


def _become(argv: list[str], environ: dict[str, str], folder: str) -> None:
    """Be what ``python -m celery`` is in a folder and an environment."""
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv[1:] = argv


if __name__ == "__main__":
    _start_on_request()
    runpy.run_module("celery", run_name="__main__", alter_sys=True)

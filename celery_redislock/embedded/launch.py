"""One launch of a server: the parent's end of the pipes to the process that looks after it."""

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from celery_redislock.embedded.exceptions import EmbeddedServerError

__all__ = ["Launch", "free_port", "server_options", "unused_directory"]

_SHIM = Path(__file__).resolve().with_name("shim.py")
#: Seconds a server may take until it answers: 0.05 is usual, a long append-only file takes more.
_START_TIMEOUT = 30.0
#: Seconds between two questions whether it answers yet.
_START_POLL = 0.002
#: Seconds the shim may take to end server and directory: ten times what it allows the server.
_END_TIMEOUT = 10.0
#: Bytes of a socket's path. ``sun_path`` has 108 on Linux, 104 on macOS, one for the final zero.
_LONGEST_SOCKET_PATH = 103
_LAST_LINES = 12


class Launch:
    """A shim process and, while that says so, its server.

    Attributes:
        socket_path: path of the server's unix socket.
        port: its port on 127.0.0.1, if any.
        pid: process id of the server last started, 0 before.

    Args:
        command: server program and options.
        directory: a path where nothing is yet; the shim makes and removes it.
        port: the port among the options.

    Raises:
        EmbeddedServerError: the shim could not be started.
    """

    def __init__(self, command: Sequence[str], directory: str, port: int | None) -> None:
        self.socket_path = _socket_path(directory)
        self.port = port
        self.pid = 0
        self._directory = directory
        self._owned = True
        self._shim = _start_shim([str(os.getpid()), directory, *command])

    def start_server(self) -> None:
        """Start the server and return when it answers.

        Raises:
            EmbeddedServerError: it ended, or did not answer in time.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        state = self.ask("start")
        while not self._answers():
            if not state.startswith("running"):
                problem = f"the server could not start ({state})"
                raise EmbeddedServerError(problem, self._last_lines())
            if time.monotonic() > deadline:
                problem = f"the server did not answer within {_START_TIMEOUT:.0f} s; it may have much to load"
                raise EmbeddedServerError(problem, self._last_lines())
            time.sleep(_START_POLL)
            state = self.ask("status")

    def ask(self, command: str) -> str:
        """Have the shim carry out ``command`` and return its answer: ``running PID`` or ``ended CODE``.

        Raises:
            EmbeddedServerError: the shim is gone, or belongs to the parent of this process.
        """
        if not self._owned:
            raise EmbeddedServerError(
                "the embedded server belongs to the process that started it, not to its fork; "
                "control it from there, or start another one here"
            )
        answer = ""
        if self._shim.stdin and self._shim.stdout:
            with suppress(BrokenPipeError):
                self._shim.stdin.write(command.encode())
            answer = self._shim.stdout.readline().decode().strip()
        state, _, fact = answer.partition(" ")
        if state not in ("running", "ended"):
            problem = (
                f"the process that looks after the server ended ({fact or 'killed'}); "
                "call stop(), then start()"
            )
            raise EmbeddedServerError(problem)
        if state == "running":
            self.pid = int(fact)
        return answer

    def end(self) -> None:
        """End the server, the shim and the directory."""
        if not self._owned:
            return
        with self._shim as shim:  # closes both pipes
            if shim.stdin:
                with suppress(BrokenPipeError):
                    # More than closing the pipe: a fork unknown to Python may hold a copy of it.
                    shim.stdin.write(b"end")
            try:
                shim.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                shim.kill()
        rmtree(self._directory, ignore_errors=True)  # if the shim was killed

    def disown(self) -> None:
        """Close this forked process's copies of the pipes, and forget that the shim was a child."""
        self._owned = False
        for pipe in (self._shim.stdin, self._shim.stdout):
            if pipe:
                pipe.close()
        self._shim.returncode = 0  # else collecting it warns of a child that still runs

    def _answers(self) -> bool:
        """Return whether the server answers a PING: also by refusing it (no password)."""
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.settimeout(1.0)
            connection.connect(self.socket_path)
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
            return answer != b"" and not answer.startswith(b"-LOADING")
        return False

    def _last_lines(self) -> str:
        try:
            lines = Path(self._directory, "log").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(lines[-_LAST_LINES:])


def server_options(
    directory: str, port: int | None, *, data_dir: str | None = None, extra_args: Sequence[str] = ()
) -> list[str]:
    """Return a server's arguments: a configuration file first, then ours, then ``extra_args``."""
    config = [os.path.abspath(name) for name in extra_args[:1] if not name.startswith("--")]  # noqa: PTH100
    ours = {
        "--port": str(port or 0),
        "--bind": "127.0.0.1",
        "--unixsocket": _socket_path(directory),
        "--daemonize": "no",
        "--save": "",
        "--appendonly": "yes" if data_dir else "no",
        "--dir": data_dir or directory,
    }
    return [*config, *(word for option in ours.items() for word in option), *extra_args[len(config) :]]


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago: whoever binds it must be ready to ask again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def unused_directory() -> str:
    """Return a path for a new directory in the temporary directory, or in /tmp if that cannot hold a socket.

    Nothing is made yet; the name is random, and the shim insists on making it new.
    """
    name = f"redislock-{secrets.token_hex(8)}"
    directory = f"{tempfile.gettempdir()}/{name}"
    # Safe characters only: then the path is the same in every form of URL.
    if len(_socket_path(directory)) > _LONGEST_SOCKET_PATH or not re.fullmatch(
        r"[A-Za-z0-9._/-]+", directory
    ):
        directory = f"/tmp/{name}"  # noqa: S108  it is made with mode 0700, and fails if it exists
    return directory


def _socket_path(directory: str) -> str:
    return f"{directory}/s"


def _start_shim(arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start the shim, isolated: no user site, no environment, no current directory, no terminal."""
    if not sys.executable:
        raise EmbeddedServerError(
            "the embedded server needs a Python program (sys.executable) to look after it; "
            "start a server yourself, and give its URL"
        )
    return subprocess.Popen(  # noqa: S603  fixed program, arguments from this module
        [sys.executable, "-I", "-S", str(_SHIM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        start_new_session=True,
    )

